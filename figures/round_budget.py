"""Where a round's time goes: look-up, fallback, verification, wait for the build, host; and the build beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.published import rates, rows
from figures import marks, ours
from figures.drawing import Drawing
from figures.inputs import Results
from figures.marks import Origin
from figures.published import CASES, QWEN_TARGET_WAITS_S, TITLES
from ssdsim.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, lighter
from ssdsim.scenario import Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_VERIFY = "verify, accept, messages"
_BUILD = "build, beside the verification"
_ROUND = "whole round"
_PARTS = {
    "draft (SD), or answer misses": ("fallback_s", GREEN),
    "look-up and host": ("overhead_s", lighter(GREY, 0.35)),
    _VERIFY: ("window_s", BLUE),
    "wait for the build": ("build_wait_s", PURPLE),
}
_MS = 1e3
_BAR, _BESIDE = 0.42, 0.20


class Part(NamedTuple):
    """One bar of one round, milliseconds."""

    round: str
    origin: Origin
    part: str
    start_ms: float
    duration_ms: float


def draw(results: Results) -> Drawing:
    """One pair of bars per kind of round: what the verifier goes through, and the build below it."""
    from matplotlib.figure import Figure

    models, runs = list(_models()), list(_runs(results))
    points = [Part(*point) for point in _published(models)]
    groups = [group for group in (models, runs) if group]
    sizes = [len(group) for group in groups]
    figure = Figure(figsize=(8.6, 0.6 * sum(sizes) + 0.8 + 0.7 * len(sizes)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=sizes)[:, 0]
    data = []
    for axes, group in zip(panels, groups, strict=True):
        parts = [part for name, origin, seconds in group for part in _parts(name, origin, seconds)]
        _draw(axes, [name for name, _, _ in group], parts, points if group is models else [])
        data += parts
    panels[-1].set_xlabel("time (ms)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return Drawing(figure=figure, data=[*data, *points], caption=_caption(data))


def _models() -> Iterator[tuple[str, Origin, Mapping[str, float]]]:
    """Mean terms of the embedded pairs' rounds with the engine's options, over the data sets."""
    for case in CASES:
        profile, title = case.calibrated_profile(), TITLES[case.name].partition(" /")[0]
        settings: dict[str, tuple[str, dict[str, Any]]] = {f"SD, K={rows.SD_LOOKAHEAD}": ("sd", rates.SD_DRAFTING)}
        settings |= {f"SSD, K={k}": ("ssd", rates.ssd_drafting(k)) for k in sorted(case.rows.ssd)}
        for name, (mode, drafting) in settings.items():
            found = [rates.columns(profile, mode, drafting, kind) for kind in rows.PROMPT_KINDS]
            terms = {term: fmean(columns.get(term, 0.0) for columns in found) for term in _terms()}
            yield f"{title} {name}", Origin.EXACT, terms


def _runs(results: Results) -> Iterator[tuple[str, Origin, Mapping[str, float]]]:
    """The fastest run of every mode at the smallest and at the largest batch."""
    best = ours.fastest(ours.rates(results))
    batches = sorted({b for _, b in best})
    for b in dict.fromkeys([*batches[:1], *batches[-1:]]):
        for mode in (Mode.SD, Mode.SSD):
            if (rate := best.get((mode, b))) is not None:
                quantities = rate.run.quantities
                terms = {term: quantities[term].value if term in quantities else 0.0 for term in _terms()}
                yield f"{rate.origin} {mode.upper()}, {rate.setting}, b={b}", rate.origin, terms


def _terms() -> list[str]:
    return [*(term for term, _ in _PARTS.values()), "build_s"]


def _parts(name: str, origin: Origin, seconds: Mapping[str, float]) -> Iterator[Part]:
    start_ms = 0.0
    for part, (term, _) in _PARTS.items():
        duration_ms = seconds[term] * _MS
        if part == _VERIFY and seconds["build_s"]:
            yield Part(name, origin, _BUILD, start_ms, seconds["build_s"] * _MS)
        yield Part(name, origin, part, start_ms, duration_ms)
        start_ms += duration_ms


def _published(
    shown: list[tuple[str, Origin, Mapping[str, float]]],
) -> Iterator[tuple[str, Origin, str, float, float]]:
    """The reproduction's profile, where the model's bar has its counterpart: each value from the bar's start."""
    for name, _, seconds in shown:
        launch_ms = (seconds["fallback_s"] + seconds["overhead_s"]) * _MS
        if name == "Qwen3-32B SSD, K=4":
            build_s = rows.QWEN_GLUE_S + 4 * rows.QWEN_TREE_STEP_S + rows.QWEN_STORE_S
            yield name, Origin.PUBLISHED, _VERIFY, launch_ms, rows.QWEN_VERIFY_S * _MS
            yield name, Origin.PUBLISHED, _BUILD, launch_ms, build_s * _MS
        if name == "Qwen3-32B SSD, K=7":
            round_s = rows.QWEN_VERIFY_S + QWEN_TARGET_WAITS_S
            yield name, Origin.PUBLISHED, _ROUND, 0.0, round_s * _MS


def _draw(axes: Axes, names: list[str], parts: list[Part], points: list[Part]) -> None:
    labelled: set[str] = set()
    for part in parts:
        y, beside = float(names.index(part.round)), part.part == _BUILD
        colour = ORANGE if beside else _PARTS[part.part][1]
        label = None if part.part in labelled else part.part
        axes.barh(
            y + (_BAR + _BESIDE) / 2 if beside else y,
            part.duration_ms,
            _BESIDE if beside else _BAR,
            left=part.start_ms,
            color=colour,
            edgecolor="white",
            linewidth=0.4,
            label=label,
        )
        labelled.add(part.part)
    for point in points:
        y = names.index(point.round) + ((_BAR + _BESIDE) / 2 if point.part == _BUILD else 0.0)
        label = None if "published" in labelled else "published: where it ended"
        axes.plot([point.start_ms + point.duration_ms], [y], label=label, **marks.look(point.origin, "black"))
        labelled.add("published")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.5)
    axes.set_xlim(0, 1.03 * max(part.start_ms + part.duration_ms for part in parts))
    axes.grid(axis="y", visible=False)


def _caption(parts: list[Part]) -> str:
    waits: dict[str, float] = {}
    for part in parts:
        if part.part not in {_VERIFY, _BUILD}:
            waits[part.round] = waits.get(part.round, 0.0) + part.duration_ms
    return (
        "Mean round of the exact model with the official engine's options (batch 1, mean over data sets); below, "
        "where there are any, runs in RESULTS. SSD hides the build (orange) beside the verification; what outlives "
        "it is waited for. Open markers are the reproduction's: at K=4 verification and build, which are inputs of "
        f"the profile; at K=7 verification and the {QWEN_TARGET_WAITS_S * _MS:.1f} ms that the target waits in a "
        f"round, which are not ({waits['Qwen3-32B SSD, K=7']:.1f} ms in the model). More lookahead is slower there "
        "because the build outlives verification."
    )
