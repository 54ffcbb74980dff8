"""The table of a sweep's results: one row per point and method.

While a sweep runs, workers hand back *pieces*: the row's number, the mode, status, error, notes and the quantities.
The varied fields, the method and the order follow from the plan, so they are filled in once, at the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.caveats import beyond_limits
from ssdsim.evaluate import Answer, Method
from ssdsim.planning.plan import SweepPlan
from ssdsim.quantities import LABELS

if TYPE_CHECKING:
    import pyarrow as pa

OK, INVALID, FAILED = "ok", "invalid", "failed"
"""`invalid`: no valid scenario, or not covered by the method; `failed`: something broke while it was computed."""

_WITH_BOUNDS = {Method.SIM, Method.REAL}
"""Methods whose quantities come with an interval."""


def piece_schema(plan: SweepPlan) -> pa.Schema:
    """Columns of a piece: every quantity, with its bounds where a method of the plan knows them."""
    import pyarrow as pa

    bounds = ("", "_low", "_high") if _WITH_BOUNDS & set(plan.methods) else ("",)
    return pa.schema(
        [
            ("row", pa.int64()),
            ("mode", pa.string()),
            ("status", pa.string()),
            ("error", pa.string()),
            ("notes", pa.string()),
            ("extrapolated", pa.string()),
            *((name + bound, pa.float64()) for name in LABELS for bound in bounds),
        ]
    )


def answered(row: int, answer: Answer) -> dict[str, Any]:
    """The piece of one answered row."""
    values: dict[str, Any] = {"row": row, "mode": str(answer.mode), "status": OK}
    values["notes"] = "; ".join(note for note in answer.notes if not note.startswith("extrapolated")) or None
    values["extrapolated"] = ", ".join(beyond_limits(answer.scenario)) or None
    for name, quantity in answer.quantities.items():
        if name in LABELS:
            values |= {name: quantity.value, f"{name}_low": quantity.low, f"{name}_high": quantity.high}
    return values


def refused(row: int, status: str, error: str) -> dict[str, Any]:
    """The piece of a row that has no answer."""
    return {"row": row, "status": status, "error": error}


def piece_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """A piece from one mapping per row; what a row leaves out is null."""
    import pyarrow as pa

    return pa.table({name: [row.get(name) for row in rows] for name in schema.names}, schema=schema)


def piece_of_columns(columns: Mapping[str, Any], num_rows: int, schema: pa.Schema) -> pa.Table:
    """A piece from arrays; an absent column is null, NaN is null."""
    import pyarrow as pa

    arrays = [
        pa.array(columns[field.name], type=field.type, from_pandas=True)
        if field.name in columns
        else pa.nulls(num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def whole_table(plan: SweepPlan, pieces: Sequence[pa.Table]) -> pa.Table:
    """All pieces in the plan's order, with the varied fields and the method in front."""
    import pyarrow as pa

    joined = pa.concat_tables(pieces) if pieces else piece_schema(plan).empty_table()
    rows = joined["row"].to_numpy()
    if np.any(np.diff(rows) <= 0):  # workers finish in any order
        _, first = np.unique(rows, return_index=True)
        joined, rows = joined.take(pa.array(first)), rows[first]
    points, methods = np.divmod(rows, len(plan.methods))
    columns = _varied_columns(plan, points)
    columns["method"] = pa.array([str(m) for m in plan.methods], pa.string()).take(pa.array(methods))
    for name in joined.column_names[1:]:
        columns.setdefault(name, joined[name])
    return pa.table(columns)


def _varied_columns(plan: SweepPlan, points: NDArray[np.int64]) -> dict[str, Any]:
    import pyarrow as pa

    steps = plan.grid.steps(points)
    return {
        name: pa.array(_column_values(values)).take(pa.array(steps[axis]))
        for name, (axis, values) in plan.grid.columns.items()
    }


def _column_values(values: Sequence[Any]) -> list[Any]:
    """Values of one kind: numbers (integers only where all are), truth values or text; all else as JSON text."""
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) == 1 and kinds <= {int, float, bool, str}:
        return list(values)
    return [value if isinstance(value, str) or value is None else json.dumps(value, default=str) for value in values]
