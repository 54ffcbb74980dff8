"""SweepPlan: what a sweep computes, as plain data that any worker can turn into scenarios.

A plan's rows are numbered: row = point * number of methods + method. Everything about a row follows from the plan and
its number, so a sweep can be cut anywhere, resumed, and run by any engine in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from ssdsim.evaluate import Method
from ssdsim.planning.grid import Grid, build_grid
from ssdsim.scenario import Scenario
from ssdsim.scenario_files import assign
from ssdsim.schema import validate


@dataclass(frozen=True, eq=False)
class SweepPlan:
    """A grid of variations of one scenario, each answered by every method. Equal plans have equal fingerprints."""

    base: Mapping[str, Any]
    """Complete plain data of the scenario (`scenario_files.complete`)."""
    grid: Grid
    methods: tuple[Method, ...]
    uncertainty: bool = False
    """Whether every answer gets bounds from how surely its profile's numbers are known."""

    @property
    def num_rows(self) -> int:
        """Answers in all."""
        return self.grid.size * len(self.methods)

    def place(self, row: int) -> tuple[int, Method]:
        """Point and method of a row."""
        point, method = divmod(row, len(self.methods))
        return point, self.methods[method]

    def data(self, point: int) -> dict[str, Any]:
        """The plain data of one point's scenario."""
        return assign(self.base, self.grid.settings(point))

    def scenario(self, point: int) -> Scenario:
        """The validated scenario of one point; raises `InputError` where it is not valid."""
        return validate(Scenario, self.data(point))

    def about(self) -> dict[str, Any]:
        """What identifies the sweep, as stored beside its results."""
        return {
            "version": version("ssdsim"),
            "scenario": self.base,
            "over": [{name: axis.column(i) for i, name in enumerate(axis.names)} for axis in self.grid.axes],
            "methods": [str(method) for method in self.methods],
            "uncertainty": self.uncertainty,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal sweeps only."""
        text = json.dumps(self.about(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SweepPlan) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def make_plan(
    base: Mapping[str, Any], axes: Sequence[str], methods: Sequence[Method], *, uncertainty: bool = False
) -> SweepPlan:
    """The plan of `axes` (as written on the command line) around a complete scenario's plain data."""
    return SweepPlan(base, build_grid(base, axes), tuple(dict.fromkeys(methods)), uncertainty)
