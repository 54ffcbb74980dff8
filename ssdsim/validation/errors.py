"""What the differences between measured and predicted come to: per metric, by cause, over time, and for a choice.

Errors of rates, lengths and times are relative, those of shares are differences. Everything here works on plain
numbers by point, so that measured, simulated and published points go through the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from ssdsim.evaluate import Method
from ssdsim.validation.predictions import METRICS, SHARES, Metrics

CAUSES = ("acceptance", "hits", "latency")
"""Inputs that are swapped in one at a time."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measured point beside its predictions."""

    name: str
    mode: str
    batch_size: int
    temperature: float
    measured: Metrics
    predicted: dict[str, Metrics]
    """By method."""
    swapped: dict[str, float]
    """Predicted tokens per second with the run's own numbers swapped in, by cause, and with `all` of them."""
    drift: float = 0.0
    """Logarithm of the machine's rate then over its mean during calibration, as the anchors tell it."""
    sampling: Metrics = field(default_factory=dict)
    """How surely the run itself knows its metrics (95 %), from its number of requests and rounds."""

    def plain(self) -> dict[str, Any]:
        """As plain data, with the causes of the miss."""
        return {
            "name": self.name,
            "mode": self.mode,
            "batch_size": self.batch_size,
            "temperature": self.temperature,
            "measured": self.measured,
            "sampling": self.sampling,
            "predicted": self.predicted,
            "causes": causes_of(self),
        }


class MetricError(NamedTuple):
    """How far a method is off in one metric over all points that have it."""

    mean: float
    """Of the absolute errors."""
    median: float
    worst: float
    worst_point: str
    bias: float
    """Mean of the signed errors."""
    num_points: int


def error_of(metric: str, predicted: float, measured: float) -> float:
    """Signed error: a difference for a share, relative otherwise."""
    return predicted - measured if metric in SHARES else predicted / measured - 1


def errors_by_metric(points: Sequence[Point], method: str) -> dict[str, MetricError]:
    """The errors of a method; metrics that no point has are absent."""
    found = {}
    for metric in METRICS:
        signed = {
            p.name: error_of(metric, p.predicted[method][metric], p.measured[metric])
            for p in points
            if metric in p.measured and metric in p.predicted.get(method, {})
        }
        if signed:
            found[metric] = _summary(signed)
    return found


def _summary(signed: Mapping[str, float]) -> MetricError:
    absolute = {name: abs(error) for name, error in signed.items()}
    worst = max(absolute, key=lambda name: absolute[name])
    return MetricError(
        mean=fmean(absolute.values()),
        median=median(absolute.values()),
        worst=absolute[worst],
        worst_point=worst,
        bias=fmean(signed.values()),
        num_points=len(signed),
    )


def causes_of(point: Point) -> dict[str, float]:
    """What the miss in tokens per second comes from: parts of log(measured / predicted) that add up to it.

    Each cause is what swapping in the run's own numbers changes. What the machine's drift explains is taken out of
    `latency`. `model` is what the prediction still misses with all the run's own numbers: the round is modelled
    otherwise than it ran. `together` is what the causes do together and not one by one.
    """
    base = point.predicted.get(Method.EXACT, {}).get("tokens_per_s")
    if base is None or "all" not in point.swapped:
        return {}
    parts = {cause: math.log(point.swapped[cause] / base) for cause in CAUSES}
    alone, everything = sum(parts.values()), math.log(point.swapped["all"] / base)
    measured = point.measured["tokens_per_s"]
    return {
        "total": math.log(measured / base),
        **parts,
        "latency": parts["latency"] - point.drift,
        "drift": point.drift,
        "together": everything - alone,
        "model": math.log(measured / point.swapped["all"]),
    }


def mean_causes(points: Sequence[Point]) -> dict[str, float]:
    """Mean absolute size of each cause over the points that have them."""
    each = [causes for point in points if (causes := causes_of(point))]
    return {name: fmean(abs(causes[name]) for causes in each) for name in each[0]} if each else {}


