"""The endless exact model: its routes, its identities, its distance from the printed formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_systems import DRAFTED_5, UNDRAFTED, Loop, ratio_times

from ssdsim.errors import DomainError
from ssdsim.theory.joint_law import joint_counts
from ssdsim.theory.renewal import SlotChain, endless_batch, mixed_batch, round_durations
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw, slot_chain
from ssdsim.theory.speedup import ssd_speedup, ssd_speedup_bounds

CHAIN = slot_chain(DRAFTED_5, UNDRAFTED)


def random_chains(rng: np.random.Generator, points: int) -> SlotChain:
    return SlotChain(
        hit_after_draft=rng.random(points),
        hit_after_fallback=rng.random(points),
        tokens_drafted=1 + 4 * rng.random(points),
        tokens_fallback=1 + rng.random(points),
    )


def random_times(
    rng: np.random.Generator, points: int, batch_size: int, *, by_drafted: bool, by_misses: bool, on_late: str
) -> RoundTimes:
    columns = batch_size + 1 if by_drafted else 1
    fallback_s = np.zeros((points, batch_size + 1))
    fallback_s[:, 1:] = rng.random((points, batch_size if by_misses else 1))
    return RoundTimes(
        window_s=0.5 + rng.random((points, columns)),
        build_s=2 * rng.random((points, columns)),
        fallback_s=fallback_s,
        overhead_s=0.1 * rng.random(points),
        on_late=on_late,
    )


def printed(batch_size: int, build: float, fallback: float) -> float:
    """Corollary 16 at the long-run hit rate."""
    return ssd_speedup(CHAIN.cache_hit_rate, CHAIN.tokens_drafted, 1.0, build, fallback, batch_size)


@pytest.mark.parametrize("on_late", ["wait", "abort"])
@pytest.mark.parametrize("by_misses", [False, True])
@pytest.mark.parametrize("by_drafted", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
def test_every_route_equals_the_sum_over_the_joint_law(
    batch_size: int, by_drafted: bool, by_misses: bool, on_late: str
) -> None:
    rng = np.random.default_rng(7)
    chain = random_chains(rng, 40)
    times = random_times(rng, 40, batch_size, by_drafted=by_drafted, by_misses=by_misses, on_late=on_late)
    drafted_and_missed = joint_counts(batch_size, chain.law[..., :2].reshape(-1, 4), [[0, 1], [1, 3]])
    by_definition = (drafted_and_missed * round_durations(times)).sum(axis=(1, 2))
    assert endless_batch(chain, times).round.round_s == pytest.approx(by_definition, rel=1e-12)


def test_corollary_16_is_exact_while_the_build_ends_within_window_and_fallback() -> None:
    for batch_size in (1, 2, 16, 64):
        for build, fallback in ((0.8, 0.0), (0.8, 0.8), (1.5, 0.5)):
            exact = endless_batch(CHAIN, ratio_times(batch_size, build, fallback)).rate_per_sequence
            assert exact == pytest.approx(printed(batch_size, build, fallback), rel=1e-12)


@pytest.mark.parametrize(
    ("build", "batch_size", "too_fast"), [(1.2, 2, 0.027), (1.2, 16, 0.145), (1.5, 2, 0.055), (1.5, 16, 0.34)]
)
def test_corollary_16_is_too_fast_once_a_hit_is_the_slow_case(build: float, batch_size: int, too_fast: float) -> None:
    """THEORY 3, row T_p > 1 + T_b."""
    exact = endless_batch(CHAIN, ratio_times(batch_size, build, 0.0)).rate_per_sequence
    assert printed(batch_size, build, 0.0) / exact - 1 == pytest.approx(too_fast, abs=too_fast / 100 + 5e-4)


@pytest.mark.parametrize(("batch_size", "too_fast"), [(1, 0.009), (4, 0.037), (16, 0.146), (64, 0.58)])
def test_verification_that_grows_by_the_token_is_missing_from_corollary_16(batch_size: int, too_fast: float) -> None:
    """THEORY 3, row T_v grows: .002 per query token, the AR step of the same batch being 1."""
    n = np.arange(batch_size + 1.0)
    width = n * 6 + (batch_size - n)
    window_s = 1.0 + 0.002 * (width - batch_size)
    times = RoundTimes(window_s=window_s, build_s=[0.8], fallback_s=np.zeros(batch_size + 1), on_late="abort")
    exact = endless_batch(CHAIN, times).rate_per_sequence
    assert printed(batch_size, 0.8, 0.0) / exact - 1 == pytest.approx(too_fast, abs=too_fast / 100 + 5e-4)


@pytest.mark.parametrize(("build", "batch_size", "too_fast"), [(1.2, 1, 0.014), (1.2, 16, 0.09), (1.5, 16, 0.22)])
def test_waiting_for_a_late_build_before_drafting_costs_what_theory_states(
    build: float, batch_size: int, too_fast: float
) -> None:
    """THEORY 3, row no pre-emption, T_b = .8."""
    exact = endless_batch(CHAIN, ratio_times(batch_size, build, 0.8, "wait")).rate_per_sequence
    assert printed(batch_size, build, 0.8) / exact - 1 == pytest.approx(too_fast, abs=too_fast / 50 + 5e-4)


def test_the_causes_of_a_round_add_up_and_each_is_what_it_says() -> None:
    """b = 1, p_p = p_b = .6: window 1 + build 1.4 late by .4 + a fallback of .5 in 40 % of rounds + .1."""
    chain = SlotChain(hit_after_draft=0.6, hit_after_fallback=0.6, tokens_drafted=2.0, tokens_fallback=1.0)
    times = RoundTimes(window_s=[1.0], build_s=[1.4], fallback_s=[0, 0.5], overhead_s=0.1, on_late="wait")
    result = endless_batch(chain, times)
    causes = (result.round.window_s, result.round.build_wait_s, result.round.fallback_s, result.round.overhead_s)
    assert causes == pytest.approx((1.0, 0.4, 0.2, 0.1))
    assert result.round.round_s == pytest.approx(1.7)
    assert result.rate_per_sequence == pytest.approx(1.6 / 1.7)


def test_an_aborted_build_is_waited_for_only_by_those_who_hit() -> None:
    """b = 1: a hit waits .4 for the build, a miss interrupts it: 1.1 + .6 x .4 + .4 x .5."""
    chain = SlotChain(hit_after_draft=0.6, hit_after_fallback=0.6, tokens_drafted=2.0, tokens_fallback=1.0)
    times = RoundTimes(window_s=[1.0], build_s=[1.4], fallback_s=[0, 0.5], overhead_s=0.1, on_late="abort")
    assert endless_batch(chain, times).round.round_s == pytest.approx(1.1 + 0.6 * 0.4 + 0.4 * 0.5)


def test_a_miss_that_is_never_recovered_leaves_the_fallback_alone() -> None:
    chain = SlotChain(hit_after_draft=0.9, hit_after_fallback=0.0, tokens_drafted=4.0, tokens_fallback=1.5)
    result = endless_batch(chain, ratio_times(8, 0.8, 0.25))
    assert result.cache_hit_rate == 0.0
    assert result.rate_per_sequence == pytest.approx(1.5 / 1.25)


def test_a_draft_that_always_hits_never_falls_back() -> None:
    chain = SlotChain(hit_after_draft=1.0, hit_after_fallback=0.3, tokens_drafted=4.0, tokens_fallback=1.5)
    assert endless_batch(chain, ratio_times(8, 0.8, 5.0)).rate_per_sequence == pytest.approx(4.0)


def test_rates_stay_within_the_bounds_that_hold_under_any_dependence_of_sequences() -> None:
    for batch_size in (2, 4, 16):
        exact = endless_batch(CHAIN, ratio_times(batch_size, 0.8, 0.8)).rate_per_sequence
        bounds = ssd_speedup_bounds(CHAIN.tokens_per_round, CHAIN.cache_hit_rate, batch_size, 0.8, 0.8)
        assert bounds.low <= exact <= bounds.high


@pytest.mark.parametrize("on_late", ["wait", "abort"])
@pytest.mark.parametrize("slower", ["window_s", "build_s", "fallback_s", "overhead_s"])
def test_no_time_that_grows_makes_a_batch_faster(slower: str, on_late: str) -> None:
    rng = np.random.default_rng(17)
    chain = random_chains(rng, 200)
    times = random_times(rng, 200, 5, by_drafted=True, by_misses=True, on_late=on_late)
    before = endless_batch(chain, times)
    table = getattr(times, slower)
    grown = replace(times, **{slower: table + np.where(table > 0, 0.3 * rng.random(table.shape), 0.0)})
    after = endless_batch(chain, grown)
    assert np.all(after.rate_per_sequence <= before.rate_per_sequence * (1 + 1e-12))


def test_a_batch_of_unequal_rows_that_happen_to_be_equal_is_the_equal_batch() -> None:
    times = random_times(np.random.default_rng(5), 1, 6, by_drafted=True, by_misses=True, on_late="abort")
    one_point = RoundTimes(
        window_s=times.window_s[0], build_s=times.build_s[0], fallback_s=times.fallback_s[0], on_late="abort"
    )
    mixed, equal = mixed_batch(CHAIN, one_point), endless_batch(CHAIN, one_point)
    assert mixed.rate_per_sequence == pytest.approx(np.full(6, equal.rate_per_sequence), rel=1e-12)
    assert mixed.prob_all_hit == pytest.approx(equal.prob_all_hit)


def test_unequal_rows_hit_together_less_often_than_their_mean_suggests() -> None:
    """prod pi_i <= (mean pi)^b (THEORY 2.1), here with two rows: (.9, .5) against .7 squared."""
    rows = SlotChain(
        hit_after_draft=[0.9, 0.5], hit_after_fallback=[0.9, 0.5], tokens_drafted=2.0, tokens_fallback=1.0
    )
    mixed = mixed_batch(rows, ratio_times(2, 0.8, 0.5))
    assert mixed.prob_all_hit == pytest.approx(0.45)
    assert mixed.round_s == pytest.approx(1 + 0.55 * 0.5)
    assert mixed.rate_per_sequence == pytest.approx(np.array([1.9, 1.5]) / 1.275)


def test_points_broadcast_and_keep_their_shape() -> None:
    chain = SlotChain(
        hit_after_draft=np.full((3, 1), 0.8),
        hit_after_fallback=np.full((1, 4), 0.9),
        tokens_drafted=3.0,
        tokens_fallback=1.0,
    )
    result = endless_batch(chain, ratio_times(4, 0.8, 0.5))
    assert np.shape(result.rate_per_sequence) == (3, 4)
    assert np.shape(result.round.window_s) == (3, 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"window_s": [0.0]}, "window_s"),
        ({"window_s": [1.0, 1.0, 1.0, 1.0]}, "window_s"),
        ({"build_s": [-0.1]}, "build_s"),
        ({"build_s": [np.nan]}, "build_s"),
        ({"fallback_s": [0.1, 0.2, 0.2]}, "fallback_s"),
        ({"fallback_s": [0.0]}, "batch_size"),
        ({"overhead_s": True}, "overhead_s"),
        ({"on_late": "truncate"}, "on_late"),
    ],
)
def test_times_outside_the_model_are_refused_by_name(change: dict[str, object], field: str) -> None:
    times = {"window_s": [1.0], "build_s": [0.8], "fallback_s": [0.0, 0.5, 0.5]} | change
    with pytest.raises(DomainError, match=field):
        RoundTimes(**times)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hit_after_draft": 1.0, "hit_after_fallback": 0.0}, "hit_after_draft"),
        ({"hit_after_draft": 1.2}, "hit_after_draft"),
        ({"tokens_drafted": 0.9}, "tokens_drafted"),
        ({"tokens_fallback": float("inf")}, "tokens_fallback"),
    ],
)
def test_chains_outside_the_model_are_refused_by_name(change: dict[str, float], field: str) -> None:
    fields = {"hit_after_draft": 0.8, "hit_after_fallback": 0.9, "tokens_drafted": 3.0, "tokens_fallback": 1.0}
    with pytest.raises(DomainError, match=field):
        SlotChain(**(fields | change))


LOOPS = {
    "paper's clock, batch 16": (DRAFTED_5, UNDRAFTED, ratio_times(16, 0.8, 0.3)),
    "late builds, aborted": (DRAFTED_5, UNDRAFTED, ratio_times(3, 1.5, 0.2)),
    "late builds, waited for": (DRAFTED_5, DRAFTED_5, ratio_times(4, 1.3, 0.4, "wait")),
    "everything depends on the counts": (
        RowLaw(acceptance_prob=[0.9, 0.6, 0.7], hit_prob=[0.5, 0.6, 0.3, 0.8]),
        RowLaw(acceptance_prob=[0.5], hit_prob=[0.7, 0.9]),
        RoundTimes(
            window_s=[1.0, 1.1, 1.25, 1.3, 1.5],
            build_s=[0.9, 1.2, 1.4, 1.6, 1.65],
            fallback_s=[0.0, 0.1, 0.15, 0.3, 0.5],
            overhead_s=0.05,
            on_late="abort",
        ),
    ),
}


def simulated(name: str, seed: int = 20240601) -> tuple[Loop, object]:
    drafted, fallback, times = LOOPS[name]
    loop = Loop({"drafted": drafted, "fallback": fallback}, times)
    return loop, loop.run(np.random.default_rng(seed), rounds=250, warmup=40)


@pytest.mark.parametrize("name", LOOPS)
def test_the_rate_is_what_a_simulation_of_the_round_measures(name: str) -> None:
    """Error rate: |z| > 4.5 happens by chance in 7 of a million runs; a 1 % error would show as |z| > 6."""
    loop, sampled = simulated(name)
    exact = endless_batch(slot_chain(loop.rows["drafted"], loop.rows["fallback"]), loop.times)
    assert abs(sampled.z(exact.rate_per_sequence)) < 4.5
    assert abs(sampled.z(1.01 * exact.rate_per_sequence)) > 6
