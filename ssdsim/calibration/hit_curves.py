"""A hit curve as people read it: shares of hits by fan-out, and the law 1 - c F^-r fitted to them, with intervals.

From the bonus ranks of an engine's or the simulator's runs here (one run gives the whole curve), from observed texts
in `forced`. Intervals come from resampling requests. Profiles are made by `miss_law`, which decides between law and
table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.guesses import POSITIONS, GuessCounts, count_guesses
from ssdsim.calibration.miss_law import fit_hit_curve, fit_law
from ssdsim.calibration.runs import Run
from ssdsim.quantities import Quantity

FloatArray = NDArray[np.float64]

LEAST_TRIALS = 1.0
"""Bonus tokens below which a curve says nothing."""
_RESAMPLES = 400
_TAILS = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True)
class LawEstimate:
    """The law 1 - c F^-r, fitted by binomial likelihood."""

    miss_prefactor: Quantity
    miss_exponent: Quantity
    p_value: float
    """Of the test of fit; nan where it cannot be made."""
    largest_deviation: float
    """Of a counted share of misses from the law; nan where it cannot be tested."""
    is_refuted: bool
    """Whether the counts differ from the law by more than chance and by more than a hundredth: use the table then."""


@dataclass(frozen=True, kw_only=True)
class CurveEstimate:
    """One hit curve."""

    fan_outs: tuple[int, ...]
    hit_probs: tuple[Quantity, ...]
    """At these fan-outs."""
    law: LawEstimate | None
    """None where there are no misses to fit it to."""

    def at(self, fan_out: int) -> Quantity | None:
        """The share of hits with `fan_out` candidates, where it was counted."""
        found = zip(self.fan_outs, self.hit_probs, strict=True)
        return next((quantity for known, quantity in found if known == fan_out), None)


def hit_curves_of(runs: Sequence[Run], *, seed: int = 0) -> dict[tuple[str, str], CurveEstimate]:
    """The curves of SSD runs by (`after_draft` | `after_fallback`, `rejection` | `all_accepted`), as far as seen."""
    curves = {}
    for place in POSITIONS:
        counts = count_guesses(runs, place)
        if counts.num_guesses >= LEAST_TRIALS:
            resamples = resamples_of(counts.num_requests, seed)
            hits = counts.trials - counts.misses
            curves[place] = CurveEstimate(
                fan_outs=tuple(counts.fan_outs.tolist()),
                hit_probs=ratios(hits, counts.trials, resamples),
                law=estimate_law(counts, resamples),
            )
    return curves


def estimate_law(counts: GuessCounts, resamples: FloatArray) -> LawEstimate | None:
    """The law behind `counts`, fitted to them and to each of `resamples`."""
    if counts.misses.sum() < LEAST_TRIALS or len(counts.fan_outs) < 2:
        return None
    fit = fit_hit_curve(counts)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample may hold no miss: it says nothing
        prefactor, exponent = fit_law(counts.fan_outs, *counts.resampled(_all_and(resamples))).T
    return LawEstimate(
        miss_prefactor=quantity_of(prefactor),
        miss_exponent=quantity_of(exponent),
        p_value=math.nan if fit is None else fit.p_value,
        largest_deviation=math.nan if fit is None else fit.largest_deviation,
        is_refuted=fit is not None and fit.curve.kind != "power",
    )


def ratios(parts: FloatArray, wholes: FloatArray, resamples: FloatArray) -> tuple[Quantity, ...]:
    """Sum over sum for each column of `parts` [requests, columns]; `wholes` likewise or [requests, 1]."""
    weights = _all_and(resamples)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (weights @ parts) / (weights @ wholes)
    return tuple(quantity_of(column) for column in found.T)


def quantity_of(values: FloatArray) -> Quantity:
    """The first value, between the percentiles of the others, which come from resampled requests."""
    known = values[1:][np.isfinite(values[1:])]
    if len(known) < 2:
        return Quantity(float(values[0]))
    low, high = np.percentile(known, _TAILS)
    return Quantity(float(values[0]), float(low), float(high))


def resamples_of(num_requests: int, seed: int) -> FloatArray:
    """[resamples, requests]: how often each request is taken; none where one request alone is known."""
    if num_requests < 2:
        return np.zeros((0, num_requests))
    shares = np.full(num_requests, 1 / num_requests)
    return np.random.default_rng(seed).multinomial(num_requests, shares, size=_RESAMPLES).astype(np.float64)


def _all_and(resamples: FloatArray) -> FloatArray:
    """Weights of the requests as they are, then of the resamples."""
    return np.concatenate([np.ones((1, resamples.shape[1])), resamples])
