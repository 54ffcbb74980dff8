"""Chains of K equal steps: what is told apart by several K, and what is not by one."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.calibration.chains import Chains, fit_chains, joined_chains
from ssdsim.calibration.terms import observations

NOISE = 0.05


def chains(num_steps: int, rows: int, start_s: float, step_s: float, seed: int) -> Chains:
    """400 chains with 5 % of noise."""
    rng = np.random.default_rng([seed, num_steps, rows])
    seconds = (start_s + num_steps * step_s) * (1 + NOISE * rng.standard_normal(400))
    return Chains(observations(rows, rows, 100.0, seconds, np.arange(400) // 25), np.full(400, num_steps))


def test_several_lookaheads_tell_start_and_step_apart() -> None:
    """Start .5 + .1 ms a row, step .3 + .05 ms a row; 3,200 chains leave some 3 % on the start, 1 % on the step."""
    parts = [
        chains(num_steps, rows, 5e-4 + 1e-4 * rows, 3e-4 + 5e-5 * rows, seed=1)
        for num_steps in (1, 2, 5, 8)
        for rows in (1, 6)
    ]
    start, step = fit_chains(joined_chains(parts))
    assert start is not None
    for rows in (1, 3, 6):
        assert float(start.term(rows, rows, 100.0)) == pytest.approx(5e-4 + 1e-4 * rows, rel=0.1)
        assert float(step.term(rows, rows, 100.0)) == pytest.approx(3e-4 + 5e-5 * rows, rel=0.03)
    assert step.misfit < 0.01


def test_a_single_lookahead_charges_its_steps_with_everything() -> None:
    start, step = fit_chains(chains(4, 2, 8e-4, 3e-4, seed=2))
    assert start is None
    assert float(step.term(2, 2, 100.0)) == pytest.approx((8e-4 + 4 * 3e-4) / 4, rel=0.01)


def test_no_start_is_found_where_there_is_none() -> None:
    """At two standard errors one seed in forty would find one; none of these four does, and the step is right."""
    for seed in range(3, 7):
        start, step = fit_chains(joined_chains([chains(num_steps, 2, 0.0, 3e-4, seed) for num_steps in (1, 4, 8)]))
        assert start is None
        assert float(step.term(2, 2, 100.0)) == pytest.approx(3e-4, rel=0.01)
