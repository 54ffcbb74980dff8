"""The picture of a sweep: one panel per value of one axis, one line per mode and what else varies.

`planning.views` lays a sweep's results out as a `View`; `draw_sweep` draws it. Colours tell the modes apart, markers
and shades the lines of one mode, so that the picture survives grey printing and colour blindness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.quantities import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_MAX_COLUMNS = 4


class Line(NamedTuple):
    """One line of every panel."""

    label: str
    mode: str | None
    method: str


class View(NamedTuple):
    """Results of one quantity, laid out."""

    quantity: str
    panel_name: str
    panel_values: tuple[Any, ...]
    x_name: str
    x_values: tuple[Any, ...]
    lines: tuple[Line, ...]
    values: NDArray[np.float64]
    """[panels, lines, x]; NaN where a row has no answer."""
    bounds: NDArray[np.float64]
    """[low high, panels, lines, x]; NaN where they are not known."""


def is_numeric(values: Sequence[Any]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def draw_sweep(view: View, path: Path, *, title: str) -> None:
    """Draw `view` into the file `path` (.png, .svg, .pdf); `title` says what the numbers rest on."""
    from matplotlib.figure import Figure

    from ssdsim.plotting.style import save, style

    with style():
        columns = min(len(view.panel_values), _MAX_COLUMNS)
        rows = math.ceil(len(view.panel_values) / columns)
        figure = Figure(figsize=(max(3.1 * columns, 5.2), 2.7 * rows + 1.2), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        for number, axes in enumerate(panels.flat):
            if number < len(view.panel_values):
                _draw_panel(axes, view, number)
            else:
                axes.set_visible(False)
        for axes in panels[:, 0]:
            axes.set_ylabel(label_of(view.quantity).title)
        _legend(figure, panels[0, 0], view)
        figure.suptitle(title, fontsize="medium", wrap=True)
        save(figure, path)


def _draw_panel(axes: Axes, view: View, number: int) -> None:
    scale = label_of(view.quantity).scale
    numeric = is_numeric(view.x_values)
    x = np.array(view.x_values, dtype=float) if numeric else np.arange(len(view.x_values))
    for i, line in enumerate(view.lines):
        look = _look(view.lines, i)
        axes.plot(x, view.values[number, i] * scale, label=line.label, **look)
        low, high = view.bounds[:, number, i] * scale
        if not np.isnan(low).all():
            axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    if numeric and _is_geometric(view.x_values):
        axes.set_xscale("log", base=2)
    axes.set_xticks(x, [_short(value) for value in view.x_values])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(view.x_name)
    if view.panel_name:
        axes.set_title(f"{view.panel_name} {_short(view.panel_values[number])}", fontsize="medium")


def _look(lines: Sequence[Line], number: int) -> dict[str, Any]:
    """The mode's colour, lighter from line to line; another marker for each line of the mode, dashes by method."""
    from ssdsim.plotting.style import METHOD_DASHES, MODE_COLOURS, lighter

    line = lines[number]
    family = [i for i, other in enumerate(lines) if other.mode == line.mode]
    place = family.index(number)
    amount = 0.55 * (len(family) - 1 - place) / max(len(family) - 1, 1)
    return {
        "color": lighter(MODE_COLOURS[line.mode or "ssd"], amount),
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": METHOD_DASHES[line.method],
    }


def _legend(figure: Figure, axes: Axes, view: View) -> None:
    if len(view.lines) > 1:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False)


def _is_geometric(values: Sequence[float]) -> bool:
    """At least four values, each the same multiple of the one before."""
    if len(values) < 4 or min(values) <= 0:
        return False
    ratios = np.divide(values[1:], values[:-1])
    return bool(ratios[0] > 1 and np.allclose(ratios, ratios[0], rtol=1e-6))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
