"""Who says so: every number's origin has one look, so that nobody takes a model for a measurement.

Published values are open markers, measured ones filled; models are lines: exact solid, simulated dashed (with
their bands), the paper's formulas dotted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.plotting.style import GREY, METHOD_DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from figures.drawing import Point


class Origin(StrEnum):
    """Where a number comes from."""

    EXACT = "exact model"
    SIM = "simulated"
    PAPER = "paper's formulas"
    PUBLISHED = "published"
    MEASURED = "measured"


class Bounded(Protocol):
    """A value that may have bounds."""

    @property
    def y(self) -> float: ...

    @property
    def low(self) -> float | None: ...

    @property
    def high(self) -> float | None: ...


LINES: dict[Origin, Any] = {
    Origin.EXACT: METHOD_DASHES["exact"],
    Origin.SIM: METHOD_DASHES["sim"],
    Origin.PAPER: METHOD_DASHES["paper"],
}
BAND = 0.16
FloatArray = NDArray[np.float64]


def plot(axes: Axes, points: Sequence[Point], colour: Any, *, marker: str = "o", label: str | None = None) -> None:
    """Draw the points of one series and one origin in that origin's look; bounds become a band or error bars."""
    origin = points[0].origin
    x = np.array([point.x for point in points], dtype=float)
    y = np.array([point.y for point in points])
    if origin in LINES:
        dash: dict[str, Any] = {"marker": "_", "markersize": 18.0} if len(points) == 1 else {}
        axes.plot(x, y, color=colour, linestyle=LINES[origin], label=label, **dash)
        if points[0].low is not None:
            low, high = (np.array([getattr(p, bound) for p in points], dtype=float) for bound in ("low", "high"))
            axes.fill_between(x, low, high, color=colour, alpha=BAND, linewidth=0)
        return
    markers(axes, x, points, colour, marker=marker, label=label)


def markers(
    axes: Axes,
    x: Sequence[float] | FloatArray,
    points: Sequence[Point],
    colour: Any,
    *,
    marker: str = "o",
    label: str | None = None,
) -> None:
    """Published or measured points of one origin at given places, with their bounds as error bars."""
    if points:
        y = [point.y for point in points]
        axes.errorbar(
            x, y, yerr=errors(points), elinewidth=1.0, label=label, **look(points[0].origin, colour, marker)
        )


def plot_all(axes: Axes, points: Iterable[Point], colours: Mapping[str, Any], *, by_x: bool = True) -> None:
    """Draw every series of a panel in its colour; models name the series in the legend, markers only their origin."""
    groups: dict[tuple[str, Origin], list[Point]] = {}
    for point in points:
        groups.setdefault((point.series, point.origin), []).append(point)
    named: set[str] = set()
    order = list(Origin)
    for (series, _), group in sorted(groups.items(), key=lambda item: order.index(item[0][1])):
        chosen = sorted(group, key=lambda point: float(point.x)) if by_x else group
        plot(axes, chosen, colours[series], label=None if series in named else series)
        named.add(series)


def plain_log_axis(axis: Axis) -> None:
    """A logarithmic axis (its scale is set already) with plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def batch_axis(axes: Axes, values: Iterable[float], label: str = "batch size (sequences)") -> None:
    """A logarithmic axis with a tick at every value."""
    ticks = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(label)


def look(origin: Origin, colour: Any, marker: str = "o") -> dict[str, Any]:
    """The marker of a single value: open if published, filled if measured, a cross where a simulator stands in."""
    if origin is Origin.SIM:
        marker = "x"
    elif origin in LINES:
        raise ValueError(
            f"{origin}: formulas are drawn as lines or bars, so that nobody takes them for a measurement"
        )
    face = colour if origin is Origin.MEASURED else "white"
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 5.5,
        "color": colour,
        "markerfacecolor": face,
        "markeredgewidth": 1.3,
        "zorder": 3,
    }


def errors(points: Sequence[Bounded]) -> Any:
    """Distances to the bounds, [2, points]; None where no point has any."""
    if all(point.low is None for point in points):
        return None
    bounds = [(p.y if p.low is None else p.low, p.y, p.y if p.high is None else p.high) for p in points]
    low, y, high = np.array(bounds).T
    return np.stack([y - low, high - y])


def legend(figure: Figure, axes: Iterable[Axes], points: Iterable[Point], *, ncols: int = 6) -> None:
    """One legend below the picture: what the axes label, then the look of every origin in the picture."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    shown = list(points)
    for origin in Origin:
        if any(point.origin is origin for point in shown):
            banded = origin in LINES and any(p.low is not None for p in shown if p.origin is origin)
            handles[f"{origin}, with band" if banded else str(origin)] = sample(origin, banded=banded)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=ncols,
        frameon=False,
        fontsize="small",
    )


def sample(origin: Origin, colour: Any = GREY, *, banded: bool = False) -> Any:
    """What stands for an origin in a legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if origin in LINES:
        line = Line2D([], [], color=colour, linestyle=LINES[origin])
        return (Patch(facecolor=colour, alpha=BAND, linewidth=0), line) if banded else line
    return Line2D([], [], **look(origin, colour))
