"""How a sweep's results are laid out for reading, for the table and the picture alike.

x is the numeric axis with the most values, every value of the axis with the next most values gets a panel, and what
is left (the mode, the method, further axes) tells the lines apart. Lines that agree everywhere are one line: AR does
not depend on the lookahead, nor SD on the fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ssdsim.planning.grid import Axis
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import Columns
from ssdsim.plotting.sweep import Line, View, is_numeric
from ssdsim.quantities import LABELS

_FIELD_NAMES = {
    "num_speculative_tokens": "lookahead",
    "fan_out.per_position": "fan-out per position",
    "acceptance.per_position": "acceptance",
    "batch_size": "batch size",
    "num_draft_devices": "draft devices",
    "fallback.kind": "fallback",
    "fan_out.policy": "fan-out policy",
}
_SMALLER_IS_BETTER = {name for name, label in LABELS.items() if label.unit == "ms"}
_MAX_LINES = 9
"""With more lines than this, each mode keeps the best of its lines at every x."""

FloatArray = NDArray[np.float64]
_Headed: TypeAlias = tuple[Line, str]
"""A line, and the label of its mode and method alone. Below, `cube` is [value low high, panels, lines, x]."""


def view_of(plan: SweepPlan, table: Columns, quantity: str) -> View:
    """Lay out the whole table of `plan`."""
    axes = plan.grid.axes
    unknown = np.full(plan.num_rows, np.nan)
    cube = np.stack([table.get(quantity + bound, unknown) for bound in ("", "_low", "_high")])
    cube = cube.reshape([3, *(len(axis) for axis in axes), len(plan.methods)])
    x, panel = _chosen_axes(axes)
    rest = [i for i in range(len(axes)) if i not in (x, panel)]
    methods = len(axes)
    cube = np.transpose(cube, [0, *(1 + axis for axis in (panel, *rest, methods, x) if axis is not None)])
    panels = len(axes[panel]) if panel is not None else 1
    steps = len(axes[x]) if x is not None else 1
    lines, values = _merged(_lines(plan, [axes[i] for i in rest]), cube.reshape(3, panels, -1, steps))
    if len(lines) > _MAX_LINES:
        lines, values = _best_of(lines, values, smallest=quantity in _SMALLER_IS_BETTER)
    return View(
        quantity=quantity,
        panel_name=axis_label(axes[panel]) if panel is not None else "",
        panel_values=axes[panel].column(0) if panel is not None else ("",),
        x_name=axis_label(axes[x]) if x is not None else "",
        x_values=axes[x].column(0) if x is not None else ("",),
        lines=tuple(line for line, _ in lines),
        values=values[0],
        bounds=values[1:],
    )


def axis_label(axis: Axis) -> str:
    """What an axis is called where people read it."""
    return " and ".join(_field_label(path) for path in axis.paths)


def _field_label(path: Sequence[str]) -> str:
    for length in (2, 1):
        name = ".".join(path[-length:])
        if name in _FIELD_NAMES:
            return _FIELD_NAMES[name]
    return path[-1].replace("_", " ")


def _chosen_axes(axes: Sequence[Axis]) -> tuple[int | None, int | None]:
    """The axes of x and of the panels: numbers first, many values first."""
    free = [i for i, axis in enumerate(axes) if axis.paths[0] != ("mode",)]
    ranked = sorted(free, key=lambda i: (not is_numeric(axes[i].column(0)), -len(axes[i])))
    x = ranked[0] if ranked else None
    others = sorted(ranked[1:], key=lambda i: -len(axes[i]))
    return x, others[0] if others else None


def _lines(plan: SweepPlan, axes: Sequence[Axis]) -> list[_Headed]:
    """Every combination of the remaining axes and the method."""
    lines = []
    for steps, method in product(product(*(range(len(axis)) for axis in axes)), plan.methods):
        words, mode = [], None
        for axis, step in zip(axes, steps, strict=True):
            value = axis.values[step][0]
            if axis.paths[0] == ("mode",):
                mode = str(value)
            else:
                words.append(f"{axis_label(axis)} {value}")
        head = (mode or str(plan.base["mode"])).upper()
        head = f"{head} {method}" if len(plan.methods) > 1 else head
        lines.append((Line(", ".join([head, *words]), mode, str(method)), head))
    return lines


def _merged(lines: Sequence[_Headed], cube: FloatArray) -> tuple[list[_Headed], FloatArray]:
    """Lines of one mode and method that all agree become one, under the name of the mode and method."""
    kept: list[_Headed] = []
    index: list[int] = []
    for head, members in _families(lines).items():
        same = all(np.array_equal(cube[..., i, :], cube[..., members[0], :], equal_nan=True) for i in members[1:])
        if same and len(members) > 1:
            kept.append((lines[members[0]][0]._replace(label=head), head))
            index.append(members[0])
        else:
            kept += [lines[i] for i in members]
            index += members
    return kept, cube[..., index, :]


def _best_of(lines: Sequence[_Headed], cube: FloatArray, *, smallest: bool) -> tuple[list[_Headed], FloatArray]:
    """The best line of each mode and method at every x."""
    worst = np.inf if smallest else -np.inf
    kept, best = [], []
    for head, members in _families(lines).items():
        line = lines[members[0]][0]
        kept.append((line if len(members) == 1 else line._replace(label=f"{head}, best of {len(members)}"), head))
        part = cube[..., members, :]
        known = np.where(np.isnan(part[0]), worst, part[0])
        chosen = known.argmin(axis=1) if smallest else known.argmax(axis=1)
        best.append(np.take_along_axis(part, chosen[None, :, None, :], axis=2))
    return kept, np.concatenate(best, axis=2)


def _families(lines: Sequence[_Headed]) -> dict[str, list[int]]:
    """Numbers of the lines of each mode and method."""
    families: dict[str, list[int]] = {}
    for number, (_, head) in enumerate(lines):
        families.setdefault(head, []).append(number)
    return families
