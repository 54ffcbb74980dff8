"""Who says so: every number's origin has one look, so that nobody takes a model for a measurement.

Published values are open markers, measured ones filled; models are lines: exact solid with its band, simulated dashed,
the paper's formulas dotted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ssdsim.plotting.style import GREY, METHOD_DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


LINES = {
    Origin.EXACT: METHOD_DASHES["exact"],
    Origin.SIM: METHOD_DASHES["sim"],
    Origin.PAPER: METHOD_DASHES["paper"],
}
BAND = 0.16


def plot(axes: Axes, points: Sequence[Point], colour: Any, *, marker: str = "o", label: str | None = None) -> None:
    """Draw the points of one series and one origin in that origin's look; bounds become a band or error bars."""
    origin = points[0].origin
    x = np.array([point.x for point in points], dtype=float)
    y = np.array([point.y for point in points])
    if origin in LINES:
        axes.plot(x, y, color=colour, linestyle=LINES[origin], label=label)
        if points[0].low is not None:
            low, high = (np.array([getattr(p, bound) for p in points], dtype=float) for bound in ("low", "high"))
            axes.fill_between(x, low, high, color=colour, alpha=BAND, linewidth=0)
        return
    axes.errorbar(x, y, yerr=errors(points), label=label, **look(origin, colour, marker))


def look(origin: Origin, colour: Any, marker: str = "o") -> dict[str, Any]:
    """The marker of a published or measured value."""
    face = colour if origin is Origin.MEASURED else "white"
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": 5.5,
        "color": colour,
        "markerfacecolor": face,
        "markeredgewidth": 1.3,
        "elinewidth": 1.0,
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
            handles[f"{origin}, with band" if banded else str(origin)] = _sample(origin, banded=banded)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=ncols, frameon=False, fontsize="small"
    )


def _sample(origin: Origin, *, banded: bool) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if origin in LINES:
        line = Line2D([], [], color=GREY, linestyle=LINES[origin])
        return (Patch(facecolor=GREY, alpha=BAND, linewidth=0), line) if banded else line
    style = look(origin, GREY)
    style.pop("elinewidth")
    return Line2D([], [], **style)
