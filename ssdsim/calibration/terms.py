"""From observed seconds to one cost term: robust regression to a linear form, or to a table where no line fits.

Errors are taken relative to the prediction (a phase of 1 ms counts as much as one of 10 ms), outliers are bounded
(Huber), and the coefficients are then scaled so that predicted and observed time agree in sum: a rate depends on the
mean, outliers included. No coefficient is negative. Used by `latency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ssdsim.costs.terms import ConstantTerm, CostTerm, LinearTerm, SumTerm, TableTerm

FloatArray = NDArray[np.float64]

_HUBER = 1.345
_ITERATIONS = 12
_DISTURBANCE = 10.0
"""What lasts longer than this many times its prediction is a disturbance of the machine, cut to that."""
_COLLINEAR = 1e-3
"""A column of which less than this share is not a combination of the others cannot be told from them."""
_DEVIATION = 0.015
"""Relative deviation of the means of shapes from a line, noise included, up to which it is good enough."""
_NEGLIGIBLE = 1e-6
"""Contributions and errors below this share of the time are rounding."""
_LEAST_SHAPES = 3
_BETTER = 0.75
"""A table must leave less than this share of a line's deviation: by its many numbers alone it leaves less."""
_MOST_KNOTS = 10


class Observations(NamedTuple):
    """Durations of one phase; all arrays of one length."""

    sequences: FloatArray
    query_tokens: FloatArray
    context_tokens: FloatArray
    seconds: FloatArray
    cluster: NDArray[np.int64]
    """Equal for observations made so close together that they share what disturbs the machine."""

    @property
    def size(self) -> int:
        """Number of observations."""
        return len(self.seconds)


@dataclass(frozen=True, kw_only=True)
class TermFit:
    """A fitted cost term."""

    term: CostTerm
    paths: tuple[str, ...]
    """Fields of the term that were estimated, relative to it."""
    covariance: FloatArray
    """[paths, paths]"""
    noise: float
    """Coefficient of variation of single observations around the prediction."""
    misfit: float
    """Root mean square of the relative deviation of cell means, beyond what their noise explains."""
    num_observations: int


def observations(
    sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike, seconds: ArrayLike, cluster: ArrayLike
) -> Observations:
    """Bring everything to arrays of the length of `seconds`."""
    time = np.asarray(seconds, dtype=np.float64)
    rows, query, context = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), time.shape)
        for v in (sequences, query_tokens, context_tokens)
    )
    return Observations(rows, query, context, time, np.broadcast_to(np.asarray(cluster, np.int64), time.shape))


def joined(parts: Sequence[Observations]) -> Observations:
    """All observations of several runs; clusters of different parts stay apart."""
    offsets = np.cumsum([0, *(int(part.cluster.max(initial=-1)) + 1 for part in parts)])
    moved = [part._replace(cluster=part.cluster + offset) for part, offset in zip(parts, offsets, strict=False)]
    return Observations(*(np.concatenate(columns) for columns in zip(*moved, strict=True)))


def fit_term(seen: Observations) -> TermFit:
    """The cost term that explains `seen` (at least one observation)."""
    total = float(seen.seconds.sum())
    if total <= 0:
        return fit_of(ConstantTerm(seconds=0.0), (), np.zeros((0, 0)), seen)
    linear = _fit_linear(seen)
    off = _deviation(linear.term, seen)
    if off <= _DEVIATION or len(np.unique(seen.query_tokens)) < _LEAST_SHAPES:
        return linear
    table = _fit_table(seen)
    return table if _deviation(table.term, seen) < _BETTER * off else linear


def _fit_linear(seen: Observations) -> TermFit:
    columns = {
        "base_s": np.ones(seen.size),
        "per_query_token_s": seen.query_tokens,
        "per_sequence_s": seen.sequences,
        "per_context_token_s": seen.sequences * seen.context_tokens,
    }
    names = independent(columns)
    values, covariance = regress(np.stack([columns[name] for name in names], axis=1), seen)
    if names == ["base_s"]:
        return fit_of(ConstantTerm(seconds=values[0]), ("seconds",), covariance, seen)
    term = LinearTerm.model_validate(dict(zip(names, values, strict=True)))
    return fit_of(term, tuple(names), covariance, seen)


