"""Static batches of finite requests: by hand, by the recursion for one request, by simulation."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from exact_systems import (
    DRAFTED_5,
    DRAFTED_7,
    UNDRAFTED,
    ratio_estimate,
    ratio_times,
)

from ssdsim.errors import DomainError
from ssdsim.theory.acceptance import outcome_weights
from ssdsim.theory.finite import round_laws, static_batch
from ssdsim.theory.lengths import length_law
from ssdsim.theory.renewal import endless_batch
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw, slot_chain
from ssdsim.theory.speedup import ssd_speedup

COIN = RowLaw(acceptance_prob=[0.5], hit_prob=[0.6, 0.6])
NOTHING = RowLaw(acceptance_prob=[], hit_prob=[0.9])


def test_two_tokens_of_two_sequences_by_hand() -> None:
    """K = 1, a = .5, p_p = .6, T_b = .5: each needs a second round with 1/2. Round 1 lasts 1 unless someone goes
    on with a miss, 1 - (1 - .2)^2 = .36, so 1.18; round 2 takes place with 3/4 and lasts 1: 1.93."""
    result = static_batch(COIN, NOTHING, ratio_times(2, 0.8, 0.5), 2)
    assert result.makespan_s == pytest.approx(1.93)
    assert result.rounds_per_sequence == pytest.approx(1.5)
    assert result.rounds == pytest.approx(1.75)
    assert result.rate_per_sequence == pytest.approx(2 / 1.93)


def test_a_single_token_takes_one_round_without_any_look_up() -> None:
    for batch_size in (1, 5):
        result = static_batch(COIN, NOTHING, ratio_times(batch_size, 9.0, 7.0, "wait"), 1, initial_s=0.25)
        assert result.makespan_s == pytest.approx(1.25)


def recursion(rows: dict[bool, RowLaw], round_s: dict[bool, float], window_s: float, tokens: int) -> float:
    """THEORY 2.2, as it stands there: V(n, drafted) by first-step analysis."""

    @cache
    def remaining(left: int, drafted: bool) -> float:
        row, total = rows[drafted], 0.0
        for accepted, weight in enumerate(outcome_weights(row.acceptance_prob)):
            for hit in (True, False):
                prob = weight * (row.hit_prob[accepted] if hit else 1 - row.hit_prob[accepted])
                later = left - accepted - 1
                total += prob * (window_s if later <= 0 else round_s[hit] + remaining(later, hit))
        return total

    return remaining(tokens, True)


@pytest.mark.parametrize("tokens", [1, 2, 5, 40, 200])
@pytest.mark.parametrize("on_late", ["wait", "abort"])
def test_one_request_is_the_recursion_over_tokens_left(tokens: int, on_late: str) -> None:
    rng = np.random.default_rng(11)
    drafted = RowLaw(acceptance_prob=rng.random(4), hit_prob=rng.random(5))
    fallback = RowLaw(acceptance_prob=rng.random(2), hit_prob=rng.random(3))
    round_s = {True: 1.3, False: (1.3 if on_late == "wait" else 1.0) + 0.4}
    wanted = recursion({True: drafted, False: fallback}, round_s, 1.0, tokens)
    result = static_batch(drafted, fallback, ratio_times(1, 1.3, 0.4, on_late), tokens)
    assert result.makespan_s == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("drafted", "tokens", "gaps"),
    [
        (DRAFTED_5, 512, (-0.009, -0.056, -0.089, -0.114)),
        (DRAFTED_5, 128, (-0.033, -0.121, -0.179, -0.221)),
        (DRAFTED_7, 512, (-0.010, -0.067, -0.105, -0.134)),
        (DRAFTED_7, 128, (-0.037, -0.141, -0.207, -0.254)),
    ],
)
def test_finite_batches_fall_short_of_corollary_16_as_theory_states(
    drafted: RowLaw, tokens: int, gaps: tuple[float, ...]
) -> None:
    """THEORY 3, rows "finite N, fast fallback", b = 1, 4, 16, 64; first drafting lasts .8."""
    chain = slot_chain(drafted, UNDRAFTED)
    for batch_size, gap in zip((1, 4, 16, 64), gaps, strict=True):
        finite = static_batch(drafted, UNDRAFTED, ratio_times(batch_size, 0.8, 0.0), tokens, initial_s=0.8)
        printed = ssd_speedup(chain.cache_hit_rate, chain.tokens_drafted, 1.0, 0.8, 0.0, batch_size)
        assert finite.rate_per_sequence / printed - 1 == pytest.approx(gap, abs=6e-4)


def test_drafting_just_in_time_loses_less_to_finite_length() -> None:
    """THEORY 3, row "slow fallback (T_b = .8), K = 5", N = 512."""
    chain = slot_chain(DRAFTED_5, DRAFTED_5)
    for batch_size, gap in ((1, -0.009), (4, -0.043), (16, -0.059), (64, -0.083)):
        times = ratio_times(batch_size, 0.8, 0.8)
        finite = static_batch(DRAFTED_5, DRAFTED_5, times, 512, initial_s=0.8)
        tokens = chain.tokens_drafted
        printed = ssd_speedup(chain.cache_hit_rate, tokens, tokens, 0.8, 0.8, batch_size)
        assert finite.rate_per_sequence / printed - 1 == pytest.approx(gap, abs=6e-4)


def test_kinds_of_requests_average_the_single_request_over_their_shares() -> None:
    shares = np.array([0.3, 0.7])
    kinds = RowLaw(acceptance_prob=[[0.9, 0.8], [0.4, 0.5]], hit_prob=[[0.5, 0.6, 0.9], [0.2, 0.3, 0.4]])
    times = ratio_times(1, 1.2, 0.4)
    mixed = static_batch(kinds, NOTHING, times, 60, request_kinds=shares).makespan_s
    assert mixed == pytest.approx(static_batch(kinds, NOTHING, times, 60).makespan_s @ shares, rel=1e-12)


def test_long_requests_approach_the_endless_rate_from_below() -> None:
    times = ratio_times(1, 0.8, 0.3)
    endless = endless_batch(slot_chain(DRAFTED_5, UNDRAFTED), times).rate_per_sequence
    gaps = [
        1 - static_batch(DRAFTED_5, UNDRAFTED, times, tokens, initial_s=0.4).rate_per_sequence / endless
        for tokens in (100, 1000, 10000)
    ]
    assert gaps[0] > 9 * gaps[1] > 81 * gaps[2] > 0


def test_lengths_drawn_from_a_law_average_the_single_request_over_it() -> None:
    values, probs = [3, 10, 25], [0.5, 0.2, 0.3]
    times = ratio_times(1, 0.8, 0.4)
    mixed = static_batch(DRAFTED_5, UNDRAFTED, times, (values, probs)).makespan_s
    singles = [static_batch(DRAFTED_5, UNDRAFTED, times, value).makespan_s for value in values]
    assert mixed == pytest.approx(np.dot(singles, probs), rel=1e-12)


def test_times_that_ignore_who_is_active_may_be_given_either_way() -> None:
    per_active = [ratio_times(active, 1.4, 0.4) for active in range(1, 5)]
    one = static_batch(COIN, NOTHING, per_active[-1], 30)
    by_active = static_batch(COIN, NOTHING, per_active, 30)
    assert by_active.makespan_s == pytest.approx(one.makespan_s, rel=1e-12)


def test_points_share_a_pass_and_do_not_touch_each_other() -> None:
    rng = np.random.default_rng(2)
    drafted = RowLaw(acceptance_prob=rng.random((300, 3)), hit_prob=rng.random((300, 4)))
    together = static_batch(drafted, NOTHING, ratio_times(3, 0.8, 0.4), 20)
    for point in (0, 127, 128, 299):
        alone = RowLaw(acceptance_prob=drafted.acceptance_prob[point], hit_prob=drafted.hit_prob[point])
        single = static_batch(alone, NOTHING, ratio_times(3, 0.8, 0.4), 20)
        assert together.makespan_s[point] == pytest.approx(single.makespan_s, rel=1e-12)


def test_every_sequence_finishes_exactly_once() -> None:
    laws = round_laws(DRAFTED_5, UNDRAFTED, length_law(([7, 90], [0.4, 0.6])), "miss")
    assert laws[..., 2].sum() == pytest.approx(1.0, abs=1e-12)
    assert laws.sum(axis=(1, 2)) == pytest.approx(np.append(1.0, 1 - np.cumsum(laws[:-1, :, 2].sum(axis=1))))


def simulated_makespans(
    rng: np.random.Generator, batch_size: int, tokens: int, replicas: int
) -> tuple[np.ndarray, list[RoundTimes]]:
    """A static batch row by row; every time depends on the rows still active, and on the drafted among them."""
    per_active = [
        RoundTimes(
            window_s=0.8 + 0.05 * active + 0.1 * np.arange(active + 1),
            build_s=np.linspace(0.6, 1.8, active + 1),
            fallback_s=0.15 * np.arange(active + 1),
            overhead_s=0.02,
            on_late="abort",
        )
        for active in range(1, batch_size + 1)
    ]
    left = np.full((replicas, batch_size), tokens)
    fallback = np.zeros(left.shape, dtype=bool)
    makespan = np.zeros(replicas)
    while (left > 0).any():
        active = left > 0
        accepted = np.where(fallback, 0, rng.random(left.shape) < 0.5)
        hit = rng.random(left.shape) < np.where(fallback, 0.9, 0.6)
        left = np.maximum(left - accepted - 1, 0)
        going_on = left > 0
        for replica in np.flatnonzero(active.any(axis=1)):
            times = per_active[active[replica].sum() - 1]
            n = (active & ~fallback)[replica].sum()
            hits, misses = (going_on & hit)[replica].sum(), (going_on & ~hit)[replica].sum()
            ends = [times.window_s[n]]
            ends += [max(times.window_s[n], times.build_s[n])] if hits else []
            ends += [times.window_s[n] + times.fallback_s[misses]] if misses else []
            makespan[replica] += max(ends) + times.overhead_s
        fallback = ~hit
    return makespan, per_active


def test_times_that_follow_the_active_rows_match_a_simulation_row_by_row() -> None:
    """Error rate: |z| > 4.5 happens by chance in 7 of a million runs; a 1 % error would show as |z| > 6."""
    makespan, per_active = simulated_makespans(np.random.default_rng(99), 3, 12, 3000)
    sampled = ratio_estimate(makespan, np.ones_like(makespan))
    exact = static_batch(COIN, NOTHING, per_active, 12).makespan_s
    assert abs(sampled.z(exact)) < 4.5
    assert abs(sampled.z(1.01 * exact)) > 6


@pytest.mark.parametrize("tokens", [0, -3, 2.5, True, ([4, 4], [0.5, 0.5]), ([4, 5], [0.5, 0.4]), ([4, 5], [1.0])])
def test_lengths_that_are_no_law_are_refused(tokens: object) -> None:
    with pytest.raises(DomainError, match="output_tokens"):
        static_batch(COIN, NOTHING, ratio_times(1, 0.8, 0.5), tokens)


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    times = ratio_times(2, 0.8, 0.5)
    with pytest.raises(DomainError, match="hit_prob"):
        RowLaw(acceptance_prob=[0.5], hit_prob=[0.5])
    with pytest.raises(DomainError, match="first_round"):
        static_batch(COIN, NOTHING, times, 4, first_round="hit")
    with pytest.raises(DomainError, match="times"):
        static_batch(COIN, NOTHING, [times], 4)
    with pytest.raises(DomainError, match="request_kinds"):
        static_batch(COIN, NOTHING, times, 4, request_kinds=np.array([0.5, 0.5]))
    by_drafted = RoundTimes(window_s=[1.0, 1.1, 1.2], build_s=[0.8], fallback_s=[0.0, 0.5, 0.5])
    with pytest.raises(DomainError, match="window_s"):
        static_batch(COIN, NOTHING, by_drafted, 4)
