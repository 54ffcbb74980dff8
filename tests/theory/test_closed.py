"""The closed loop: identities with the static and the endless model, and a simulation of the documented round."""

from __future__ import annotations

import numpy as np
import pytest
from exact_systems import DRAFTED_5, UNDRAFTED, Loop, ratio_times

from ssdsim.errors import DomainError
from ssdsim.theory.acceptance import beta_quadrature, beta_shape, harmonic_mean_acceptance_length_beta
from ssdsim.theory.closed import FIRST, closed_batch, request_rounds, slot_law
from ssdsim.theory.finite import round_laws
from ssdsim.theory.lengths import length_law
from ssdsim.theory.renewal import endless_batch
from ssdsim.theory.round_time import End, RoundTimes
from ssdsim.theory.row_law import RowLaw, slot_chain

LENGTHS = ([1, 5, 20], [0.2, 0.5, 0.3])
DRAFTED = RowLaw(acceptance_prob=[0.9, 0.6, 0.7], hit_prob=[0.5, 0.6, 0.3, 0.8])
FALLBACK = RowLaw(acceptance_prob=[0.5], hit_prob=[0.7, 0.9])


@pytest.mark.parametrize("first_round", ["jit", "miss"])
def test_the_rounds_of_a_request_are_those_of_the_forward_pass(first_round: str) -> None:
    """Two independent computations: downwards in tokens left, and forwards in rounds."""
    lengths = length_law(LENGTHS)
    counts = request_rounds(DRAFTED, FALLBACK, lengths, first_round)
    by_pass = round_laws(DRAFTED, FALLBACK, lengths, first_round)
    sources = counts[:2].copy()
    sources[0] += counts[FIRST]
    assert sources == pytest.approx(by_pass.sum(axis=0), abs=1e-13)
    assert counts[FIRST] == pytest.approx(by_pass[0, 0] if first_round == "jit" else np.zeros(3), abs=1e-13)


def test_a_request_of_one_token_is_all_first_rounds() -> None:
    law = slot_law(DRAFTED, FALLBACK, 1)
    assert law.by_source[FIRST, End.FINISHED] == pytest.approx(1.0)
    assert (law.tokens_per_round, law.rounds_per_request) == (1.0, 1.0)
    loop = closed_batch(law, ratio_times(4, 0.8, 0.25))
    assert loop.rate_per_sequence == pytest.approx(1 / 1.25)
    assert loop.request_rate == pytest.approx(4 / 1.25)


def test_tokens_beyond_a_request_s_length_are_not_counted() -> None:
    """K = 1, always accepted, 3 tokens: two rounds of 2 + 1 tokens."""
    sure = RowLaw(acceptance_prob=[1.0], hit_prob=[0.5, 0.5])
    law = slot_law(sure, sure, 3)
    assert law.rounds_per_request == pytest.approx(2.0)
    assert law.tokens_per_round == pytest.approx(1.5)


@pytest.mark.parametrize("on_late", ["wait", "abort"])
def test_endless_requests_give_the_endless_batch(on_late: str) -> None:
    times = ratio_times(6, 1.3, 0.2, on_late)
    endless = endless_batch(slot_chain(DRAFTED, FALLBACK), times)
    loop = closed_batch(slot_law(DRAFTED, FALLBACK, None), times)
    assert loop.rate_per_sequence == pytest.approx(endless.rate_per_sequence, rel=1e-12)
    assert loop.request_rate == 0.0


def test_long_requests_approach_the_endless_batch() -> None:
    times = ratio_times(6, 1.3, 0.2)
    endless = endless_batch(slot_chain(DRAFTED, FALLBACK), times).rate_per_sequence
    gaps = [
        abs(closed_batch(slot_law(DRAFTED, FALLBACK, n), times).rate_per_sequence / endless - 1)
        for n in (50, 500, 5000)
    ]
    assert gaps[0] > 9 * gaps[1] > 81 * gaps[2]


def test_requests_of_several_kinds_weigh_by_their_rounds() -> None:
    """A kind that emits one token per round fills more rounds than its share of requests: the mean is harmonic."""
    drafted = RowLaw(acceptance_prob=[[0.0], [1.0]], hit_prob=[0.5, 0.5])
    law = slot_law(drafted, drafted, 10, request_kinds=np.array([0.5, 0.5]))
    assert law.rounds_per_request == pytest.approx((10 + 5) / 2)
    assert law.tokens_per_round == pytest.approx(10 / 7.5)
    endless = slot_law(drafted, drafted, None, request_kinds=np.array([0.5, 0.5]))
    assert endless.tokens_per_round == pytest.approx(1 / (0.5 / 1 + 0.5 / 2))