def _fit_table(seen: Observations) -> TermFit:
    """A table over query tokens that never falls, plus what rows and their contexts add."""
    knots = _knots(seen.query_tokens)
    rises = np.tri(len(knots)).T
    """[i, j]: whether the rise at knot i has happened at knot j."""
    columns = {f"terms.0.seconds.{i}": np.interp(seen.query_tokens, knots, row) for i, row in enumerate(rises)}
    extra = {
        "terms.1.per_sequence_s": seen.sequences,
        "terms.1.per_context_token_s": seen.sequences * seen.context_tokens,
    }
    names = [*columns, *(name for name in independent(columns | extra) if name in extra)]
    values, covariance = regress(np.stack([(columns | extra)[name] for name in names], axis=1), seen)
    summed = np.eye(len(names))
    summed[: len(knots), : len(knots)] = rises.T
    values, covariance = (summed @ values).tolist(), summed @ covariance @ summed.T
    table = TableTerm(axes=("query_tokens",), grid=(tuple(knots.tolist()),), seconds=tuple(values[: len(knots)]))
    beside = {name.rpartition(".")[2]: v for name, v in zip(names[len(knots) :], values[len(knots) :], strict=True)}
    return fit_of(SumTerm(terms=(table, LinearTerm.model_validate(beside))), tuple(names), covariance, seen)


def _knots(query_tokens: FloatArray) -> FloatArray:
    """Widths that were seen, thinned out where there are many."""
    widths: FloatArray = np.unique(query_tokens)
    if len(widths) <= _MOST_KNOTS:
        return widths
    wanted = np.geomspace(widths[0], widths[-1], _MOST_KNOTS)
    thinned: FloatArray = widths[np.unique(np.abs(widths[:, None] - wanted).argmin(axis=0))]
    return thinned


def independent(columns: dict[str, FloatArray]) -> list[str]:
    """Names of the columns that say something which those before them do not."""
    kept: list[str] = []
    basis = np.zeros((len(next(iter(columns.values()))), 0))
    for name, column in columns.items():
        length = float(np.linalg.norm(column))
        if length == 0:
            continue
        rest = column / length
        rest = rest - basis @ (basis.T @ rest)
        rest = rest - basis @ (basis.T @ rest)
        size = float(np.linalg.norm(rest))
        if size > _COLLINEAR:
            kept.append(name)
            basis = np.append(basis, rest[:, None] / size, axis=1)
    return kept


def regress(design: FloatArray, seen: Observations) -> tuple[list[float], FloatArray]:
    """Coefficients (none negative) and their robust covariance; one on the boundary is taken as certain."""
    predicted = np.full(seen.size, max(float(np.median(seen.seconds)), float(seen.seconds.mean()) * 1e-3))
    bounded = np.ones(seen.size)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    values = np.zeros(design.shape[1])
    for _ in range(_ITERATIONS):
        values = _non_negative(design / scale, seen.seconds, np.sqrt(bounded) / predicted) / scale
        predicted = np.maximum(design @ values, predicted.mean() * 1e-3)
        deviation = np.abs(seen.seconds / predicted - 1)
        typical = 1.4826 * float(np.median(deviation)) + 1e-9
        bounded = np.minimum(1.0, _HUBER * typical / np.maximum(deviation, 1e-12))
    observed = np.minimum(seen.seconds, _DISTURBANCE * predicted)
    factor = float(observed.sum() / (design @ values).sum())
    values = values * factor
    values[values * np.abs(design).max(axis=0) < _NEGLIGIBLE * observed.mean()] = 0.0
    return values.tolist(), _covariance(design, values, observed, seen.cluster)


