"""Spread of completion times, burst gaps and jitter."""

from __future__ import annotations

import numpy as np
import pytest
from exact_systems import drafted_rows, ratio_times, undrafted_rows

from ssdsim.errors import DomainError
from ssdsim.theory.finite import static_batch
from ssdsim.theory.renewal import endless_batch
from ssdsim.theory.row_law import RowLaw, slot_chain
from ssdsim.theory.tails import burst_gaps, completion_time, mean_max_of_normals

DRAFTED, UNDRAFTED = drafted_rows([2] * 6), undrafted_rows(12)


@pytest.mark.parametrize(
    ("fallback", "fallback_s", "sd_s"),
    [(DRAFTED, 0.8, 8.68), (UNDRAFTED, 0.0, 8.09), (UNDRAFTED, 0.8, 11.1)],
    ids=["just in time", "fast", "a miss costs time and tokens"],
)
def test_the_spread_of_512_tokens_is_what_theory_states(fallback: RowLaw, fallback_s: float, sd_s: float) -> None:
    """THEORY 7.5, where a Monte Carlo of the completion time agrees within its error."""
    spread = completion_time(DRAFTED, fallback, ratio_times(1, 0.8, fallback_s))
    assert spread.sd_s(512) == pytest.approx(sd_s, abs=0.02)


def test_p99_lies_an_eighth_above_the_mean_at_512_tokens() -> None:
    """THEORY 7.5: p99 / mean about 1.12."""
    spread = completion_time(DRAFTED, DRAFTED, ratio_times(1, 0.8, 0.8))
    assert spread.quantile_s(512, 0.99) / spread.mean_s(512) == pytest.approx(1.12, abs=0.01)


def test_the_mean_is_the_inverse_of_the_exact_rate() -> None:
    times = ratio_times(1, 1.3, 0.4)
    rate = endless_batch(slot_chain(DRAFTED, UNDRAFTED), times).rate_per_sequence
    assert completion_time(DRAFTED, UNDRAFTED, times).seconds_per_token == pytest.approx(1 / rate)


def test_rounds_that_are_all_alike_do_not_scatter() -> None:
    always = RowLaw(acceptance_prob=[1.0, 1.0], hit_prob=[1.0, 1.0, 1.0])
    spread = completion_time(always, UNDRAFTED, ratio_times(1, 0.8, 0.5))
    assert spread.variance_per_token == pytest.approx(0.0, abs=1e-15)


def test_independent_rounds_have_the_textbook_variance() -> None:
    """p_p = p_b and equal rows: var(D - X / lambda) per round with D and X independent of the past."""
    row = RowLaw(acceptance_prob=[0.5], hit_prob=[0.7, 0.7])
    spread = completion_time(row, row, ratio_times(1, 0.8, 0.5))
    mean_tokens, mean_s = 1.5, 1.15
    variance = 0.25 * 0.7 * 0.3 + (mean_s / mean_tokens) ** 2 * 0.25
    assert spread.variance_per_token == pytest.approx(variance / mean_tokens)


def test_the_spread_agrees_with_the_growth_of_the_exact_second_moment_in_a_simulation() -> None:
    """2000 completions of 200 tokens: the standard deviation is known within 1.6 %, so 4.5 of those is 7.1 %; chance
    exceeds it in 7 of a million runs."""
    rng = np.random.default_rng(5)
    row_a, row_b, times = DRAFTED, UNDRAFTED, ratio_times(1, 0.8, 0.8)
    left, seconds = np.full(2000, 200), np.zeros(2000)
    drafted = np.ones(2000, dtype=bool)
    while (left > 0).any():
        accepted = np.cumprod(rng.random((2000, 5)) < 0.8, axis=1).sum(axis=1) * drafted
        hit = rng.random(2000) < np.where(drafted, row_a.hit_prob[accepted], row_b.hit_prob[0])
        running = left > 0
        left = np.maximum(left - accepted - 1, 0)
        seconds += running * np.where(hit | (left == 0), 1.0, 1.8)
        drafted = hit
    assert seconds.mean() == pytest.approx(static_batch(row_a, row_b, times, 200).makespan_s, rel=0.02)
    assert seconds.std() == pytest.approx(completion_time(row_a, row_b, times).sd_s(200), rel=0.071)


def test_gaps_between_bursts_are_the_rounds_of_the_batch() -> None:
    """b = 2, independent look-ups with .6: both hit .36 (1.2), both miss .16 (1 + .5), mixed .48 (1 + .4)."""
    row = RowLaw(acceptance_prob=[0.5], hit_prob=[0.6, 0.6])
    times = ratio_times(2, 1.2, 0.4)
    times.fallback_s[2] = 0.5
    gaps = burst_gaps(slot_chain(row, row), times)
    assert gaps.gap_s == pytest.approx([1.2, 1.4, 1.5])
    assert gaps.prob == pytest.approx([0.36, 0.48, 0.16])
    assert gaps.mean_s == pytest.approx(endless_batch(slot_chain(row, row), times).round.round_s)
    assert [gaps.quantile_s(q) for q in (0.0, 0.36, 0.5, 0.9, 1.0)] == pytest.approx([1.2, 1.2, 1.4, 1.5, 1.5])


def test_jitter_makes_the_mean_maximum_exceed_the_maximum_of_the_means() -> None:
    """Equal means m and independent sd s: m + s / sqrt(pi)."""
    assert mean_max_of_normals(1.0, 0.1, 1.0, 0.1) == pytest.approx(1 + 0.1 / np.sqrt(np.pi))
    assert mean_max_of_normals(1.0, 0.1, 1.0, 0.1, correlation=1.0) == pytest.approx(1.0)
    assert mean_max_of_normals(1.0, 0.0, 2.0, 0.0) == 2.0
    assert mean_max_of_normals([1.0, 5.0], 0.2, 2.0, 0.3)[1] == pytest.approx(5.0, abs=1e-6)


def test_mean_of_the_maximum_against_sampled_normals() -> None:
    """A million draws: standard error about .0003, so .0015 is 4.5 of them."""
    rng = np.random.default_rng(8)
    x, y = rng.multivariate_normal([1.0, 1.2], [[0.09, 0.03], [0.03, 0.16]], size=1_000_000).T
    assert mean_max_of_normals(1.0, 0.3, 1.2, 0.4, 0.25) == pytest.approx(np.maximum(x, y).mean(), abs=0.0015)


def test_what_the_formulas_do_not_cover_is_refused_by_name() -> None:
    with pytest.raises(DomainError, match="times"):
        completion_time(DRAFTED, UNDRAFTED, ratio_times(2, 0.8, 0.5))
    with pytest.raises(DomainError, match="quantile"):
        completion_time(DRAFTED, UNDRAFTED, ratio_times(1, 0.8, 0.5)).quantile_s(10, 1.0)
    with pytest.raises(DomainError, match="correlation"):
        mean_max_of_normals(1.0, 0.1, 1.0, 0.1, correlation=1.1)
    with pytest.raises(DomainError, match="first_sd"):
        mean_max_of_normals(1.0, -0.1, 1.0, 0.1)
