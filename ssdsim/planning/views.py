"""How a sweep's results are laid out for reading, for the table and the picture alike.

x is the numeric axis with the most values, every value of the axis with the next most values gets a panel, and what
is left (the mode, the method, further axes) tells the lines apart. Lines that agree everywhere are one line: AR does
not depend on the lookahead, nor SD on the fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ssdsim.planning.grid import Axis
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import Columns
from ssdsim.plotting.sweep import Line, View, is_numeric

_FIELD_NAMES = {
    "num_speculative_tokens": "lookahead",
    "fan_out.per_position": "fan-out per position",
    "acceptance.per_position": "acceptance",
    "batch_size": "batch size",
    "fallback.kind": "fallback",
    "fan_out.policy": "fan-out policy",
}
_MAX_LINES = 9
"""With more lines than this, each mode keeps the best of its lines at every x."""


def view_of(plan: SweepPlan, table: Columns, quantity: str) -> View:
    """Lay out the whole table of `plan`."""
    axes = plan.grid.axes
    cube = table[quantity].reshape([*(len(axis) for axis in axes), len(plan.methods)])
    x, panel = _chosen_axes(axes)
    rest = [i for i in range(len(axes)) if i not in (x, panel)]
    cube = np.transpose(
        cube, [*(i for i in (panel,) if i is not None), *rest, len(axes), *(i for i in (x,) if i is not None)]
    )
    panels = len(axes[panel]) if panel is not None else 1
    steps = len(axes[x]) if x is not None else 1
    lines, laid_out = _merged(*_lines(plan, [axes[i] for i in rest], cube.reshape(panels, -1, steps), quantity))
    return View(
        quantity=quantity,
        panel_name=axis_label(axes[panel]) if panel is not None else "",
        panel_values=axes[panel].column(0) if panel is not None else ("",),
        x_name=axis_label(axes[x]) if x is not None else "",
        x_values=axes[x].column(0) if x is not None else ("",),
        lines=lines,
        values=laid_out,
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


def _lines(
    plan: SweepPlan, axes: Sequence[Axis], cube: NDArray[np.float64], quantity: str
) -> tuple[list[tuple[Line, str]], NDArray[np.float64]]:
    """Every combination of the remaining axes and the method, with the label of its mode and method alone."""
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
    if len(lines) <= _MAX_LINES:
        return lines, cube
    return _best_of(lines, cube, smallest=quantity.endswith("_s") and not quantity.startswith("tokens"))


def _best_of(
    lines: Sequence[tuple[Line, str]], cube: NDArray[np.float64], *, smallest: bool
) -> tuple[list[tuple[Line, str]], NDArray[np.float64]]:
    heads = list(dict.fromkeys(head for _, head in lines))
    best, kept = [], []
    for head in heads:
        members = [i for i, (_, own) in enumerate(lines) if own == head]
        line = lines[members[0]][0]
        label = line.label if len(members) == 1 else f"{head}, best of {len(members)}"
        kept.append((line._replace(label=label), head))
        part = cube[:, members]
        worst = np.inf if smallest else -np.inf
        filled = np.where(np.isnan(part), worst, part)
        chosen = filled.min(axis=1) if smallest else filled.max(axis=1)
        best.append(np.where(np.isinf(chosen), np.nan, chosen))
    return kept, np.stack(best, axis=1)


def _merged(
    lines: Sequence[tuple[Line, str]], cube: NDArray[np.float64]
) -> tuple[tuple[Line, ...], NDArray[np.float64]]:
    """Lines of one mode and method that all agree become one, under the name of the mode and method."""
    kept: list[Line] = []
    index: list[int] = []
    for head in dict.fromkeys(head for _, head in lines):
        members = [i for i, (_, own) in enumerate(lines) if own == head]
        same = all(np.array_equal(cube[:, i], cube[:, members[0]], equal_nan=True) for i in members)
        chosen = members[:1] if same else members
        index += chosen
        kept += [lines[i][0]._replace(label=head) if same and len(members) > 1 else lines[i][0] for i in chosen]
    return tuple(kept), cube[:, index]
