"""One unknown number from one observed number, by bracketing.

Used where a profile lacks a single parameter and one published figure is to fix it (`experiments.published`), and
wherever else a prediction depends on one scalar without jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from ssdsim.errors import DomainError


def calibrate_scalar(
    predict: Callable[[float], float],
    observed: float,
    low: float,
    high: float,
    *,
    relative_tolerance: float = 1e-9,
) -> float:
    """The value between `low` and `high` at which `predict(value)` equals `observed`.

    `predict` must be continuous; where it crosses `observed` several times, one crossing is found, to
    `relative_tolerance` of the bracket's width. Raises `DomainError` where the bracket is empty or the predictions at
    its ends do not enclose what was observed: then no value in the assumed range explains it.
    """
    if not (isfinite(low) and isfinite(high) and low < high):
        raise DomainError("low, high", "must be two finite numbers, the first below the second", (low, high))
    ends = predict(low) - observed, predict(high) - observed
    if not (min(ends) <= 0.0 <= max(ends)):
        raise DomainError(
            "observed",
            f"must lie between the predictions at the ends of the bracket, {ends[0] + observed:.6g} and "
            f"{ends[1] + observed:.6g}: widen [{low:g}, {high:g}] or doubt the model",
            observed,
        )
    from scipy.optimize import brentq

    return float(brentq(lambda value: predict(value) - observed, low, high, xtol=relative_tolerance * (high - low)))
