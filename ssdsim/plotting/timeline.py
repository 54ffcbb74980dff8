"""The first rounds of a run as lanes of verifier, speculator and fallback, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ssdsim.errors import InputError
from ssdsim.plotting.lanes import Lane, Span, Work, spans_of
from ssdsim.plotting.style import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, YELLOW, lighter, save, style
from ssdsim.records import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    Work.VERIFY: BLUE,
    Work.ACCEPT: SKY,
    Work.REPLY: lighter(GREY, 0.4),
    Work.OUTCOME: lighter(GREY, 0.65),
    Work.HOST: GREY,
    Work.PREFILL: lighter(BLUE, 0.5),
    Work.LOOKUP: YELLOW,
    Work.GLUE: AMBER,
    Work.TREE: ORANGE,
    Work.STORE: lighter(ORANGE, 0.55),
    Work.REST: lighter(ORANGE, 0.3),
    Work.DRAFT: GREEN,
    Work.FALLBACK: PURPLE,
    Work.FIRST: lighter(PURPLE, 0.5),
}
_HEIGHT = 0.7
_MS = 1e3


def draw_timeline(records: Records, path: Path, *, first_round: int = 0, num_rounds: int = 6) -> None:
    """Draw `num_rounds` recorded rounds from the `first_round`-th on into the file `path` (.png, .svg, .pdf)."""
    spans = list(spans_of(records, first_round, num_rounds))
    if not spans:
        raise InputError(f"timeline: the run has no round {first_round}; it recorded {len(records.rounds)}")
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(max(8.0, 1.6 * num_rounds), 3.0), layout="constrained")
        axes = figure.add_subplot()
        _draw_spans(axes, spans)
        _mark_rounds(axes, records, first_round, num_rounds)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False, fontsize="small")
        save(figure, path)


def _draw_spans(axes: Axes, spans: list[Span]) -> None:
    lanes = list(reversed(Lane))
    for work in Work:
        for lane in lanes:
            bars = [(s.start_s * _MS, s.duration_s * _MS) for s in spans if s.work is work and s.lane is lane]
            if bars:
                row = (lanes.index(lane) - _HEIGHT / 2, _HEIGHT)
                axes.broken_barh(
                    bars, row, facecolors=_COLOURS[work], edgecolor="white", linewidth=0.4, label=work.value
                )
    axes.set_yticks(range(len(lanes)), [lane.value for lane in lanes])
    axes.set_ylim(-0.6, len(lanes) - 0.1)
    axes.set_xlabel("time (ms)")
    axes.grid(axis="y", visible=False)


def _mark_rounds(axes: Axes, records: Records, first: int, count: int) -> None:
    """A line where each round begins, with how its rows were answered."""
    rounds = {name: column[first : first + count] for name, column in records.rounds.columns().items()}
    starts_ms = rounds["start_s"] * _MS
    for i, start_ms in enumerate(starts_ms.tolist()):
        axes.axvline(start_ms, color=GREY, linewidth=0.6, linestyle=":")
        answered = [
            f"{rounds[name][i]} {text}"
            for name, text in (("num_hits", "hit"), ("num_misses", "missed"), ("num_first", "first"))
            if rounds[name][i]
        ]
        text = f" {rounds['round'][i]}: {', '.join(answered)}" if answered else f" {rounds['round'][i]}"
        axes.text(start_ms, 2.95, text, fontsize="x-small", va="top")
    end_ms = float((rounds["start_s"] + rounds["round_s"])[-1]) * _MS
    axes.set_xlim(float(starts_ms[0]), end_ms)
    axes.set_title(_title(records), fontsize="medium")


def _title(records: Records) -> str:
    """What was run, as far as the records tell."""
    scenario = records.about.get("scenario")
    if scenario is None:
        return ""
    size = scenario["workload"]["batch_size"]
    return f"{scenario['pair']['name']}, {scenario['mode'].upper()}, batch size {size}"
