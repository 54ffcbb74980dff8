"""Where the fast fallback overtakes the neural one in a sweep over batch size and fallback, beside what theory says.

Theorem 17 answers this with b*; the sweep's own methods answer it by where their rates cross, and a threshold on the
number of misses does better than either fallback around that place (THEORY 6).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.design_point import resolve
from ssdsim.exact import critical_batch_sizes
from ssdsim.exact.fallbacks import CriticalBatchSizes
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import Columns
from ssdsim.theory.fallback import CriticalBatchSize

FloatArray = NDArray[np.float64]

_BATCH, _FALLBACK = "workload.batch_size", "drafting.fallback.kind"


class Found(NamedTuple):
    """What one method of a sweep says."""

    method: str
    crossing: float | None
    """Batch size, between grid points, from which proposing nothing is the faster one; None if it never is."""
    threshold_gain: float | None
    """Largest relative gain of the threshold policy over the better of the two; None if it was not swept."""
    threshold_gain_at: int | None
    """The batch size of that gain."""


class Crossing(NamedTuple):
    """Theory and sweep side by side."""

    theory: CriticalBatchSizes
    found: tuple[Found, ...]

    def lines(self) -> list[str]:
        """What a person reads."""
        scanned = self.theory.scanned
        lines = [
            f"b* as printed (Theorem 17, one hit rate for both): {_said(self.theory.printed)}",
            f"b* with each fallback's own hit rate: {_said(self.theory.consistent)}",
            f"first batch where the exact model prefers the fast one: {scanned if scanned is not None else 'none'}",
        ]
        for found in self.found:
            where = "no crossing" if found.crossing is None else f"rates cross at batch {found.crossing:.1f}"
            gain = found.threshold_gain
            more = "" if gain is None else f"; a threshold adds up to {gain:.1%} (batch {found.threshold_gain_at})"
            lines.append(f"{found.method}: {where}{more}")
        return lines


def crossing_of(plan: SweepPlan, table: Columns) -> Crossing | None:
    """The crossing in a sweep over batch size and fallback alone; None for any other sweep."""
    columns = plan.grid.columns
    if set(columns) != {_BATCH, _FALLBACK} or not {"jit", "none"} <= set(columns[_FALLBACK][1]):
        return None
    (batch_axis, batches), (fallback_axis, kinds) = columns[_BATCH], columns[_FALLBACK]
    shape = [len(axis) for axis in plan.grid.axes]
    rates = table["tokens_per_s"].reshape([*shape, len(plan.methods)])
    rates = np.moveaxis(rates, (fallback_axis, batch_axis), (0, 1))
    order = np.argsort(batches)
    sizes = np.asarray(batches, dtype=float)[order]
    by_kind = {str(kind): rates[i][order] for i, kind in enumerate(kinds)}
    found = tuple(
        _found(str(method), sizes, {kind: rate[:, m] for kind, rate in by_kind.items()})
        for m, method in enumerate(plan.methods)
    )
    return Crossing(critical_batch_sizes(resolve(plan.scenario(0)), limit=int(sizes[-1])), found)


def _found(method: str, sizes: FloatArray, rates: dict[str, FloatArray]) -> Found:
    lead = rates["none"] / rates["jit"] - 1.0
    best = np.maximum(rates["none"], rates["jit"])
    if "threshold" not in rates or np.isnan(rates["threshold"]).all():
        return Found(method, _first_crossing(sizes, lead), None, None)
    gains = rates["threshold"] / best - 1.0
    at = int(np.nanargmax(gains))
    return Found(method, _first_crossing(sizes, lead), float(gains[at]), int(sizes[at]))


def _first_crossing(sizes: FloatArray, lead: FloatArray) -> float | None:
    """Where `lead` stays above zero from, by linear interpolation; it may touch zero by chance before."""
    behind = np.flatnonzero(~(lead > 0))
    if behind.size == 0:
        return float(sizes[0])
    last = int(behind[-1])
    if last == len(sizes) - 1 or np.isnan(lead[last]):
        return None
    share = -lead[last] / (lead[last + 1] - lead[last])
    return float(sizes[last] + share * (sizes[last + 1] - sizes[last]))


def _said(b_star: CriticalBatchSize) -> str:
    return str(b_star.kind).replace("_", " ") if b_star.batch_size is None else f"{b_star.batch_size:.1f}"