@pytest.mark.parametrize(("spread", "change"), [(0.12, -0.028), (0.2, -0.069)])
def test_a_spread_of_acceptance_between_requests_costs_what_theory_states(spread: float, change: float) -> None:
    """THEORY 3, row "plug-in mean a", K = 5: the harmonic mean of the acceptance lengths of Beta requests."""
    nodes, shares = beta_quadrature(*beta_shape(0.8, spread))
    rows = RowLaw(acceptance_prob=np.repeat(nodes[:, None], 5, axis=1), hit_prob=np.full(6, 0.9))
    true = slot_law(rows, rows, None, request_kinds=shares).tokens_per_round
    assert true / DRAFTED_5.tokens - 1 == pytest.approx(change, abs=6e-4)
    assert true == pytest.approx(harmonic_mean_acceptance_length_beta(*beta_shape(0.8, spread), 5))


def test_a_forced_miss_counts_against_the_hit_rate_and_a_first_drafting_does_not() -> None:
    """p_p = p_b = .8, requests of two one-token rounds: one look-up each, which hits with .8; a forced miss adds
    one look-up that missed."""
    plain = RowLaw(acceptance_prob=[0.0], hit_prob=[0.8, 0.8])
    assert slot_law(plain, plain, 2).cache_hit_rate == pytest.approx(0.8)
    assert slot_law(plain, plain, 2, first_round="miss").cache_hit_rate == pytest.approx(0.4)


def test_the_mean_time_of_a_request_obeys_little_s_law() -> None:
    loop = closed_batch(slot_law(DRAFTED, FALLBACK, LENGTHS), ratio_times(5, 0.8, 0.3))
    assert loop.request_rate * loop.request_s == pytest.approx(5)
    mean_length = np.dot(*LENGTHS)
    assert loop.request_rate * mean_length == pytest.approx(5 * loop.rate_per_sequence)


BY_COUNT = {
    "window_s": [1.0, 1.1, 1.25, 1.3, 1.5],
    "build_s": [0.9, 1.2, 1.4, 1.6, 1.65],
    "fallback_s": [0.0, 0.1, 0.15, 0.3, 0.5],
    "overhead_s": 0.05,
}
LOOPS = {
    "admissions drafted together with the misses": (ratio_times(4, 0.8, 0.4), "jit", None),
    "a late build, aborted": (ratio_times(4, 1.5, 0.4), "jit", None),
    "first drafting after the fallback": (RoundTimes(**BY_COUNT, on_late="wait"), "jit", [0.0, 0.4, 0.45, 0.5, 0.55]),
    "the same with builds aborted": (RoundTimes(**BY_COUNT, on_late="abort"), "jit", [0.0, 0.4, 0.45, 0.5, 0.55]),
    "misses cost nothing, a late build is aborted": (
        RoundTimes(window_s=[1.0], build_s=[1.3], fallback_s=np.zeros(5), on_late="abort"),
        "jit",
        [0.0, 0.2, 0.4, 0.6, 0.8],
    ),
    "admissions are misses": (RoundTimes(**BY_COUNT, on_late="abort"), "miss", None),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_throughput_is_what_a_simulation_of_the_round_measures(name: str) -> None:
    """Error rate: |z| > 4.5 happens by chance in 7 of a million runs; a 1 % error would show as |z| > 6."""
    times, first_round, first_draft_s = LOOPS[name]
    loop = Loop({"drafted": DRAFTED, "fallback": FALLBACK}, times, LENGTHS, first_round, first_draft_s)
    sampled = loop.run(np.random.default_rng(4711), rounds=250, warmup=60)
    law = slot_law(DRAFTED, FALLBACK, LENGTHS, first_round=first_round)
    exact = closed_batch(law, times, first_draft_s=first_draft_s).rate_per_sequence
    assert abs(sampled.z(exact)) < 4.5
    assert abs(sampled.z(1.01 * exact)) > 6


def test_what_does_not_fit_together_is_refused_by_name() -> None:
    times = ratio_times(4, 0.8, 0.4)
    with pytest.raises(DomainError, match="first_draft_s"):
        closed_batch(slot_law(DRAFTED, FALLBACK, 5, first_round="miss"), times, first_draft_s=[0.0] + [0.5] * 4)
    with pytest.raises(DomainError, match="first_draft_s"):
        closed_batch(slot_law(DRAFTED, FALLBACK, 5), times, first_draft_s=[0.0, 0.5])
    with pytest.raises(DomainError, match="first_round"):
        slot_law(DRAFTED, FALLBACK, 5, first_round="none")
    with pytest.raises(DomainError, match="output_tokens"):
        slot_law(DRAFTED_5, UNDRAFTED, 0)
