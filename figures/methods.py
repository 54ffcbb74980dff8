"""One question, four methods: SSD's rate against batch size as printed, exact, simulated and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from figures import marks, model, ours
from figures.drawing import Drawing, Point
from figures.inputs import Results
from figures.marks import Origin
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from ssdsim.profile import PairProfile
from ssdsim.scenario import Mode, Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = {Origin.EXACT: Method.EXACT, Origin.PAPER: Method.PAPER, Origin.SIM: Method.SIM}
_COLOURS = {Origin.EXACT: ORANGE, Origin.PAPER: PURPLE, Origin.SIM: BLUE, Origin.MEASURED: GREEN}
_OVERRIDES = {
    "drafting.fan_out.per_position": 2,
    "drafting.fallback.kind": "none",
    "workload.output_tokens": {"kind": "uniform", "low": 256, "high": 768},
}
"""Lengths that differ: equal ones would keep the rows of a batch in step for long."""
_EMBEDDED = "Llama-3.1-70B / 3.2-1B, K=7, F=2, no fallback"
_REQUESTS_PER_ROW = 24
_WARMUP_PER_ROW = 6
_RATE, _GAP = "rate", "against exact"
_LINEAR = 2.0
"""Per cent up to which the gaps are drawn on a linear scale, beyond on a logarithmic one."""


def draw(results: Results) -> Drawing:
    """Above the rates, below how far each method is from the exact model."""
    from matplotlib.figure import Figure

    measured, profile = _measured(results), ours.profile_of(results)
    title = _EMBEDDED
    if measured and profile is not None:
        title = f"{ours.title(results)}, the fastest measured drafting at each batch size"
        scenarios = [ours.scenario_of(rate.run, profile) for rate in measured]
    else:
        measured = []
        scenarios = [_embedded(b, results.seed) for b in model.BATCH_SIZES]
    rates = [*_answers(scenarios), *(_of_run(rate) for rate in measured)]
    gaps = list(_gaps(rates))
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1.0])
    for axes, points in zip(panels, (rates, gaps), strict=True):
        for origin, colour in _COLOURS.items():
            marks.plot_all(axes, [point for point in points if point.origin is origin], {"SSD": colour})
    panels[0].set(ylabel="output (tokens/s)", yscale="log")
    marks.plain_log_axis(panels[0].yaxis)
    panels[0].set_title(title, fontsize="medium")
    panels[1].set_yscale("symlog", linthresh=_LINEAR)
    panels[1].set_ylabel("against exact (%)")
    panels[1].yaxis.set_major_formatter("{x:g}")
    panels[1].axhspan(-_LINEAR, _LINEAR, color=GREY, alpha=0.06, linewidth=0)
    marks.batch_axis(panels[1], [point.x for point in rates])  # type: ignore[misc]
    _legend(figure, rates)
    return Drawing(figure=figure, data=[*rates, *gaps], caption=_caption(gaps, measured, profile))


def _embedded(batch_size: int, seed: int) -> Scenario:
    """The embedded pair in a closed loop, long enough to be measured in its steady state."""
    load = {
        "batch_size": batch_size,
        "run.seed": seed,
        "num_requests": _REQUESTS_PER_ROW * batch_size,
        "warmup_requests": _WARMUP_PER_ROW * batch_size,
    }
    return model.scenario("llama-3.1-70b", {**_OVERRIDES, **load})


def _measured(results: Results) -> list[ours.Rate]:
    """The fastest measured SSD combination of every batch size."""
    best = ours.fastest(rate for rate in ours.rates(results) if rate.mode is Mode.SSD)
    measured = [rate for rate in best.values() if rate.origin is Origin.MEASURED]
    return sorted(measured, key=lambda rate: rate.batch_size)


def _answers(scenarios: list[Scenario]) -> Iterator[Point]:
    for origin, method in _METHODS.items():
        for scenario in scenarios:
            try:
                rate = evaluate(scenario, method, Mode.SSD).quantities["tokens_per_s"]
            except InputError:
                continue  # the method does not cover this scenario
            yield Point(_RATE, "SSD", origin, scenario.workload.batch_size, *rate)


def _of_run(rate: ours.Rate) -> Point:
    return Point(_RATE, "SSD", rate.origin, rate.batch_size, rate.value, rate.low, rate.high)


def _gaps(rates: list[Point]) -> Iterator[Point]:
    """Per cent above the exact model."""
    exact = {point.x: point.y for point in rates if point.origin is Origin.EXACT}
    for p in rates:
        if p.x in exact:
            value, low, high = (None if v is None else 100 * (v / exact[p.x] - 1) for v in (p.y, p.low, p.high))
            yield Point(_GAP, p.series, p.origin, p.x, value or 0.0, low, high)


def _legend(figure: Figure, rates: list[Point]) -> None:
    """Colours tell the methods apart here, besides the look of their origin."""
    present = [origin for origin in _COLOURS if any(point.origin is origin for point in rates)]
    handles = [marks.sample(origin, _COLOURS[origin]) for origin in present]
    labels = [f"{origin} (band: 95 %)" if origin is Origin.SIM else str(origin) for origin in present]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")


def _caption(gaps: list[Point], measured: list[ours.Rate], profile: PairProfile | None) -> str:
    last = max(float(point.x) for point in gaps)
    paper = {float(p.x): p.y for p in gaps if p.origin is Origin.PAPER}
    sim = max((abs(p.y) for p in gaps if p.origin is Origin.SIM), default=0.0)
    parts = ["The same scenario by every method."]
    if last in paper:
        parts.append(
            f"The formulas as printed are {paper[last]:+.0f} % from the exact model at batch {last:.0f}: they "
            "charge a verification the time of one AR step whatever its width, and no communication."
        )
    parts.append(f"Simulation (band: 95 %) and exact model differ by at most {sim:.1f} %.")
    if measured:
        real = [p for p in gaps if p.origin is Origin.MEASURED]
        parts.append(f"Our runs are within {max(abs(p.y) for p in real):.1f} % of the exact model.")
    else:
        parts.append(
            "Nothing of this pair was measured at these batches"
            + (" (RESULTS holds no measured SSD run with a profile)." if profile is None else ".")
        )
    return " ".join(parts)
