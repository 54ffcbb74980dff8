"""Saguaro sampling (Figure 5): acceptance against hits as the constant C falls, and how the residual moves.

Curves are exact statistics of the toy pair; measured runs at several C are shown beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from figures import marks, ours, toy
from figures.drawing import Drawing, Point
from figures.inputs import Results
from figures.marks import Origin
from figures.published import AUTHORS_HIT_RATE, AUTHORS_SAGUARO_HIT_RATE
from ssdsim.plotting.style import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE, lighter
from ssdsim.scenario import Mode
from ssdsim.theory.sampling import cached_mask, saguaro_distribution, saguaro_stats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TEMPERATURE = 1.0
_DOWNWEIGHTS = tuple(np.linspace(0.0, 1.0, 21).tolist())
_NAMED = (0.0, 0.5, 1.0)
_COLOURS = {1: PURPLE, 3: ORANGE, 8: BLUE}
_TRADE, _RESIDUAL = "trade-off", "residual"
_TOKENS = 8
_CACHED, _EXAMPLE_DOWNWEIGHT = 3, 0.6
_TARGET = (0.30, 0.24, 0.16, 0.10, 0.08, 0.06, 0.04, 0.02)
_DRAFT = (0.34, 0.22, 0.17, 0.08, 0.07, 0.06, 0.04, 0.02)
"""An example of one position: a draft that is nearly right."""


def draw(results: Results) -> Drawing:
    """Left the trade-off, right one position without and with Saguaro sampling."""
    from matplotlib.figure import Figure

    trade = [*_curves(), *_measured(results)]
    figure = Figure(figsize=(8.8, 4.2), layout="constrained")
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=[1.0, 1.05]))
    axes = left.add_subplot()
    _draw_trade(axes, trade)
    examples = right.subplots(2, 1, sharex=True)
    bars = [bar for panel, c in zip(examples, (1.0, _EXAMPLE_DOWNWEIGHT), strict=True) for bar in _example(panel, c)]
    examples[1].set_xlabel("token, by the draft's rank")
    examples[1].legend(frameon=False, fontsize="small", loc="upper right")
    return Drawing(figure=figure, data=[*trade, *bars], caption=_caption(trade))


def _curves() -> Iterator[Point]:
    """P(hit | rejection) over acceptance for every C, with the sent token excluded as the algorithm does."""
    pair = toy.distributions(_TEMPERATURE)
    for fan_out in _COLOURS:
        for c in _DOWNWEIGHTS:
            stats = saguaro_stats(*pair, fan_out, c)
            accepted = float(np.mean(stats.acceptance_prob))
            hits = float(np.mean(stats.reject_and_hit_prob)) / (1 - accepted)
            yield Point(_TRADE, f"F={fan_out}", Origin.EXACT, accepted, hits)


def _measured(results: Results) -> Iterator[Point]:
    """Our runs at temperatures above 0: acceptance of the first position, hit rate after a drafted round."""
    for rate in ours.rates(results):
        run, quantities = rate.run, rate.run.quantities
        known = {"acceptance_prob_1", "hit_rate_after_draft"} <= quantities.keys()
        if rate.mode is Mode.SSD and run.workload.temperature > 0 and known:
            series = f"ours, C={run.drafting.saguaro_downweight:g}"
            accepted, hits = quantities["acceptance_prob_1"], quantities["hit_rate_after_draft"]
            yield Point(_TRADE, series, rate.origin, accepted.value, *hits)


def _draw_trade(axes: Axes, points: list[Point]) -> None:
    for fan_out, colour in _COLOURS.items():
        chosen = [point for point in points if point.series == f"F={fan_out}"]
        marks.plot(axes, chosen, colour, label=f"F={fan_out}, toy pair (exact)")
        for c in _NAMED:
            point = chosen[_DOWNWEIGHTS.index(c)]
            axes.plot([float(point.x)], [point.y], marker=".", color=colour)
            place = {"xytext": (5, 5), "textcoords": "offset points"}
            axes.annotate(f"C={c:g}", (float(point.x), point.y), fontsize="x-small", **place)  # type: ignore[arg-type]
    measured = sorted({point.series for point in points if point.series.startswith("ours")}, reverse=True)
    for i, series in enumerate(measured):
        chosen = [point for point in points if point.series == series]
        marks.plot(axes, chosen, lighter(GREEN, 0.7 * i / len(measured)), label=f"{series} ({chosen[0].origin})")
    axes.margins(0.12)
    axes.set(xlabel="acceptance probability", ylabel="P(bonus token cached | rejection)")
    axes.set_title("what C trades", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="lower left")


def _example(axes: Axes, downweight: float) -> list[Point]:
    """One position: target, draft as sampled, and the residual that the bonus token comes from."""
    target, proposal, residual, cached = example(downweight)
    x = np.arange(1, _TOKENS + 1)
    axes.axvspan(0.5, _CACHED + 0.5, color=GREEN, alpha=0.10, linewidth=0, label="cached tokens")
    axes.bar(x - 0.2, target, 0.38, color=lighter(GREY, 0.4), label="target")
    axes.bar(x + 0.2, proposal, 0.38, color=AMBER, label="draft, as sampled")
    axes.bar(x - 0.2, residual, 0.38, bottom=target - residual, color=ORANGE, label="residual")
    axes.set_xticks(x)
    axes.set_ylabel("probability")
    axes.grid(axis="x", visible=False)
    accepted = 1 - residual.sum()
    inside = residual[cached].sum() / residual.sum()
    axes.set_title(
        f"C={downweight:g}: accepted {100 * accepted:.0f} %, residual in the cache {100 * inside:.0f} %",
        fontsize="medium",
    )
    kinds = {"target": target, "draft, as sampled": proposal, "residual": residual}
    panel = f"{_RESIDUAL}, C={downweight:g}"
    return [
        Point(panel, kind, Origin.EXACT, i + 1, float(values[i]))
        for kind, values in kinds.items()
        for i in range(_TOKENS)
    ]


def example(
    downweight: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Target, reweighted draft, residual mass and cached tokens of the example position."""
    target = np.array(_TARGET)
    proposal = saguaro_distribution(_DRAFT, _CACHED, downweight)
    return target, proposal, np.maximum(target - proposal, 0.0), cached_mask(_DRAFT, _CACHED)


def _caption(trade: list[Point]) -> str:
    three = [point for point in trade if point.series == "F=3"]
    plain, half = three[_DOWNWEIGHTS.index(1.0)], three[_DOWNWEIGHTS.index(0.5)]
    text = (
        f"Left: {toy.NAME} (temperature {_TEMPERATURE:g}; no real pair), exact statistics per position with the "
        f"sent token excluded. At F=3, C=.5 moves hits given rejection from {plain.y:.2f} to {half.y:.2f} and "
        f"acceptance from {float(plain.x):.2f} to {float(half.x):.2f}. Right: down-weighting the cached tokens "
        "moves the residual, from which the bonus token is drawn, onto them. The paper prints no numbers; a "
        f"development run of the authors has hit rates of {AUTHORS_HIT_RATE:.2f} without and "
        f"{AUTHORS_SAGUARO_HIT_RATE:.2f} with Saguaro sampling (C not given). With the exclusion, lowering C need "
        "not raise hits (the fixed set of Theorem 15 would), so C is to be searched."
    )
    measured = any(point.origin is Origin.MEASURED for point in trade)
    return text + (" Filled markers are our own runs (hit rates after a drafted round)." if measured else "")
