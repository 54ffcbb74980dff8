"""Predicted against measured: published SSD rows by default, and every row of the validation reports in RESULTS."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.published.report import NAMES
from figures import marks
from figures.drawing import Drawing
from figures.inputs import Prediction, Results
from figures.marks import Origin
from figures.published import CASES, TITLES, comparisons
from ssdsim.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from ssdsim.quantities import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)
_HELD_OUT = "held out"
_RATE = "tokens_per_s"


class Pairing(NamedTuple):
    """One prediction and what it answers to."""

    series: str
    origin: Origin
    quantity: str
    setting: str
    calibrated_on: bool
    predicted: float
    actual: float
    actual_low: float | None = None
    actual_high: float | None = None

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.actual - 1


def draw(results: Results) -> Drawing:
    """Left the rates on one diagonal, right the relative errors."""
    from matplotlib.figure import Figure

    pairings = _published() if not results.predictions else [_measured(row) for row in results.predictions]
    rates = [p for p in pairings if p.quantity == _RATE] or pairings
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    scatter, errors = figure.subplots(1, 2, width_ratios=[1.0, 1.15])
    _draw_scatter(scatter, rates)
    _draw_errors(errors, pairings)
    handles, labels = scatter.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return Drawing(figure=figure, data=pairings, caption=_caption(pairings))


def _published() -> list[Pairing]:
    found = []
    for case in CASES:
        lookahead, kinds = case.calibrated_on
        fitted = (lookahead, None) if len(kinds) > 1 else (lookahead, kinds[0])
        for c in comparisons(case.name):
            k, kind = c.row
            setting = f"{NAMES[kind]}, K={k}"
            row = (TITLES[case.name], Origin.PUBLISHED, _RATE, setting, c.row == fitted, c.calibrated, c.published)
            found.append(Pairing(*row))
    return found


def _measured(row: Prediction) -> Pairing:
    calibrated_on = bool(row.split) and row.split.replace("-", " ").replace("_", " ") != _HELD_OUT
    bounds = row.measured_low, row.measured_high
    series = row.method or "prediction"
    return Pairing(
        series, Origin.MEASURED, row.quantity, row.setting, calibrated_on, row.predicted, row.measured, *bounds
    )


def _groups(pairings: list[Pairing]) -> dict[tuple[str, bool], list[Pairing]]:
    groups: dict[tuple[str, bool], list[Pairing]] = {}
    for pairing in pairings:
        groups.setdefault((pairing.series, pairing.calibrated_on), []).append(pairing)
    return groups


def _draw_scatter(axes: Axes, pairings: list[Pairing]) -> None:
    label = label_of(pairings[0].quantity)
    values = np.array([(p.actual, p.predicted) for p in pairings]) * label.scale
    low, high = values.min() * 0.9, values.max() * 1.1
    line = np.array([low, high])
    axes.fill_between(line, 0.95 * line, 1.05 * line, color=GREY, alpha=marks.BAND, linewidth=0, label="within 5 %")
    axes.plot(line, line, color=GREY, linewidth=0.8, label="predicted = actual")
    series = list(dict.fromkeys(p.series for p in pairings))
    for (name, calibrated_on), group in _groups(pairings).items():
        colour, origin = _COLOURS[series.index(name) % len(_COLOURS)], group[0].origin
        points = [_Actual(p.actual * label.scale, *(_scaled(b, label.scale) for b in p[-2:])) for p in group]
        style = marks.look(origin, colour, "s" if calibrated_on else "o")
        text = f"{name}, {origin}" + (", calibrated on" if calibrated_on else "")
        axes.errorbar(
            [p.y for p in points],
            [g.predicted * label.scale for g in group],
            xerr=marks.errors(points),
            label=text,
            elinewidth=1.0,
            **style,
        )
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    if high / low > 8:
        axes.set(xscale="log", yscale="log")
    word = "published" if pairings[0].origin is Origin.PUBLISHED else "measured"
    axes.set_xlabel(f"{word} {label.title}")
    axes.set_ylabel(f"predicted {label.title}")


def _draw_errors(axes: Axes, pairings: list[Pairing]) -> None:
    """Relative errors row by row: by setting where there are few, else by quantity."""
    by_setting = len(pairings) <= 20
    rows = list(dict.fromkeys((p.series, p.setting) if by_setting else ("", p.quantity) for p in pairings))
    series = list(dict.fromkeys(p.series for p in pairings))
    for p in pairings:
        y = rows.index((p.series, p.setting) if by_setting else ("", p.quantity))
        style = marks.look(
            p.origin, _COLOURS[series.index(p.series) % len(_COLOURS)], "s" if p.calibrated_on else "o"
        )
        shift = 0.0 if by_setting else 0.25 * (series.index(p.series) - (len(series) - 1) / 2)
        axes.errorbar([100 * p.error], [y + shift], **style)
    axes.axvspan(-5, 5, color=GREY, alpha=marks.BAND, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=0.8)
    names = [text if by_setting else label_of(text).text for _, text in rows]
    axes.set_yticks(range(len(rows)), names, fontsize="small")
    axes.invert_yaxis()
    widest = max(100 * max(abs(p.error) for p in pairings) * 1.1, 6.0)
    axes.set_xlim(-widest, widest)
    axes.set_xlabel("error of the prediction (%)")


class _Actual(NamedTuple):
    """A measured value with its bounds, scaled for the axis."""

    y: float
    low: float | None
    high: float | None


def _scaled(bound: float | None, scale: float) -> float | None:
    return None if bound is None else bound * scale


def _caption(pairings: list[Pairing]) -> str:
    free = [p for p in pairings if not p.calibrated_on]
    errors = np.array([abs(p.error) for p in free])
    summary = (
        f"{len(free)} predictions that were not calibrated on: median error {100 * np.median(errors):.1f} %, "
        f"largest {100 * errors.max():.1f} %."
        if len(free)
        else "Every row was calibrated on."
    )
    if pairings[0].origin is Origin.PUBLISHED:
        return (
            "The exact model against published SSD rates (open markers; squares: the one rate per pair that its "
            f"single scalar was calibrated on). {summary} AR and SD rows are inputs and not shown. Data sets "
            "differ from the prediction because one hit curve and one acceptance per data set stand for all "
            "positions."
        )
    return f"Predictions against our own runs (filled markers; squares: calibrated on). {summary}"
