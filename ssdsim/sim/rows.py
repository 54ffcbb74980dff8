"""What can happen to one row in one round: the laws of a design point's row kinds, stacked into arrays.

Used by `foreseen` and `stepped`, which draw from the same laws and therefore tell the same story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ssdsim.design_point import DesignPoint, RowKind
from ssdsim.records import Fallback, Source
from ssdsim.scenario import Mode
from ssdsim.theory.acceptance import acceptance_at_quantiles

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DRAFTED = 0
"""Answered from the cache, or drafted in the first round (SD: always)."""
REDRAFTED = 1
"""Drafted just in time after a miss."""
UNDRAFTED = 2
"""A miss answered by a fallback that drafts nothing."""
TRUNCATED = 3
"""TRUNCATED + n: answered by a chain of which n tokens were ready."""

KIND_AFTER = {
    Fallback.JIT: REDRAFTED,
    Fallback.NONE: UNDRAFTED,
    Fallback.RANDOM: UNDRAFTED,
    Fallback.NGRAM: UNDRAFTED,
}
"""The kind of a missing row by what answers it."""
SOURCE_AFTER = {
    Fallback.JIT: Source.JIT,
    Fallback.NONE: Source.NONE,
    Fallback.RANDOM: Source.RANDOM,
    Fallback.NGRAM: Source.NGRAM,
}


class RowLaws:
    """Acceptance, fan-out and hit probability per row kind, index [kind, num_accepted] where both matter."""

    def __init__(self, point: DesignPoint) -> None:
        self.mode = point.scenario.mode
        self.kinds = _row_kinds(point)
        width = max(kind.num_proposed for kind in self.kinds) + 1
        self.num_proposed = np.array([kind.num_proposed for kind in self.kinds])
        self.num_branches = np.array([kind.num_branches for kind in self.kinds])
        self.fan_out = _stack([kind.fan_out for kind in self.kinds], width).astype(np.int64)
        self.hit_probs = _stack([kind.hit_probs for kind in self.kinds], width)

    @property
    def looks_up(self) -> bool:
        """Whether there is a cache to look into."""
        return self.mode is Mode.SSD

    def survival(self, kind: int, luck: FloatArray) -> FloatArray:
        """P(at least i tokens accepted), i = 1..m, of requests with the given `luck` in the spread: [requests, m].

        One row stands for all requests where they are alike.
        """
        acceptance, spread = self.kinds[kind].acceptance, self.kinds[kind].spread
        if spread == 0.0 or not acceptance:
            alike: FloatArray = np.multiply.accumulate(np.array([acceptance], dtype=np.float64), axis=1)
            return alike
        means, place = np.unique(acceptance, return_inverse=True)
        own: FloatArray = np.multiply.accumulate(acceptance_at_quantiles(means, spread, luck)[:, place], axis=1)
        return own

    def survival_of_kinds(self, luck: FloatArray) -> FloatArray:
        """`survival` of every kind, padded with zeros: [requests, kinds, K]."""
        result = np.zeros((len(luck), len(self.kinds), self.hit_probs.shape[1] - 1))
        for kind in range(len(self.kinds)):
            result[:, kind, : self.num_proposed[kind]] = self.survival(kind, luck)
        return result


def _row_kinds(point: DesignPoint) -> tuple[RowKind, ...]:
    if point.scenario.mode is Mode.AR:
        return (RowKind(acceptance=(), fan_out=(0,), hit_probs=(0.0,)),)
    if point.scenario.mode is Mode.SD:
        positions = point.drafted.num_proposed + 1
        return (replace(point.drafted, fan_out=(0,) * positions, hit_probs=(0.0,) * positions),)
    kinds = [point.drafted, point.redrafted, point.undrafted]
    if point.scenario.drafting.on_late == "truncate":
        kinds += [point.truncated(num_ready) for num_ready in range(point.drafted.num_proposed)]
    return tuple(kinds)


def _stack(rows: Sequence[Sequence[float]], width: int) -> FloatArray:
    result = np.zeros((len(rows), width))
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result
