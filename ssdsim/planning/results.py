"""The table of a sweep's results: one row per point and method, as columns (no Python object per row).

While a sweep runs, workers hand back *pieces*: the row's number, the mode, status, error, notes and the quantities.
The varied fields, the method and the order follow from the plan, so they are filled in once, at the end.
"""

from __future__ import annotations

import json
import math
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

Columns = dict[str, NDArray[Any]]
"""Columns of equal length: numbers (NaN where unknown) or objects (None where unknown)."""

OK, INVALID, FAILED = "ok", "invalid", "failed"
"""`invalid`: no valid scenario, or not covered by the method; `failed`: something broke while it was computed."""

_TEXTS = ("mode", "status", "error", "notes", "extrapolated")
_WITH_BOUNDS = {Method.SIM, Method.REAL}
"""Methods whose quantities come with an interval."""


def quantity_columns(plan: SweepPlan) -> list[str]:
    """Every quantity, with its bounds where a method of the plan knows them."""
    bounded = plan.uncertainty or _WITH_BOUNDS & set(plan.methods)
    bounds = ("", "_low", "_high") if bounded else ("",)
    return [name + bound for name in LABELS for bound in bounds]


def answered(row: int, answer: Answer) -> dict[str, Any]:
    """The values of one answered row."""
    values: dict[str, Any] = {"row": row, "mode": str(answer.mode), "status": OK}
    values["notes"] = "; ".join(note for note in answer.notes if not note.startswith("extrapolated")) or None
    values["extrapolated"] = ", ".join(beyond_limits(answer.scenario)) or None
    for name, quantity in answer.quantities.items():
        values |= {name: quantity.value, f"{name}_low": quantity.low, f"{name}_high": quantity.high}
    return values


def refused(row: int, status: str, error: str) -> dict[str, Any]:
    """The values of a row that has no answer."""
    return {"row": row, "status": status, "error": error}


def piece_of_rows(plan: SweepPlan, rows: Sequence[Mapping[str, Any]]) -> Columns:
    """A piece from the values of each row; what a row leaves out is unknown."""
    return piece_of_columns(
        plan,
        np.array([row["row"] for row in rows], dtype=np.int64),
        {name: np.array([row.get(name) for row in rows], dtype=object) for name in _TEXTS}
        | {name: np.array([row.get(name) for row in rows], dtype=float) for name in quantity_columns(plan)},
    )


def piece_of_columns(plan: SweepPlan, rows: NDArray[np.int64], columns: Columns) -> Columns:
    """A piece from whole columns; absent ones are unknown."""
    texts = {name: columns.get(name, np.full(len(rows), None)) for name in _TEXTS}
    numbers = {name: columns.get(name, np.full(len(rows), math.nan)) for name in quantity_columns(plan)}
    return {"row": rows, **texts, **numbers}


def joined(pieces: Sequence[Columns]) -> Columns:
    """Pieces of one plan, one after the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def whole_table(plan: SweepPlan, pieces: Sequence[Columns]) -> Columns:
    """All pieces in the plan's order, each row once, with the varied fields and the method in front."""
    together = joined([piece_of_rows(plan, []), *pieces])
    rows, first = np.unique(together.pop("row"), return_index=True)  # workers finish in any order
    points, methods = np.divmod(rows, len(plan.methods))
    steps = plan.grid.steps(points)
    table = {name: _column(values)[steps[axis]] for name, (axis, values) in plan.grid.columns.items()}
    table["method"] = np.array([str(method) for method in plan.methods], dtype=object)[methods]
    for name, column in together.items():
        table.setdefault(name, column[first])
    if len(rows) == plan.num_rows:
        _add_speedups(plan, table)
    return table


def _add_speedups(plan: SweepPlan, table: Columns) -> None:
    """Where the mode is varied, fill in the speed-ups that are not known yet: over AR and SD at the same point."""
    varied = plan.grid.columns.get("mode")
    if varied is None or len(plan.grid.axes[varied[0]].paths) > 1:
        return
    axis, modes = varied
    cube = table["tokens_per_s"].reshape([*(len(a) for a in plan.grid.axes), len(plan.methods)])
    for base in (mode for mode in ("ar", "sd") if mode in modes):
        ratio = (cube / np.take(cube, [modes.index(base)], axis=axis)).ravel()
        known = table[f"speedup_over_{base}"]
        table[f"speedup_over_{base}"] = np.where(np.isnan(known), ratio, known)


def plain_rows(table: Columns) -> list[dict[str, Any]]:
    """The table's rows as plain data, for JSON: every quantity as {value, low, high}, None where unknown."""
    lists = {name: _with_none(column) for name, column in table.items()}
    quantities = [name for name in LABELS if name in lists]
    bounds = {name + bound for name in quantities for bound in ("", "_low", "_high")}
    nothing = [None] * len(next(iter(lists.values()), []))
    parts = {
        name: [
            {"value": value, "low": low, "high": high}
            for value, low, high in zip(
                lists[name], lists.get(f"{name}_low", nothing), lists.get(f"{name}_high", nothing), strict=True
            )
        ]
        for name in quantities
    }
    facts = [name for name in lists if name not in bounds]
    return [
        {
            **{name: lists[name][i] for name in facts},
            "quantities": {name: parts[name][i] for name in quantities},
        }
        for i in range(len(nothing))
    ]


def from_plain_rows(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """The table whose `plain_rows` these are; bounds that nowhere are known make no column."""
    facts = [name for name in rows[0] if name != "quantities"] if rows else []
    table = {name: _column([row[name] for row in rows]) for name in facts}
    for name in rows[0]["quantities"] if rows else ():
        for key, bound in (("value", ""), ("low", "_low"), ("high", "_high")):
            column = np.array([row["quantities"][name][key] for row in rows], dtype=float)
            if key == "value" or not np.isnan(column).all():
                table[name + bound] = column
    return table


def _with_none(column: NDArray[Any]) -> list[Any]:
    return [None if value != value else value for value in column.tolist()]


def to_arrow(table: Columns) -> pa.Table:
    """As an Arrow table; what is unknown is null."""
    import pyarrow as pa

    return pa.table({name: _to_arrow(column) for name, column in table.items()})


def from_arrow(table: pa.Table) -> Columns:
    """The columns of an Arrow table."""
    return {name: table[name].to_numpy() for name in table.column_names}


def _to_arrow(column: NDArray[Any]) -> pa.Array:
    import pyarrow as pa

    if column.dtype != object:
        return pa.array(column, from_pandas=True)
    values = column.tolist()
    is_text = all(value is None or isinstance(value, str) for value in values)
    return pa.array(values, pa.string() if is_text else None)


def _column(values: Sequence[Any]) -> NDArray[Any]:
    """Values of one kind: numbers (integers only where all are), truth values or text; all else as JSON text."""
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return np.array(values)
    if kinds == {bool}:
        return np.array(values)
    texts = [v if isinstance(v, str) or v is None else json.dumps(v, default=str) for v in values]
    return np.array(texts, dtype=object)
