"""One cost term: seconds as a function of (sequences, query tokens, context tokens).

All three arguments may be arrays of one broadcastable shape, so a sweep evaluates a term once for all its points. A
term answers in the shape of what it reads, which broadcasts to the arguments' shape.

- `sequences`: rows that take part
- `query_tokens`: new positions over all those rows together
- `context_tokens`: mean length of the context of one row (what its attention reads)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import pairwise, product
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from ssdsim.schema import Document, NonNegativeFloat, Seconds

FloatArray = NDArray[np.float64]
AxisName = Literal["sequences", "query_tokens", "context_tokens"]


class ConstantTerm(Document):
    """The same time whatever the shape; zero where no sequence takes part."""

    kind: Literal["constant"] = "constant"
    seconds: Seconds

    def __call__(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return np.where(np.asarray(sequences) > 0, self.seconds, 0.0)


class LinearTerm(Document):
    """base + per sequence + per query token + per token of context read (sequences x context tokens)."""

    kind: Literal["linear"] = "linear"
    base_s: Seconds = 0.0
    per_sequence_s: Seconds = 0.0
    per_query_token_s: Seconds = 0.0
    per_context_token_s: Seconds = 0.0

    def __call__(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        rows = np.asarray(sequences, dtype=float)
        time = self.base_s + self.per_sequence_s * rows + self.per_query_token_s * np.asarray(query_tokens)
        time = time + self.per_context_token_s * rows * np.asarray(context_tokens)
        return np.where(rows > 0, time, 0.0)


class TableTerm(Document):
    """Measured times on a grid of one to three axes, interpolated linearly between grid points.

    Beyond the last grid point the slope of the last interval goes on, below the first the first value holds;
    `covers` tells whether a point lies on the measured grid.
    """

    kind: Literal["table"] = "table"
    axes: Annotated[tuple[AxisName, ...], Field(min_length=1, max_length=3)]
    grid: tuple[Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)], ...]
    """Grid points of each axis, strictly increasing."""
    seconds: tuple[Seconds, ...]
    """Times in row-major order over the axes."""

    @model_validator(mode="after")
    def _complete(self) -> TableTerm:
        if len(set(self.axes)) != len(self.axes) or len(self.grid) != len(self.axes):
            raise ValueError("grid needs one list of points for each distinct axis")
        for name, points in zip(self.axes, self.grid, strict=True):
            if any(b <= a for a, b in pairwise(points)):
                raise ValueError(f"grid of {name} must be strictly increasing")
        expected = int(np.prod([len(points) for points in self.grid]))
        if len(self.seconds) != expected:
            raise ValueError(
                f"seconds needs {expected} entries (the product of the grid's lengths); got {len(self.seconds)}"
            )
        return self

    def __call__(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        columns = self._columns(sequences, query_tokens, context_tokens)
        points, table = self._arrays
        time = _on_line(points[0], table, columns[0]) if len(points) == 1 else _interpolate(points, table, columns)
        return np.where(np.asarray(sequences) > 0, time, 0.0)

    def covers(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> NDArray[np.bool_]:
        """True where no axis is extrapolated."""
        columns = self._columns(sequences, query_tokens, context_tokens)
        inside = [(c >= points[0]) & (c <= points[-1]) for c, points in zip(columns, self.grid, strict=True)]
        return np.asarray(reduce(np.logical_and, inside))

    @cached_property
    def _arrays(self) -> tuple[tuple[FloatArray, ...], FloatArray]:
        """Grid points of each axis, and the table over them."""
        points = tuple(np.asarray(axis) for axis in self.grid)
        return points, np.asarray(self.seconds).reshape([axis.size for axis in points])

    def _columns(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> list[FloatArray]:
        """The arguments that the axes read, in their order."""
        named = {"sequences": sequences, "query_tokens": query_tokens, "context_tokens": context_tokens}
        return [np.asarray(named[name], dtype=float) for name in self.axes]


class SumTerm(Document):
    """Several terms one after the other, each scaled (dense part plus attention part, say)."""

    kind: Literal["sum"] = "sum"
    terms: Annotated[tuple[CostTerm, ...], Field(min_length=1)]
    scale: NonNegativeFloat = 1.0

    def __call__(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        parts = (term(sequences, query_tokens, context_tokens) for term in self.terms)
        return np.asarray(self.scale * reduce(np.add, parts))


CostTerm = Annotated[ConstantTerm | LinearTerm | TableTerm | SumTerm, Field(discriminator="kind")]
SumTerm.model_rebuild()


def _on_line(points: FloatArray, table: FloatArray, column: FloatArray) -> FloatArray:
    """Linear interpolation on one axis."""
    inside = np.interp(column, points, table)
    if points.size == 1:
        return inside
    slope = (table[-1] - table[-2]) / (points[-1] - points[-2])
    return np.asarray(inside + slope * np.maximum(column - points[-1], 0.0))


def _interpolate(points: Sequence[FloatArray], table: FloatArray, columns: Sequence[FloatArray]) -> FloatArray:
    """Multilinear interpolation: the weighted corners of the cell around each point; columns broadcast."""
    cells = [_locate(axis, column) for axis, column in zip(points, columns, strict=True)]
    total: FloatArray = np.zeros(())
    for corner in product((0, 1), repeat=len(points)):
        index = tuple(
            np.minimum(low + step, axis.size - 1) for (low, _), step, axis in zip(cells, corner, points, strict=True)
        )
        weights = (position if step else 1.0 - position for (_, position), step in zip(cells, corner, strict=True))
        total = total + reduce(np.multiply, weights) * table[index]
    return total


def _locate(points: FloatArray, column: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """The cell's lower index and the position within it: 0 below the grid, above 1 beyond its end."""
    if points.size == 1:
        return np.zeros(np.shape(column), dtype=np.int64), np.zeros(np.shape(column))
    low = np.clip(np.searchsorted(points, column, side="right") - 1, 0, points.size - 2)
    position = (column - points[low]) / (points[low + 1] - points[low])
    return low, np.maximum(position, 0.0)
