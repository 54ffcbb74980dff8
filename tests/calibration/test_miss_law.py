"""Hit curves: a power law is found again, and something else is not taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from known_pair import MISS_EXPONENT, MISS_PREFACTOR, simulated_run, simulated_runs

from ssdsim.calibration.guesses import FAN_OUTS, GuessCounts, count_guesses
from ssdsim.calibration.miss_law import fit_hit_curve

_REQUESTS, _GUESSES = 40, 25


def counts_of(ranks: np.ndarray) -> GuessCounts:
    """Counts of ranks [requests, guesses]."""
    fan_outs = np.array(FAN_OUTS)
    misses = (ranks[:, :, None] > fan_outs).sum(axis=1).astype(float)
    return GuessCounts(fan_outs, np.full(misses.shape, float(ranks.shape[1])), misses, ranks.size)


def power_law_ranks(rng: np.random.Generator, prefactor: float, exponent: float) -> np.ndarray:
    """Ranks with P(rank > F) = prefactor F^-exponent, by inverting it."""
    luck = rng.random((_REQUESTS, _GUESSES))
    return np.where(luck > prefactor, 1.0, np.ceil((luck / prefactor) ** (-1 / exponent)))


def test_intervals_cover_and_the_test_of_fit_errs_at_its_rate() -> None:
    # 40 samples: 80 intervals at 95 %, 4 misses expected, more than 11 with probability < 0.002. The test rejects a
    # true law in 1 % of samples: more than 3 of 40 have probability < 0.001.
    rng = np.random.default_rng(7)
    misses = rejected = 0
    for _ in range(40):
        fit = fit_hit_curve(counts_of(power_law_ranks(rng, 0.85, 0.3)))
        rejected += fit.p_value < 0.01
        if fit.curve.kind == "power":
            found = np.array([fit.curve.miss_prefactor, fit.curve.miss_exponent])
            misses += int((np.abs(found - [0.85, 0.3]) > 1.96 * np.sqrt(np.diag(fit.covariance))).sum())
    assert misses <= 11
    assert rejected <= 3


def test_what_is_no_power_law_is_kept_as_a_table() -> None:
    # Ranks that end at 8: the miss probability falls to zero, which no power law does.
    rng = np.random.default_rng(1)
    ranks = np.where(rng.random((_REQUESTS, _GUESSES)) < 0.4, 1, rng.integers(2, 9, (_REQUESTS, _GUESSES)))
    fit = fit_hit_curve(counts_of(ranks))
    assert fit.p_value < 0.01
    assert fit.curve.kind == "table"
    assert fit.curve.hit_probs[8] == 1.0
    assert fit.curve.hit_probs[1] == pytest.approx((ranks == 1).mean())


def test_one_run_with_ranks_gives_the_curve_that_many_fan_outs_give() -> None:
    runs = simulated_runs(5)
    fit = fit_hit_curve(count_guesses(runs, ("after_draft", "rejection")))
    errors = np.sqrt(np.diag(fit.covariance))
    assert fit.curve.kind == "power"
    # 3.5 standard errors: two numbers, error rate below 0.001.
    assert abs(fit.curve.miss_prefactor - MISS_PREFACTOR) < 3.5 * errors[0]
    assert abs(fit.curve.miss_exponent - MISS_EXPONENT) < 3.5 * errors[1]


def test_positions_are_counted_apart() -> None:
    run = simulated_run(2, mode="ssd", fallback__kind="none", fan_out__per_position=4)
    counts = {
        place: count_guesses([run], place)
        for place in (
            ("after_draft", "rejection"),
            ("after_draft", "all_accepted"),
            ("after_fallback", "all_accepted"),
        )
    }
    looked_up = np.isin(run.outcomes["lookup"], (1, 2)).sum()
    assert sum(c.num_guesses for c in counts.values()) == looked_up
    shares = {place: c.misses.sum() / c.trials.sum() for place, c in counts.items()}
    # Where nothing was rejected the draft's favourite is still a candidate (THEORY 4.3).
    assert shares["after_draft", "all_accepted"] < shares["after_draft", "rejection"]


def test_a_replayed_trace_tells_every_fan_out() -> None:
    from known_pair import known_pair

    rng = np.random.default_rng(3)
    pair = known_pair()
    ranks = [[int(r) for r in np.where(rng.random(64) < 0.7, 0, rng.integers(1, 9, 64))] for _ in range(20)]
    pair["behaviours"][0]["rank_trace"] = {"requests": ranks}
    run = simulated_run(0, pair=pair, mode="ssd", num_requests=20)
    counts = count_guesses([run], ("after_draft", "rejection"))
    assert tuple(counts.fan_outs) == FAN_OUTS
    # Ranks of rejected positions are uniform on 1..8 by construction: half of them lie beyond 4.
    share = counts.misses[:, 3].sum() / counts.trials[:, 3].sum()
    assert share == pytest.approx(0.5, abs=3.5 * 0.5 / np.sqrt(counts.num_guesses))


def test_nothing_counted_gives_no_curve() -> None:
    assert fit_hit_curve(count_guesses([simulated_run(0, mode="sd")], ("after_draft", "rejection"))) is None
