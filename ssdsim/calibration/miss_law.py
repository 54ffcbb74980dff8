"""Hit curves from counted guesses: a power law with a prefactor, unless the counts say that it is none.

The miss probability c F^-r is fitted as a binomial with a log link (no logarithm of a zero count is ever taken).
Errors come from resampling requests, and so does the test of fit: the largest standardised deviation of a counted
share from the law, against what resampling alone brings about. Where it fails, the curve is the table of shares, made
monotone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.guesses import GuessCounts
from ssdsim.profile import Counted, PowerLawCurve, TableCurve

FloatArray = NDArray[np.float64]

FEW_TRIALS = 200
"""Fewer guesses than this are few."""
_RESAMPLES = 400
_ITERATIONS = 60
_DAMPING = 0.7
_REJECTED_BELOW = 0.01
"""Probability of so large a deviation from the law below which it is taken for wrong."""
_MATTERS_FROM = 0.01
"""Deviations of the miss probability smaller than this are no reason to give the law up."""
_MOST_TABLED = 32
"""The table's last fan-out."""


class MissLawFit(NamedTuple):
    """A fitted hit curve."""

    curve: PowerLawCurve | TableCurve
    paths: tuple[str, ...]
    """Estimated fields of the curve."""
    covariance: FloatArray
    """[paths, paths]"""
    p_value: float
    """Of the test that the counts follow a power law; nan where it cannot be tested."""
    largest_deviation: float
    """Of a counted share of misses from the law."""
    num_trials: int
    num_requests: int


def fit_hit_curve(counts: GuessCounts, seed: int = 0) -> MissLawFit | None:
    """The hit curve behind `counts`; None where nothing was counted."""
    if not counts.num_guesses:
        return None
    weights = resamples(counts.num_requests, seed)
    trials, misses = counts.resampled(np.ones((1, counts.num_requests)))
    if len(counts.fan_outs) < 2 or not misses.any():
        return _tabled(counts, weights, float("nan"), float("nan"))
    law = fit_law(counts.fan_outs, trials, misses)
    laws = fit_law(counts.fan_outs, *counts.resampled(weights))
    p_value, deviation = _test_of_fit(counts, law, laws, weights)
    if p_value < _REJECTED_BELOW and deviation > _MATTERS_FROM:
        return _tabled(counts, weights, p_value, deviation)
    prefactor, exponent = (float(value) for value in law[0])
    return MissLawFit(
        curve=PowerLawCurve(miss_exponent=exponent, miss_prefactor=prefactor, counted=_counted(counts)),
        paths=("miss_prefactor", "miss_exponent"),
        covariance=np.cov(laws, rowvar=False),
        p_value=p_value,
        largest_deviation=deviation,
        num_trials=counts.num_guesses,
        num_requests=counts.num_requests,
    )


def resamples(num_requests: int, seed: int) -> FloatArray:
    """[resamples, requests]: how often each request is taken."""
    generator = np.random.default_rng(seed)
    weights: FloatArray = generator.multinomial(
        num_requests, np.full(num_requests, 1 / num_requests), size=_RESAMPLES
    ).astype(np.float64)
    return weights


def fit_law(fan_outs: NDArray[np.int64], trials: FloatArray, misses: FloatArray) -> FloatArray:
    """(prefactor, exponent) [samples, 2] by iterated weighted least squares with a log link; prefactor at most 1."""
    slope = np.log(fan_outs.astype(np.float64))
    share = np.clip((misses.sum(axis=1) + 0.5) / (trials.sum(axis=1) + 1), 1e-6, 1 - 1e-6)
    log_prefactor, exponent = np.log(share), np.full(len(share), 0.1)
    for _ in range(_ITERATIONS):
        linear = np.minimum(log_prefactor[:, None] - exponent[:, None] * slope, -1e-6)
        miss = np.exp(linear)
        weight = trials * miss / (1 - miss)
        target = linear + np.divide(misses - trials * miss, trials * miss, out=np.zeros_like(miss), where=trials > 0)
        sums = np.maximum(weight.sum(axis=1), 1e-300)  # a resample may hold no trial
        centre = (weight * slope).sum(axis=1) / sums
        spread = (weight * (slope - centre[:, None]) ** 2).sum(axis=1)
        steepness = (weight * (slope - centre[:, None]) * target).sum(axis=1) / np.maximum(spread, 1e-12)
        level = (weight * target).sum(axis=1) / sums - steepness * centre
        through_one = (weight * slope * target).sum(axis=1) / np.maximum((weight * slope**2).sum(axis=1), 1e-12)
        steepness = np.where(level > 0, through_one, steepness)
        log_prefactor += _DAMPING * (np.clip(level, -30.0, 0.0) - log_prefactor)
        exponent += _DAMPING * (np.clip(-steepness, 1e-6, 30.0) - exponent)
    return np.stack([np.exp(log_prefactor), exponent], axis=1)


