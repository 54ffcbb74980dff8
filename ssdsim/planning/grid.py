"""What a sweep varies: axes over scenario and profile fields, and the grid of all their combinations.

An axis is written `path=values`. Values are separated by commas, each read as YAML or as a range:

    1:8          1, 2, ..., 8
    0.5:0.9:0.1  with a step
    1:64:2x      by a factor: 1, 2, 4, ..., 64
    0.5:0.9:5n   so many, evenly spaced

Fields that move together share one axis, separated by semicolons: `a=1,2,4; b=8,16,32`. Axes of their own are
combined with each other. Used by `sweep`; knows nothing of what the fields mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import InputError
from ssdsim.scenario_files import FieldPath, parse_value, resolve_path

IntArray = NDArray[np.int64]

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::({_NUMBER})([xn]?))?")
_MAX_STEPS = 1_000_000
"""A range with more values than this is taken for a slip of the pen."""


@dataclass(frozen=True)
class Axis:
    """Fields that change together, step by step."""

    paths: tuple[FieldPath, ...]
    values: tuple[tuple[Any, ...], ...]
    """One entry per step; in it one value per path."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """The dotted paths."""
        return tuple(".".join(path) for path in self.paths)

    def column(self, index: int) -> tuple[Any, ...]:
        """The values of the path number `index`, one per step."""
        return tuple(step[index] for step in self.values)


@dataclass(frozen=True)
class Grid:
    """All combinations of the axes' steps, numbered with the last axis running fastest."""

    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """Number of points; one where there is no axis."""
        return math.prod(len(axis) for axis in self.axes)

    @property
    def columns(self) -> dict[str, tuple[int, tuple[Any, ...]]]:
        """For every varied field its axis' number and its value at each step of that axis."""
        return {
            name: (number, axis.column(index))
            for number, axis in enumerate(self.axes)
            for index, name in enumerate(axis.names)
        }

    def steps(self, points: IntArray) -> list[IntArray]:
        """The step on every axis, for an array of point numbers."""
        if not self.axes:
            return []
        return list(np.unravel_index(points, [len(axis) for axis in self.axes]))

    def settings(self, point: int) -> list[tuple[FieldPath, Any]]:
        """Path and value of every varied field at one point, outer fields before inner ones."""
        steps = np.unravel_index(point, [len(axis) for axis in self.axes]) if self.axes else ()
        chosen = [
            pair
            for axis, step in zip(self.axes, steps, strict=True)
            for pair in zip(axis.paths, axis.values[int(step)], strict=True)
        ]
        return sorted(chosen, key=lambda pair: len(pair[0]))


def build_grid(data: Mapping[str, Any], texts: Sequence[str]) -> Grid:
    """The grid that `texts` describe over the plain data of a complete scenario.

    Raises `InputError` for a path that is unknown, ambiguous or varied twice.
    """
    axes = tuple(parse_axis(data, text) for text in texts)
    seen: set[FieldPath] = set()
    for path in (path for axis in axes for path in axis.paths):
        if path in seen:
            raise InputError(f"--over {'.'.join(path)}: varied twice; give all its values once")
        seen.add(path)
    return Grid(axes)


def parse_axis(data: Mapping[str, Any], text: str) -> Axis:
    """One axis; its paths are completed as for `--set`."""
    paths, columns = [], []
    for part in text.split(";"):
        name, equals, values = part.partition("=")
        if not equals or not name.strip() or not values.strip():
            raise InputError(f"--over {text}: write path.to.field=1,2,4 or =1:64:2x; link fields with ';'")
        paths.append(resolve_path(data, name.strip()))
        columns.append(parse_values(values.strip(), where=f"--over {name.strip()}"))
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{'.'.join(p)} has {len(c)}" for p, c in zip(paths, columns, strict=True))
        raise InputError(f"--over {text}: linked fields need equally many values; {counts}")
    return Axis(tuple(paths), tuple(zip(*columns, strict=True)))


def parse_values(text: str, *, where: str) -> list[Any]:
    """The values of one field: `1,2,4`, ranges, lists in brackets, text."""
    values: list[Any] = []
    for item in _split_at_commas(text):
        match = _RANGE.fullmatch(item)
        values.extend(_expand(match, item, where) if match else [parse_value(item, where=where)])
    return values


def _expand(match: re.Match[str], item: str, where: str) -> list[int] | list[float]:
    start, stop = _number(match[1]), _number(match[2])
    third, unit = match[3], match[4]
    if third is None:
        if isinstance(start, float) or isinstance(stop, float):
            raise InputError(f"{where}={item}: a range of decimals needs a step or a count, as in 0.5:0.9:0.1")
        return _arithmetic(start, stop, 1, where, item)
    amount = _number(third)
    if unit == "x":
        return _geometric(start, stop, amount, where, item)
    if unit == "n":
        return _spaced(start, stop, amount, where, item)
    return _arithmetic(start, stop, amount, where, item)


def _arithmetic(start: float, stop: float, step: float, where: str, item: str) -> list[Any]:
    if step == 0 or (stop - start) / step < 0:
        raise InputError(f"{where}={item}: step {step} does not lead from {start} to {stop}")
    count = math.floor((stop - start) / step + 1e-9) + 1
    _refuse_too_many(count, where, item)
    return [_tidy(start + i * step) for i in range(count)]


def _geometric(start: float, stop: float, factor: float, where: str, item: str) -> list[Any]:
    if start <= 0 or factor <= 0 or factor == 1 or (stop - start) * (factor - 1) < 0 or stop <= 0:
        raise InputError(f"{where}={item}: factor {factor} does not lead from {start} to {stop}")
    count = math.floor(math.log(stop / start) / math.log(factor) + 1e-9) + 1
    _refuse_too_many(count, where, item)
    return [_tidy(start * factor**i) for i in range(count)]


def _spaced(start: float, stop: float, count: float, where: str, item: str) -> list[Any]:
    if not isinstance(count, int) or count < 2:
        raise InputError(f"{where}={item}: the count before 'n' is an integer of at least 2")
    _refuse_too_many(count, where, item)
    return [_tidy(float(value)) for value in np.linspace(start, stop, count)]


def _refuse_too_many(count: int, where: str, item: str) -> None:
    if count > _MAX_STEPS:
        raise InputError(f"{where}={item}: {count} values; at most {_MAX_STEPS} per range")


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _tidy(value: float) -> int | float:
    """0.7 rather than 0.7000000000000001; integers stay integers."""
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _split_at_commas(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()
