"""Cost terms: coefficients within their errors, outliers bounded, a table where no line fits."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.calibration.terms import fit_term, observations

_TRUTH = np.array([5e-3, 2e-4, 3e-4, 1e-6])
"""Base, per query token, per row, per token of context."""


def _seen(rng: np.random.Generator, count: int = 2000, noise: float = 0.05):
    rows = rng.choice([1, 2, 4, 8], count)
    query = rows * (rng.choice([2, 4, 8], count) + 1)
    context = rng.uniform(50, 300, count)
    mean = _TRUTH @ np.stack([np.ones(count), query, rows, rows * context])
    return rows, query, context, mean * rng.gamma(noise**-2, noise**2, count)


def test_coefficients_are_covered_at_their_rate() -> None:
    # 40 samples of 4 intervals at 95 %: 8 misses expected, more than 18 of 160 with probability < 0.001.
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(40):
        rows, query, context, seconds = _seen(rng)
        fit = fit_term(observations(rows, query, context, seconds, np.arange(len(rows)) // 25))
        found = [getattr(fit.term, path) for path in fit.paths]
        misses += int((np.abs(found - _TRUTH) > 1.96 * np.sqrt(np.diag(fit.covariance))).sum())
    assert fit.paths == ("base_s", "per_query_token_s", "per_sequence_s", "per_context_token_s")
    assert misses <= 18
    assert fit.noise == pytest.approx(0.05, rel=0.1)


def test_the_mean_is_kept_and_disturbances_are_cut() -> None:
    rng = np.random.default_rng(1)
    seconds = 1e-3 * rng.gamma(400, 1 / 400, 1000)
    seconds[::100] *= 3.0  # slow now and then: part of the mean
    seconds[500] = 1.0  # a thousand times too long: a disturbance, cut to ten times
    fit = fit_term(observations(1, 1, 0, seconds, np.arange(1000) // 25))
    cut = np.minimum(seconds, 10 * 1e-3)
    assert fit.term.seconds == pytest.approx(cut.mean(), rel=0.01)


def test_a_step_becomes_a_table() -> None:
    rng = np.random.default_rng(2)
    query = rng.choice([1, 2, 3, 5, 9, 17], 3000)
    mean = np.where(query <= 4, 5e-3, 9e-3)  # another kernel from width 5 on
    fit = fit_term(observations(1, query, 100, mean * rng.gamma(400, 1 / 400, 3000), np.arange(3000) // 25))
    assert fit.term.kind == "sum"
    assert fit.misfit < 0.005
    assert float(fit.term(1, 3, 100)) == pytest.approx(5e-3, rel=0.01)
    assert float(fit.term(1, 5, 100)) == pytest.approx(9e-3, rel=0.01)


def test_what_does_not_vary_gets_no_coefficient() -> None:
    fit = fit_term(observations(1, 1, 0, np.full(50, 2e-3), np.arange(50) // 25))
    assert fit.term.kind == "constant"
    assert fit.term.seconds == pytest.approx(2e-3)


def test_nothing_takes_no_time() -> None:
    fit = fit_term(observations(1, 1, 0, np.zeros(50), 0))
    assert fit.term.seconds == 0.0
    assert fit.paths == ()
