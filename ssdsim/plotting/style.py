"""The look that all pictures share: colours that stay apart for the colour-blind, quiet axes, no display needed.

Used by every drawing module. Matplotlib is imported inside the functions, since most of the program never draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, YELLOW, AMBER, GREY = "#56B4E9", "#F0E442", "#E69F00", "#595959"
"""Okabe and Ito's palette."""

MODE_COLOURS = {"ar": GREY, "sd": BLUE, "ssd": ORANGE}
METHOD_DASHES = {"exact": "-", "paper": ":", "sim": "--", "real": "-."}

_SETTINGS: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 120,
    "font.size": 9,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.dpi": 150,
    "svg.hashsalt": "ssdsim",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the common look within this block."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def lighter(colour: str, amount: float) -> tuple[float, float, float]:
    """`colour` mixed with white; 0 leaves it, 1 is white."""
    from matplotlib.colors import to_rgb

    red, green, blue = (channel + (1 - channel) * amount for channel in to_rgb(colour))
    return red, green, blue


def save(figure: Figure, path: Path) -> None:
    """Write `figure` by the suffix of `path`, the same bytes for the same picture."""
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    figure.savefig(path, metadata=metadata)
