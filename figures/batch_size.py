"""Speed-up over AR against batch size, for SD and SSD at their best: the model, published points, our runs."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from experiments.published import rows
from figures import marks, model, ours
from figures.drawing import Drawing, Point
from figures.inputs import Results
from figures.marks import Origin
from figures.published import TITLES, extremes
from ssdsim.plotting.style import MODE_COLOURS, lighter
from ssdsim.scenario import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PUBLISHED = {"llama-3.1-70b": rows.LLAMA, "qwen3-32b": rows.QWEN}
_KEPT = "SSD, drafting kept from batch 1"


def draw(results: Results) -> Drawing:
    """One panel per embedded pair, one more for the runs in RESULTS."""
    from matplotlib.figure import Figure

    panels = {TITLES[name]: _points(name) for name in TITLES}
    if measured := _ours(results):
        panels[ours.title(results)] = measured
    figure = Figure(figsize=(4.0 * len(panels) + 0.6, 3.6), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, points) in zip(grid, panels.items(), strict=True):
        _draw(axes, title, points)
    grid[0].set_ylabel("speed-up over AR of the same batch (x)")
    everything = [point for points in panels.values() for point in points]
    marks.legend(figure, grid, everything, ncols=7)
    return Drawing(
        figure=figure, data=everything, caption=_caption(panels[TITLES["llama-3.1-70b"]], panels[TITLES["qwen3-32b"]])
    )


def _points(name: str) -> list[Point]:
    found = {mode: model.choices(name, mode) for mode in Mode}
    ar = {choice.batch_size: rate for choice, rate in found[Mode.AR].items()}
    points = [Point(TITLES[name], "AR", Origin.EXACT, b, 1.0) for b in model.BATCH_SIZES]
    best = model.fastest(found[Mode.SD])
    points += [Point(TITLES[name], "SD", Origin.EXACT, b, found[Mode.SD][c] / ar[b]) for b, c in best.items()]
    best = model.fastest(found[Mode.SSD])
    worse, better = (model.choices(dict(profile), Mode.SSD) for profile in extremes(name))
    for b, choice in best.items():
        rates = (found[Mode.SSD][choice], worse[choice], better[choice])
        points.append(Point(TITLES[name], "SSD", Origin.EXACT, b, *(rate / ar[b] for rate in rates)))
    kept = {b: best[1]._replace(batch_size=b) for b in model.BATCH_SIZES}
    points += [Point(TITLES[name], _KEPT, Origin.EXACT, b, found[Mode.SSD][c] / ar[b]) for b, c in kept.items()]
    return points + _published(name)


def _published(name: str) -> list[Point]:
    table = _PUBLISHED[name]
    ar = fmean(table.ar)
    speedups = {"SD": fmean(table.sd) / ar, **{f"SSD, K={k}": fmean(r) / ar for k, r in table.ssd.items()}}
    return [Point(TITLES[name], series, Origin.PUBLISHED, 1, value) for series, value in speedups.items()]


def _ours(results: Results) -> list[Point]:
    """The fastest combination per mode and batch size over AR's, and what the profile predicts for it."""
    title, profile, points = ours.title(results), ours.profile_of(results), []
    best = ours.fastest(ours.rates(results))
    for (mode, b), rate in sorted(best.items()):
        base = best.get((Mode.AR, b))
        if base is None:
            continue
        bounds = (None if bound is None else bound / base.value for bound in (rate.low, rate.high))
        points.append(Point(title, mode.upper(), rate.origin, b, rate.value / base.value, *bounds))
        if profile is not None:
            own, reference = ours.predicted(rate.run, profile), ours.predicted(base.run, profile)
            if own is not None and reference is not None:
                points.append(Point(title, mode.upper(), Origin.EXACT, b, own / reference))
    return points


def _draw(axes: Axes, title: str, points: list[Point]) -> None:
    for series, origin in dict.fromkeys((point.series, point.origin) for point in points):
        mode = series.partition(",")[0].lower()
        colour = lighter(MODE_COLOURS[mode], 0.5) if series == _KEPT else MODE_COLOURS[mode]
        chosen = sorted((p for p in points if (p.series, p.origin) == (series, origin)), key=lambda p: float(p.x))
        label = series if series in {"AR", "SD", "SSD", _KEPT} and origin in marks.LINES else None
        marks.plot(axes, chosen, colour, label=label)
    _name_published(axes, points)
    batches = sorted({float(point.x) for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [f"{b:g}" for b in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch size (sequences)")
    axes.set_ylim(bottom=0)
    axes.set_title(title, fontsize="medium")


def _name_published(axes: Axes, points: list[Point]) -> None:
    """Which lookahead a published SSD point has, where there are several."""
    several = [p for p in points if p.origin is Origin.PUBLISHED and p.series.startswith("SSD")]
    for point in several if len(several) > 1 else ():
        axes.annotate(
            point.series.partition(", ")[2],
            (float(point.x), point.y),
            xytext=(8, -10),
            textcoords="offset points",
            fontsize="x-small",
        )


def _caption(llama: list[Point], qwen: list[Point]) -> str:
    gaps = [_gap(llama, "SD", "SD"), _gap(llama, "SSD", "SSD, K=7"), _gap(qwen, "SD", "SD")]
    gaps.append(_gap(qwen, "SSD", "SSD, K=4"))
    llama_sd, llama_ssd, qwen_sd, qwen_ssd = (f"{100 * gap:+.0f} %" for gap in gaps)
    return (
        "Lines are the exact model at the best drafting per batch size (K up to 7, F up to 3, jit or no fallback); "
        "the pale line keeps what is best at batch 1. The band takes every assumed number at its worse, and at its "
        "better end. Published rows exist at batch 1 only: all growth with the batch rests on measured kernels and "
        f"is extrapolated. At batch 1 the lines are {llama_sd} (SD) and {llama_ssd} (SSD) from the published rows "
        f"for Llama, {qwen_sd} and {qwen_ssd} (against K=4) for Qwen: they take the best lookahead, and K draft "
        "steps for K tokens, where the engine's SD runs seven steps for six, re-drafts the whole batch on a miss "
        "and counts a request's first round as one."
    )


def _gap(points: list[Point], modelled: str, published: str) -> float:
    """How far the model is from a published row at batch 1."""
    at_one = {(p.series, p.origin): p.y for p in points if p.x == 1}
    return at_one[modelled, Origin.EXACT] / at_one[published, Origin.PUBLISHED] - 1
