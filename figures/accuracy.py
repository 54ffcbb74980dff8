"""Predicted against measured: the held-out points of a validation report in RESULTS, else the published SSD rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from experiments.published.report import NAMES
from figures import marks
from figures.drawing import Drawing
from figures.inputs import Results
from figures.marks import Origin
from figures.published import CASES, TITLES, comparisons
from ssdsim.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from ssdsim.quantities import label_of
from ssdsim.validation.errors import error_of
from ssdsim.validation.predictions import METRICS, SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_METHOD_COLOURS = {"exact": ORANGE, "sim": BLUE, "paper": PURPLE, "replay": GREEN}
_PAIR_COLOURS = {TITLES["llama-3.1-70b"]: BLUE, TITLES["qwen3-32b"]: ORANGE}
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

    @property
    def error(self) -> float:
        """Relative error, or the difference of shares."""
        return error_of(self.quantity, self.predicted, self.actual)


def draw(results: Results) -> Drawing:
    """Left the rates on one diagonal, right the errors."""
    from matplotlib.figure import Figure

    pairings = _measured(results) or _published()
    rows = _rows_by_metric(pairings) if results.predictions else _rows_by_setting(pairings)
    figure = Figure(figsize=(8.8, 3.9), layout="constrained")
    scatter, errors = figure.subplots(1, 2, width_ratios=[1.0, 1.15])
    _draw_scatter(scatter, [p for p in pairings if p.quantity == _RATE])
    _draw_errors(errors, rows)
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


def _measured(results: Results) -> list[Pairing]:
    return [
        Pairing(p.method, p.origin, p.quantity, p.setting, False, p.predicted, p.measured)
        for p in results.predictions
        if p.quantity in METRICS
    ]


def _rows_by_setting(pairings: list[Pairing]) -> dict[str, list[Pairing]]:
    """Every published row on a line of its own, by pair and setting."""
    return {f"{p.series.partition('-')[0]} {p.setting}": [p] for p in pairings}


def _rows_by_metric(pairings: list[Pairing]) -> dict[str, list[Pairing]]:
    """All points of a metric on one line; a share's error is a difference in points."""
    rows: dict[str, list[Pairing]] = {}
    for metric in METRICS:
        if found := [p for p in pairings if p.quantity == metric]:
            rows[label_of(metric).text + (" (points)" if metric in SHARES else "")] = found
    return rows


def _colour(pairing: Pairing) -> str:
    return {**_PAIR_COLOURS, **_METHOD_COLOURS}.get(pairing.series, GREY)


def _draw_scatter(axes: Axes, pairings: list[Pairing]) -> None:
    label = label_of(_RATE)
    values = np.array([(p.actual, p.predicted) for p in pairings])
    low, high = values.min() * 0.9, values.max() * 1.1
    line = np.array([low, high])
    axes.fill_between(line, 0.95 * line, 1.05 * line, color=GREY, alpha=marks.BAND, linewidth=0, label="within 5 %")
    axes.plot(line, line, color=GREY, linewidth=0.8, label="predicted = actual")
    groups: dict[tuple[str, bool], list[Pairing]] = {}
    for pairing in pairings:
        groups.setdefault((pairing.series, pairing.calibrated_on), []).append(pairing)
    origin = pairings[0].origin
    for (name, calibrated_on), group in groups.items():
        style = marks.look(origin, _colour(group[0]), "s" if calibrated_on else "o")
        text = f"{name}, {origin}" + (", calibrated on" if calibrated_on else "")
        axes.plot([p.actual for p in group], [p.predicted for p in group], label=text, **style)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    if high / low > 8:
        axes.set(xscale="log", yscale="log")
        marks.plain_log_axis(axes.xaxis)
        marks.plain_log_axis(axes.yaxis)
    axes.set_xlabel(f"{origin} {label.title}")
    axes.set_ylabel(f"predicted {label.title}")


def _draw_errors(axes: Axes, rows: dict[str, list[Pairing]]) -> None:
    """Errors line by line, the methods of one line a little apart."""
    series = list(dict.fromkeys(p.series for group in rows.values() for p in group))
    for y, group in enumerate(rows.values()):
        apart = 0.22 if len(group) > 1 else 0.0
        for p in group:
            shift = apart * (series.index(p.series) - (len(series) - 1) / 2)
            style = marks.look(p.origin, _colour(p), "s" if p.calibrated_on else "o")
            axes.plot([100 * p.error], [y + shift], **{**style, "markersize": 5.5 if not apart else 4.0})
    axes.axvspan(-5, 5, color=GREY, alpha=marks.BAND, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set_yticks(range(len(rows)), list(rows), fontsize="small")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    widest = max(1.1 * max(100 * abs(p.error) for group in rows.values() for p in group), 6.0)
    axes.set_xlim(-widest, widest)
    if widest > 60:
        axes.set_xscale("symlog", linthresh=10)
        ticks = [tick for tick in (5, 10, 30, 100) if tick < widest]
        axes.set_xticks([*(-tick for tick in reversed(ticks)), 0, *ticks])
        axes.minorticks_off()
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("error of the prediction (%)" + ("; logarithmic beyond 10" if widest > 60 else ""))


def _caption(pairings: list[Pairing]) -> str:
    if pairings[0].origin is Origin.PUBLISHED:
        errors = np.abs([p.error for p in pairings if not p.calibrated_on])
        return (
            "The exact model against published SSD rates (open markers; squares: the one rate per pair that its "
            f"single scalar was calibrated on). {len(errors)} predictions that were not calibrated on: median "
            f"error {100 * np.median(errors):.1f} %, largest {100 * errors.max():.1f} %. AR and SD rows are inputs "
            "and not shown. Data sets differ from the prediction because one hit curve and one acceptance per data "
            "set stand for all positions."
        )
    rates = [p for p in pairings if p.quantity == _RATE]
    by_method = {method: [abs(p.error) for p in rates if p.series == method] for method in _METHOD_COLOURS}
    words = ", ".join(
        f"{method} {100 * float(np.mean(errors)):.1f} % on average and {100 * max(errors):.1f} % at worst"
        for method, errors in by_method.items()
        if errors
    )
    settings = len({p.setting for p in rates})
    truth = (
        "of a simulator that stands in for the executor (crosses: nothing here was measured)"
        if pairings[0].origin is Origin.SIM
        else "of our own runs (filled markers)"
    )
    return f"{settings} held-out settings {truth}, which calibration has not seen. Output rate: {words}."
