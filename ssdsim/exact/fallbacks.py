"""Which fallback a scenario really uses, and where the fast one overtakes the slow one.

`auto` and `threshold` are rules over rates. They are resolved on the exact model of the scenario's own batch (the
best threshold on endless requests), and the executor, the simulator and the exact model share the result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssdsim.design_point import DesignPoint
from ssdsim.exact.rounds import Setting, first_point, setting_of, ssd_times
from ssdsim.exact.slots import endless_chain, endless_numbers, slot_numbers
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.theory.fallback import CriticalBatchSize, critical_batch_size, critical_batch_size_printed
from ssdsim.theory.round_time import RoundTimes, mean_round
from ssdsim.theory.threshold import ThresholdPolicies, threshold_policies


class ResolvedFallback(NamedTuple):
    """What answers misses once rules are resolved."""

    kind: FallbackKind
    """One action, or `threshold`."""
    threshold: int | None
    """Misses from which `threshold` drafts just in time."""


class CriticalBatchSizes(NamedTuple):
    """b*: the batch size from which the fast fallback is the better one."""

    printed: CriticalBatchSize
    """Theorem 17 with the fast fallback's hit rate for both."""
    consistent: CriticalBatchSize
    """Each fallback with the hit rate that it brings about (THEORY 6.1)."""
    scanned: int | None
    """The first batch size at which the exact model, with its own times, prefers the fast one; None if none does."""


def resolve_fallback(point: DesignPoint) -> ResolvedFallback:
    """`auto` becomes the better of drafting just in time and proposing nothing, `threshold` its best threshold."""
    choice = point.scenario.drafting.fallback
    if choice.kind is FallbackKind.AUTO:
        fast = _fast_is_better(point, point.scenario.workload.batch_size)
        return ResolvedFallback(FallbackKind.NONE if fast else FallbackKind.JIT, None)
    if choice.kind is FallbackKind.THRESHOLD and choice.threshold is None:
        return ResolvedFallback(FallbackKind.THRESHOLD, int(thresholds(point).best_threshold))
    return ResolvedFallback(choice.kind, choice.threshold)


def thresholds(point: DesignPoint) -> ThresholdPolicies:
    """Rates of every threshold for the scenario's batch, endless (THEORY 6.2)."""
    chain = endless_chain(point, FallbackKind.NONE)
    fast, drafting = (_endless_times(point, kind) for kind in (FallbackKind.NONE, FallbackKind.JIT))
    mixed = RoundTimes(
        window_s=fast.window_s,
        build_s=fast.build_s,
        fallback_s=drafting.fallback_s,
        overhead_s=fast.overhead_s,
        on_late=fast.on_late,
    )
    return threshold_policies(chain, fast, mixed)


def critical_batch_sizes(point: DesignPoint, limit: int = 64) -> CriticalBatchSizes:
    """b* as printed, consistently, and by scanning the exact model over batch sizes 1..`limit`.

    The formulas take every time relative to one verification of the scenario's own batch.
    """
    chain = endless_chain(point, FallbackKind.NONE)
    times = _endless_times(point, FallbackKind.JIT)
    unit_s = float(times.window_s[..., -1])
    jit = float(times.fallback_s[..., 1]) / unit_s
    hit_rate = float(chain.cache_hit_rate)
    lengths = float(chain.tokens_drafted), float(chain.tokens_fallback)
    return CriticalBatchSizes(
        printed=critical_batch_size_printed(hit_rate, jit, *lengths),
        consistent=critical_batch_size(float(chain.hit_after_draft), float(chain.hit_after_fallback), jit, *lengths),
        scanned=next((b for b in range(1, limit + 1) if _fast_is_better(point, b)), None),
    )


def _fast_is_better(point: DesignPoint, batch_size: int) -> bool:
    return _rate(point, FallbackKind.NONE, batch_size) > _rate(point, FallbackKind.JIT, batch_size)


def _rate(point: DesignPoint, kind: FallbackKind, batch_size: int | None = None) -> float:
    """Tokens per second of one sequence of the saturated batch; a replayed trace is taken at its acceptance."""
    replayed = point.behaviour.rank_trace is not None
    slots = endless_numbers(point, kind) if replayed else slot_numbers([point], Mode.SSD, kind)
    times, gaps = ssd_times(slots, _setting(point, kind, batch_size), point.scenario.costs, _devices(point))
    return float(np.squeeze(slots.tokens_per_round / mean_round(slots.law, times, gaps).round_s))


def _setting(point: DesignPoint, kind: FallbackKind, batch_size: int | None) -> Setting:
    setting = setting_of(point, Mode.SSD, kind)
    return setting if batch_size is None else setting._replace(batch_size=batch_size)


def _devices(point: DesignPoint) -> int:
    return point.scenario.placement.num_draft_devices


def _endless_times(point: DesignPoint, kind: FallbackKind) -> RoundTimes:
    """Times of one endless point, without the leading axis of points."""
    slots = endless_numbers(point, kind)
    times, _ = ssd_times(slots, _setting(point, kind, None), point.scenario.costs, _devices(point))
    return first_point(times)
