"""Work that depends on a few of a grid's axes is done once per distinct combination of their steps.

A grid of 100,000 points seldom has more than a few hundred distinct draftings or profiles. A `Stage` names the fields
that a piece of work reads; the axes that touch them decide how often it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import InputError
from ssdsim.planning.grid import Grid
from ssdsim.planning.plan import SweepPlan
from ssdsim.scenario_files import FieldPath, assign

IntArray = NDArray[np.int64]
Result = TypeVar("Result")


def touches(path: FieldPath, field: FieldPath) -> bool:
    """Whether setting `path` changes `field`: one lies at or below the other."""
    shared = min(len(path), len(field))
    return path[:shared] == field[:shared]


def axes_touching(grid: Grid, reads: Sequence[FieldPath]) -> tuple[int, ...]:
    """Numbers of the axes that change one of the fields `reads`."""
    return tuple(
        number
        for number, axis in enumerate(grid.axes)
        if any(touches(path, field) for path in axis.paths for field in reads)
    )


def axes_beyond(grid: Grid, free: Sequence[FieldPath]) -> tuple[int, ...]:
    """Numbers of the axes that change anything but the fields `free` and what lies below them."""
    return tuple(
        number
        for number, axis in enumerate(grid.axes)
        if not all(any(path[: len(field)] == field for field in free) for path in axis.paths)
    )


class Stage(Generic[Result]):
    """One piece of work over the combinations of some axes, each done when it is first needed."""

    def __init__(self, plan: SweepPlan, axes: Sequence[int], work: Callable[[dict[str, Any]], Result]) -> None:
        """`work` takes the plain data in which these axes are set and all others left at the plan's base."""
        self._plan, self._axes, self._work = plan, tuple(axes), work
        self._sizes = tuple(len(plan.grid.axes[axis]) for axis in self._axes)
        self.results: list[Result | None] = []
        """One entry per combination met so far; None where its input is refused."""
        self._index: dict[int, int] = {}

    def of(self, steps: Sequence[IntArray], count: int) -> IntArray:
        """For every point, given by its steps on all axes, where its result lies in `results`."""
        if not self._axes:
            return np.full(count, self._result(0), dtype=np.int64)
        codes = np.ravel_multi_index([steps[axis] for axis in self._axes], self._sizes)
        distinct, inverse = np.unique(codes, return_inverse=True)
        return np.array([self._result(int(code)) for code in distinct])[inverse]

    def _result(self, code: int) -> int:
        if code not in self._index:
            self._index[code] = len(self.results)
            try:
                self.results.append(self._work(self._data(code)))
            except InputError:
                self.results.append(None)
        return self._index[code]

    def _data(self, code: int) -> dict[str, Any]:
        steps = np.unravel_index(code, self._sizes) if self._axes else ()
        axes = [self._plan.grid.axes[axis] for axis in self._axes]
        settings = [
            setting
            for axis, step in zip(axes, steps, strict=True)
            for setting in zip(axis.paths, axis.values[int(step)], strict=True)
        ]
        return assign(self._plan.base, sorted(settings, key=lambda setting: len(setting[0])))
