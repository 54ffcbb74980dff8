"""Slot numbers of many drafting variants, each computed when it is first needed and kept for the rest of a sweep."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from ssdsim.design_point import DesignPoint
from ssdsim.errors import DomainError
from ssdsim.exact import SlotNumbers, slot_numbers
from ssdsim.scenario import FallbackKind, Mode

IntArray = NDArray[np.int64]

NOT_COVERED = -1


class SlotTable:
    """Slot numbers under one mode. What AR and SD do not read does not make a variant of its own."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._numbers: SlotNumbers | None = None
        self._row: dict[Hashable, int] = {}

    def rows(self, points: Sequence[DesignPoint]) -> list[int]:
        """Where each point's numbers lie; `NOT_COVERED` for those that the exact model refuses."""
        keys = [_what_is_read(point, self._mode) for point in points]
        by_kind: dict[FallbackKind, dict[Hashable, DesignPoint]] = {}
        for key, point in zip(keys, points, strict=True):
            if key not in self._row:
                by_kind.setdefault(point.scenario.drafting.fallback.kind, {})[key] = point
        for kind, new in by_kind.items():
            self._add({key: point for key, point in new.items() if key not in self._row}, kind)
        return [self._row[key] for key in keys]

    def take(self, rows: IntArray) -> SlotNumbers:
        """The numbers at `rows` as returned by `rows`."""
        assert self._numbers is not None
        return self._numbers.take(rows)

    def _add(self, new: Mapping[Hashable, DesignPoint], kind: FallbackKind) -> None:
        if not new:
            return
        try:
            found = slot_numbers(list(new.values()), self._mode, kind)
        except DomainError:
            if len(new) == 1:
                self._row |= dict.fromkeys(new, NOT_COVERED)
            else:
                for key, point in new.items():
                    self._add({key: point}, kind)
            return
        first = 0 if self._numbers is None else len(self._numbers.num_steps)
        self._row |= {key: first + i for i, key in enumerate(new)}
        self._numbers = found if self._numbers is None else _joined(self._numbers, found)


def _what_is_read(point: DesignPoint, mode: Mode) -> Hashable:
    """Equal for points whose sequences do the same under `mode`."""
    if mode is Mode.SSD:
        return id(point)
    workload, drafting, acceptance = point.scenario.workload, point.scenario.drafting, point.behaviour.acceptance
    common = (
        workload.prompt_tokens,
        workload.output_tokens,
        point.behaviour.rank_trace is None,
        drafting.num_speculative_tokens,
        drafting.sd_extra_step,
        drafting.first_round,
        acceptance.spread,
    )
    return common if mode is Mode.AR else (*common, point.drafted.acceptance)


def _joined(first: SlotNumbers, second: SlotNumbers) -> SlotNumbers:
    return SlotNumbers(
        **{f.name: np.concatenate([getattr(first, f.name), getattr(second, f.name)]) for f in fields(first)}
    )