def latency_alone(points: Sequence[Point]) -> float | None:
    """Mean absolute error of the rate where acceptance and hits are the run's own: what is left is time."""
    misses = [abs(p.swapped["tokens"] / p.measured["tokens_per_s"] - 1) for p in points if "tokens" in p.swapped]
    return fmean(misses) if misses else None


def error_without_drift(points: Sequence[Point], method: str) -> float | None:
    """Mean absolute error of the rate, each prediction scaled to the machine's pace then as the anchors tell it."""
    misses = [
        abs(p.predicted[method]["tokens_per_s"] * math.exp(p.drift) / p.measured["tokens_per_s"] - 1)
        for p in points
        if "tokens_per_s" in p.predicted.get(method, {})
    ]
    return fmean(misses) if misses else None


class Drift(NamedTuple):
    """What the repeated anchor says of the machine."""

    num_anchors: int
    noise: dict[str, float]
    """Relative standard deviation of each metric from run to run, around the trend for the rate."""
    trend_per_hour: float
    """Relative change of the anchor's rate per hour."""
    trend_error: float
    """Its standard error."""
    hours: float


def drift_of(anchors: Sequence[tuple[datetime, Metrics]]) -> Drift | None:
    """Trend and noise of the anchors; None where there are fewer than three."""
    if len(anchors) < 3:
        return None
    ordered = sorted(anchors, key=lambda anchor: anchor[0])
    hours = np.array([(when - ordered[0][0]).total_seconds() / 3600 for when, _ in ordered])
    rates = np.log([metrics["tokens_per_s"] for _, metrics in ordered])
    slope, residual = _line(hours, rates)
    freedom = max(len(rates) - 2, 1)
    scatter = float(np.sqrt((residual**2).sum() / freedom))
    spread = float(np.sqrt(((hours - hours.mean()) ** 2).sum()))
    noise = {name: _relative_deviation([m[name] for _, m in ordered]) for name in METRICS if name in ordered[0][1]}
    return Drift(
        num_anchors=len(ordered),
        noise=noise | {"tokens_per_s": scatter},
        trend_per_hour=slope,
        trend_error=scatter / spread if spread else math.inf,
        hours=float(hours[-1]),
    )


def _line(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
    """Slope and residuals of the least-squares line."""
    centred = x - x.mean()
    squares = float((centred**2).sum())
    slope = float((centred * y).sum()) / squares if squares else 0.0
    return slope, y - y.mean() - slope * centred


def _relative_deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return float(np.std(values, ddof=1)) / mean if mean else 0.0


def log_rate_at(when: datetime, anchors: Sequence[tuple[datetime, Metrics]]) -> float:
    """Logarithm of the anchor's rate at a time, interpolated between the anchors around it."""
    ordered = sorted(anchors, key=lambda anchor: anchor[0])
    seconds = [(at - ordered[0][0]).total_seconds() for at, _ in ordered]
    rates = [math.log(metrics["tokens_per_s"]) for _, metrics in ordered]
    return float(np.interp((when - ordered[0][0]).total_seconds(), seconds, rates))


class Choice(NamedTuple):
    """The best point of one load, as predicted and as measured."""

    batch_size: int
    temperature: float
    num_points: int
    chosen: str
    """The point that is predicted to be the best."""
    best: str
    regret: float
    """By how much the measured rate of the chosen point is below that of the best one, relative."""


def choices(points: Sequence[Point], method: str) -> list[Choice]:
    """For every batch size and temperature with several points: whether the prediction picks the right one."""
    groups: dict[tuple[int, float], list[Point]] = {}
    for point in points:
        if "tokens_per_s" in point.predicted.get(method, {}):
            groups.setdefault((point.batch_size, point.temperature), []).append(point)
    found = []
    for (batch_size, temperature), group in sorted(groups.items()):
        if len(group) > 1:
            chosen = max(group, key=lambda p: p.predicted[method]["tokens_per_s"])
            best = max(group, key=lambda p: p.measured["tokens_per_s"])
            regret = 1 - chosen.measured["tokens_per_s"] / best.measured["tokens_per_s"]
            found.append(Choice(batch_size, temperature, len(group), chosen.name, best.name, regret))
    return found
