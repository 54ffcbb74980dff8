"""Throughput against latency (Figure 7 right, 13): what a device gives over what a request sees, by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.published import rows
from figures import marks, model, ours
from figures.drawing import Drawing, Point
from figures.inputs import Results
from figures.marks import Origin
from figures.published import TITLES
from ssdsim.evaluate import num_devices
from ssdsim.plotting.style import MODE_COLOURS
from ssdsim.scenario import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PUBLISHED = {"llama-3.1-70b": rows.LLAMA, "qwen3-32b": rows.QWEN}
_COLOURS = {mode.upper(): MODE_COLOURS[mode] for mode in Mode}
_BATCHES_NAMED = (1, 8, 64)


def draw(results: Results) -> Drawing:
    """One panel per embedded pair, one more for our runs."""
    from matplotlib.figure import Figure

    panels = {TITLES[name]: list(_points(name)) for name in TITLES}
    if measured := list(_ours(results)):
        panels[ours.title(results)] = measured
    figure = Figure(figsize=(4.0 * len(panels) + 0.6, 3.8), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, points) in zip(grid, panels.items(), strict=True):
        marks.plot_all(axes, points, _COLOURS, by_x=False)
        axes.set(yscale="log", xlabel="output per request (tokens/s)")
        axes.set_xlim(left=0)
        axes.set_title(title, fontsize="medium")
        _name_batches(axes, title, points)
    grid[0].set_ylabel("output per device (tokens/s)")
    everything = [point for points in panels.values() for point in points]
    marks.legend(figure, grid, everything)
    return Drawing(figure=figure, data=everything, caption=_caption(panels))


def _points(name: str) -> Iterator[Point]:
    """The front of the model from batch 1 to 64, and the published points, which are at batch 1."""
    for mode in Mode:
        devices = num_devices(model.scenario(name), mode)
        found = model.choices(name, mode)
        for b, choice in sorted(model.fastest(found).items()):
            rate = found[choice]
            yield Point(TITLES[name], mode.upper(), Origin.EXACT, rate / b, rate / devices)
        table = _PUBLISHED[name]
        for rates in {Mode.AR: [table.ar], Mode.SD: [table.sd], Mode.SSD: list(table.ssd.values())}[mode]:
            rate = sum(rates) / len(rates)
            yield Point(TITLES[name], mode.upper(), Origin.PUBLISHED, rate, rate / devices)


def _ours(results: Results) -> Iterator[Point]:
    """Every measured combination; devices as the run's scenario counts them."""
    profile, title = ours.profile_of(results), ours.title(results)
    for (mode, b), rate in sorted(ours.fastest(ours.rates(results)).items()):
        devices = 2 if mode is Mode.SSD else 1
        if profile is not None:
            devices = num_devices(ours.scenario_of(rate.run, profile), mode)
        bounds = (None if bound is None else bound / devices for bound in (rate.low, rate.high))
        yield Point(title, mode.upper(), rate.origin, rate.value / b, rate.value / devices, *bounds)


def _name_batches(axes: Axes, title: str, points: list[Point]) -> None:
    """The batch size beside some points of every line."""
    for series in dict.fromkeys(point.series for point in points):
        line = [p for p in points if p.series == series and p.origin is Origin.EXACT]
        if len(line) != len(model.BATCH_SIZES):
            continue
        for b, point in zip(model.BATCH_SIZES, line, strict=True):
            axes.plot([point.x], [point.y], marker=".", color=_COLOURS[series], markersize=4)
            if b in _BATCHES_NAMED:
                side, offset = ("right", -4) if series == "AR" else ("left", 4)
                at, place = (float(point.x), point.y), {"xytext": (offset, 4), "textcoords": "offset points"}
                axes.annotate(str(b), at, ha=side, fontsize="x-small", **place)  # type: ignore[arg-type]


def _caption(panels: dict[str, list[Point]]) -> str:
    ends = {}
    for title in list(panels)[:2]:
        last = {p.series: p.y for p in panels[title] if p.origin is Origin.EXACT}
        first = {p.series: p.y for p in reversed(panels[title]) if p.origin is Origin.EXACT}
        ends[title] = (first["SSD"] / first["SD"] - 1, last["SSD"] / last["SD"] - 1)
    words = "; ".join(
        f"{title}: SSD gives {100 * one:+.0f} % per device at batch 1, {100 * many:+.0f} % at 64"
        for title, (one, many) in ends.items()
    )
    return (
        "Per device, SSD pays for its fifth GPU, which moves it down by a fifth. Dots are batches 1, 2, 4, ... 64 "
        f"(some named), each at its best drafting. Against SD, {words}. The paper's Figures 7 and 13 have no "
        "numbers to compare with; published points exist at batch 1 only, so the fronts beyond it rest on measured "
        "kernels."
    )