def _non_negative(design: FloatArray, seconds: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least squares without negative coefficients, on the small triangular system."""
    from scipy.optimize import nnls

    triangle = np.linalg.qr(np.append(design, seconds[:, None], axis=1) * weights[:, None], mode="r")
    found: FloatArray = nnls(np.asarray(triangle)[:, :-1], np.asarray(triangle)[:, -1])[0]
    return found


def _covariance(
    design: FloatArray, values: FloatArray, observed: FloatArray, cluster: NDArray[np.int64]
) -> FloatArray:
    free = np.flatnonzero(values > 0)
    predicted = np.maximum(design @ values, observed.mean() * 1e-3)
    scale = np.abs(design[:, free]).max(axis=0)
    weighted = design[:, free] / scale / predicted[:, None]
    bread = np.linalg.pinv(weighted.T @ weighted)
    _, group = np.unique(cluster, return_inverse=True)
    scores = np.zeros((group.max() + 1, len(free)))
    np.add.at(scores, group, weighted * (observed / predicted - 1)[:, None])
    small_sample = len(scores) / max(len(scores) - len(free), 1)
    relative = bread @ (scores.T @ scores) @ bread * small_sample
    certain = np.sqrt(np.diagonal(relative)) < _NEGLIGIBLE * predicted.mean()
    relative[certain, :] = relative[:, certain] = 0.0
    result = np.zeros((len(values), len(values)))
    result[np.ix_(free, free)] = relative / np.outer(scale, scale)
    return result


def fit_of(term: CostTerm, paths: tuple[str, ...], covariance: FloatArray, seen: Observations) -> TermFit:
    """The term with its scatter around `seen`; `covariance` [paths, paths]."""
    predicted = np.asarray(term(seen.sequences, seen.query_tokens, seen.context_tokens))
    observed = np.minimum(seen.seconds, _DISTURBANCE * predicted)
    ratio = np.divide(observed, predicted, out=np.ones(seen.size), where=predicted > 0)
    return TermFit(
        term=term,
        paths=paths,
        covariance=covariance,
        noise=_noise(ratio, seen.cluster),
        misfit=_misfit(ratio, seen),
        num_observations=seen.size,
    )


def _deviation(term: CostTerm, seen: Observations) -> float:
    """Root mean square of the relative deviation of the means of shapes (rows, query tokens), by observations."""
    predicted = np.asarray(term(seen.sequences, seen.query_tokens, seen.context_tokens))
    observed = np.minimum(seen.seconds, _DISTURBANCE * predicted)
    ratio = np.divide(observed, predicted, out=np.ones(seen.size), where=predicted > 0)
    _, cell = np.unique(np.stack([seen.sequences, seen.query_tokens], axis=1), axis=0, return_inverse=True)
    size = np.bincount(cell.ravel())
    off = np.bincount(cell.ravel(), ratio) / size - 1
    return float(np.sqrt((off**2 * size).sum() / size.sum()))


def _noise(ratio: FloatArray, cluster: NDArray[np.int64]) -> float:
    """Spread of single observations around the mean of their cluster: the machine's drift is no jitter."""
    _, group, count = np.unique(cluster, return_inverse=True, return_counts=True)
    within = ratio - (np.bincount(group, ratio) / count)[group]
    freedom = len(ratio) - len(count)
    return float(np.sqrt(within @ within / freedom)) if freedom > 0 else 0.0


def _misfit(ratio: FloatArray, seen: Observations) -> float:
    """Deviation of the means of shapes from the prediction, less what noise and the runs' own pace explain."""
    _, cluster = np.unique(seen.cluster, return_inverse=True)
    _, cell = np.unique(np.stack([seen.sequences, seen.query_tokens], axis=1), axis=0, return_inverse=True)
    cell = cell.ravel()
    _, group = np.unique(cell * (cluster.max() + 1) + cluster, return_inverse=True)
    count = np.bincount(group)
    mean = np.bincount(group, ratio) / count  # of each shape in each cluster
    of_cell = np.zeros(len(count), np.int64)
    of_cell[group] = cell
    num_groups, size = np.bincount(of_cell), np.bincount(cell)
    cell_mean = np.bincount(cell, ratio) / size
    within = float(((ratio - mean[group]) ** 2).sum()) / max(len(ratio) - len(count), 1)
    between = _between(mean - cell_mean[of_cell], num_groups, within / count)
    explained = within / size + between / num_groups
    squared = float((((cell_mean - 1) ** 2 - explained) * size).sum() / size.sum())
    return float(np.sqrt(max(squared, 0.0)))


def _between(deviation: FloatArray, num_groups: NDArray[np.int64], noise: FloatArray) -> float:
    """Variance between clusters of one shape; 0 where no shape was seen in two clusters."""
    freedom = int((num_groups - 1).sum())
    return max(float((deviation**2 - noise).sum()) / freedom, 0.0) if freedom > 0 else 0.0