def _test_of_fit(counts: GuessCounts, law: FloatArray, laws: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """(p-value, largest deviation of a share of misses from the law)."""
    if len(counts.fan_outs) < 3 or counts.num_requests < 3:
        return float("nan"), float("nan")
    deviation = _deviations(counts, np.ones((1, counts.num_requests)), law)[0]
    resampled = _deviations(counts, weights, laws)
    error = resampled.std(axis=0)
    known = error > 1e-12
    scatter = (np.abs(resampled - deviation)[:, known] / error[known]).max(axis=1, initial=0.0)
    statistic = float((np.abs(deviation)[known] / error[known]).max(initial=0.0))
    return float((1 + (scatter >= statistic).sum()) / (1 + len(scatter))), float(np.abs(deviation).max())


def _deviations(counts: GuessCounts, weights: FloatArray, laws: FloatArray) -> FloatArray:
    """[samples, fan-outs]: counted share of misses less the law's."""
    expected = laws[:, :1] * counts.fan_outs.astype(np.float64) ** -laws[:, 1:]
    deviations: FloatArray = _shares(counts, weights) - expected
    return deviations


def _shares(counts: GuessCounts, weights: FloatArray) -> FloatArray:
    """[samples, fan-outs]: share of misses; that of all requests where a sample has no trial."""
    trials, misses = counts.resampled(weights)
    overall = counts.misses.sum(axis=0) / counts.trials.sum(axis=0)
    return np.where(trials > 0, misses / np.maximum(trials, 1e-300), overall)


def _tabled(counts: GuessCounts, weights: FloatArray, p_value: float, deviation: float) -> MissLawFit:
    """The table of shares: never decreasing, between counted fan-outs straight in the logarithm."""
    tables = np.stack([_table(counts, row) for row in _shares(counts, weights)])
    overall = _table(counts, _shares(counts, np.ones((1, counts.num_requests)))[0])
    return MissLawFit(
        curve=TableCurve(hit_probs=(0.0, *overall.tolist()), counted=_counted(counts)),
        paths=tuple(f"hit_probs.{i + 1}" for i in range(len(overall))),
        covariance=np.atleast_2d(np.cov(tables, rowvar=False)),
        p_value=p_value,
        largest_deviation=deviation,
        num_trials=counts.num_guesses,
        num_requests=counts.num_requests,
    )


def _table(counts: GuessCounts, miss: FloatArray) -> FloatArray:
    """Hit probabilities at fan-outs 1, 2, ..., last counted one. Below the first counted one the curve is a chord."""
    fan_outs = counts.fan_outs[counts.fan_outs <= _MOST_TABLED]
    hits = 1 - _non_increasing(miss[: len(fan_outs)], counts.trials.sum(axis=0)[: len(fan_outs)])
    every = np.arange(1, fan_outs[-1] + 1)
    between = np.interp(np.log(every), np.log(fan_outs), hits)
    chord: FloatArray = np.where(every < fan_outs[0], hits[0] * every / fan_outs[0], between)
    return chord


def _non_increasing(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The closest sequence that never rises: neighbours that do are pooled."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            (last, w_last, n_last), (before, w_before, n_before) = blocks.pop(), blocks.pop()
            total = w_last + w_before
            blocks.append(((last * w_last + before * w_before) / total, total, n_last + n_before))
    return np.repeat([value for value, _, _ in blocks], [count for _, _, count in blocks])


def _counted(counts: GuessCounts) -> Counted:
    return Counted(
        fan_outs=tuple(counts.fan_outs.tolist()),
        trials=tuple(counts.trials.sum(axis=0).astype(int).tolist()),
        misses=tuple(counts.misses.sum(axis=0).astype(int).tolist()),
    )
