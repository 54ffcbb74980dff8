"""Acceptance per position and its spread are found again, with intervals that cover at their stated rate."""

from __future__ import annotations

import numpy as np
import pytest
from known_pair import ACCEPTANCE, SPREAD, simulated_run

from ssdsim.calibration.acceptance import fit_acceptance
from ssdsim.calibration.behaviours import chance_of_difference
from ssdsim.calibration.runs import DRAFTED
from ssdsim.calibration.trials import Trials, count_trials
from ssdsim.errors import InputError
from ssdsim.theory.acceptance import acceptance_at_quantiles

_SEEDS = range(24)
_Z = 1.96


def _fit(seed: int, lookahead: int = 4, **overrides: object):
    run = simulated_run(seed, mode="sd", num_speculative_tokens=lookahead, num_requests=48, **overrides)
    return fit_acceptance(count_trials([run], DRAFTED))


def test_intervals_cover_the_truth_at_their_rate() -> None:
    # 24 runs x 5 numbers at 95 %: 6 misses expected. Of 120 nearly independent intervals more than 14 miss with a
    # probability below 0.002 (binomial), which is this test's error rate.
    truth = np.append(ACCEPTANCE[:4], SPREAD)
    misses = 0
    for seed in _SEEDS:
        fit = _fit(seed)
        found = np.append(fit.mean, fit.spread)
        misses += int((np.abs(found - truth) > _Z * fit.standard_errors).sum())
    assert misses <= 14


def test_estimates_are_unbiased_where_pooled_shares_are_not() -> None:
    # Requests that accept little fill more rounds: the pooled share of position 1 lies below the mean over requests.
    fits, pooled = [], []
    for seed in _SEEDS:
        run = simulated_run(seed, mode="sd", num_speculative_tokens=4, num_requests=48)
        trials = count_trials([run], DRAFTED)
        fits.append(fit_acceptance(trials).mean[0])
        pooled.append(trials.accepted[:, 0].sum() / trials.reached[:, 0].sum())
    error = np.std(fits, ddof=1) / np.sqrt(len(fits))
    assert abs(np.mean(fits) - ACCEPTANCE[0]) < 3.5 * error
    assert np.mean(pooled) < np.mean(fits)


def test_requests_that_are_alike_have_no_spread() -> None:
    # The likelihood-ratio test errs in 5 % of runs: of 12 runs, more than 4 with a spread have probability < 0.001.
    from known_pair import known_pair

    pair = known_pair()
    pair["behaviours"][0]["acceptance"]["spread"] = 0.0
    spreads = [_fit(seed, pair=pair).spread for seed in range(12)]
    assert sum(spread > 0 for spread in spreads) <= 4


def test_the_same_requests_served_twice_are_no_new_evidence() -> None:
    run = simulated_run(3, mode="sd", num_speculative_tokens=4)
    once, twice = (fit_acceptance(count_trials(runs, DRAFTED)) for runs in ([run], [run, run]))
    assert once.num_requests == twice.num_requests
    assert twice.spread == once.spread
    assert twice.standard_errors.tolist() == pytest.approx(once.standard_errors.tolist(), rel=1e-9)


def test_the_acceptance_length_is_right_where_the_spread_is_no_beta_law() -> None:
    """One request of sixteen accepts .1, the others .8 with K = 4: the profile must give the tokens per round seen.

    The rounds of a request of 100 tokens are 100 / E(a), so the pooled length is 100 x 16 over all rounds: by hand.
    """
    acceptance = np.array([0.1] + [0.8] * 15)[:, None]
    reaching = acceptance ** np.arange(4)
    rounds = 100 / (acceptance ** np.arange(5)).sum(axis=1, keepdims=True)
    lookahead, position = np.full(4, 4), np.arange(4)
    fit = fit_acceptance(Trials(lookahead, position, rounds * reaching, rounds * reaching * acceptance))
    assert fit.spread > 0.1
    quantiles = (np.arange(2000) + 0.5) / 2000
    kinds = acceptance_at_quantiles(fit.mean, fit.spread, quantiles)  # [2000, 4]
    lengths = 1 + np.cumprod(kinds, axis=1).sum(axis=1)
    assert 1 / (1 / lengths).mean() == pytest.approx(1600 / rounds.sum(), rel=0.01)


def test_trials_stop_at_the_last_token_of_a_request() -> None:
    # One token is left: what lies beyond the emitted token is neither accepted nor rejected.
    run = simulated_run(0, mode="sd", num_speculative_tokens=4, workload__output_tokens=1, num_requests=10)
    trials = count_trials([run], DRAFTED)
    assert trials.reached[:, 0].sum() == 10
    assert trials.reached[:, 1:].sum() == 0


def test_lookaheads_are_told_apart_only_where_they_differ() -> None:
    rng = np.random.default_rng(0)
    lookahead, position = np.array([2, 2, 4, 4]), np.array([0, 1, 0, 1])
    reached = np.full((40, 4), 50.0)

    def chance(means: list[float]) -> float:
        accepted = rng.binomial(50, np.tile(means, (40, 1))).astype(float)
        return chance_of_difference(fit_acceptance(Trials(lookahead, position, reached, accepted)))

    assert chance([0.8, 0.7, 0.8, 0.7]) > 0.001
    assert chance([0.85, 0.7, 0.75, 0.7]) < 1e-4  # 10 points apart at an error of about 1.3


def test_without_a_draft_there_is_nothing_to_fit() -> None:
    run = simulated_run(0, mode="ar")
    with pytest.raises(InputError, match="no drafted token"):
        fit_acceptance(count_trials([run], DRAFTED))
