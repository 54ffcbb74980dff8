"""Drawing: what a figure script returns, and how it is written down.

A picture never comes alone: the numbers in it lie beside it as CSV, and its caption says what they rest on.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from figures.marks import Origin
from ssdsim.plotting.style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")


class Point(NamedTuple):
    """One plotted number, in the units of its axes."""

    panel: str
    series: str
    origin: Origin
    x: float | str
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture with its numbers and its caption."""

    figure: Figure
    data: Sequence[NamedTuple]
    """Everything that is plotted, one row per mark; all rows of one type, whose fields head the CSV."""
    caption: str

    def write(self, folder: Path, name: str, formats: Iterable[str]) -> list[Path]:
        """Write NAME.FORMAT for every format, and NAME.csv, into `folder`."""
        written = []
        for suffix in formats:
            written.append(folder / f"{name}.{suffix}")
            save(self.figure, written[-1])
        written.append(folder / f"{name}.csv")
        with written[-1].open("w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(self.data[0]._fields)
            rows.writerows([_cell(value) for value in row] for row in self.data)
        return written


def _cell(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
