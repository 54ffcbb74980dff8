"""SD and SSD on one clock (Figure 1, left and middle): who works when, and who waits.

From records: the first SD run and the first SSD run in RESULTS, else a simulation of the embedded Llama pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from figures.drawing import Drawing
from figures.inputs import Results
from figures.marks import Origin
from ssdsim.plotting.lanes import Lane, Span, Work, spans_of
from ssdsim.plotting.style import AMBER, BLUE, GREEN, GREY, ORANGE, PURPLE, lighter
from ssdsim.records import Records, Source
from ssdsim.scenario import Mode
from ssdsim.scenario_files import load_scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SSD_ROUNDS = 9
"""Rounds of SSD; SD is shown for as long."""
_EMBEDDED = "Llama-3.1-70B / 3.2-1B on UltraFeedback prompts, greedy, K=7, fan-out 3"
_PROMPTS = "ultrafeedback"
"""The data set with the lowest acceptance, so that a miss is not long in coming."""

_GROUPS: dict[str, tuple[tuple[Work, ...], str | tuple[float, float, float]]] = {
    "verify": ((Work.VERIFY, Work.ACCEPT), BLUE),
    "messages, host": ((Work.REPLY, Work.OUTCOME, Work.HOST), lighter(GREY, 0.35)),
    "draft (SD)": ((Work.DRAFT,), GREEN),
    "build the cache": ((Work.GLUE, Work.TREE, Work.STORE, Work.REST), ORANGE),
    "look up": ((Work.LOOKUP,), AMBER),
    "draft after a miss, or first": ((Work.FALLBACK, Work.FIRST), PURPLE),
}
_LANES = {Lane.VERIFIER: 1, Lane.SPECULATOR: 0, Lane.FALLBACK: 0}
"""The fallback runs on the speculator's device."""
_AFTER_A_MISS = "#9B3F74"
"""The colour of drafting after a miss, dark enough for text."""
_HEIGHT = 0.62
_VISIBLE = 5e-4
"""Of the width of the picture: shorter bars could not be seen, and need no entry in the legend."""
_MS = 1e3


class Bar(NamedTuple):
    """One piece of work; times in milliseconds from the start of the picture."""

    mode: str
    lane: str
    work: str
    round: int
    start_ms: float
    duration_ms: float


class _Source(NamedTuple):
    """A run that the picture may show."""

    mode: Mode
    origin: Origin
    source: str
    records: Records


class _Shown(NamedTuple):
    """A stretch of rounds of one run."""

    mode: Mode
    origin: Origin
    source: str
    records: Records
    first: int
    num_rounds: int

    @property
    def start_s(self) -> float:
        return float(self.records.rounds.columns()["start_s"][self.first])

    @property
    def end_s(self) -> float:
        last = self.records.rounds.columns()
        return float((last["start_s"] + last["round_s"])[self.first + self.num_rounds - 1])

    def spans(self) -> list[Span]:
        return list(spans_of(self.records, self.first, self.num_rounds))


def draw(results: Results) -> Drawing:
    """A panel per mode over the same stretch of time, which is that of a few SSD rounds around a miss."""
    from matplotlib.figure import Figure

    sources = _sources(results)
    main = _around_a_miss(sources[-1])
    span_s = main.end_s - main.start_s
    stretches = [*(_as_long(source, span_s) for source in sources[:-1]), main]
    figure = Figure(figsize=(8.6, 0.8 + 1.6 * len(stretches)), layout="constrained")
    panels = figure.subplots(len(stretches), 1, sharex=True, squeeze=False)[:, 0]
    bars: list[Bar] = []
    for axes, shown in zip(panels, stretches, strict=True):
        bars += _draw(axes, shown, span_s * _MS)
    panels[0].set_xlim(0, span_s * _MS)
    panels[-1].set_xlabel("time (ms)")
    handles = {t: h for axes in panels for h, t in zip(*axes.get_legend_handles_labels(), strict=True)}
    order = [name for name in _GROUPS if name in handles]
    figure.legend(
        [handles[name] for name in order], order, loc="outside lower center", ncols=6, frameon=False, fontsize="small"
    )
    return Drawing(figure=figure, data=bars, caption=_caption(stretches))


def _sources(results: Results) -> list[_Source]:
    """SD and SSD, or what RESULTS has of them, at the same batch size if it can be; else two simulations."""
    found: list[_Source] = []
    for run in results.runs_of(Mode.SSD)[:1]:
        alike = [sd for sd in results.runs_of(Mode.SD) if sd.workload.batch_size == run.workload.batch_size]
        found = [_Source(one.mode, one.origin, one.name, one.records) for one in (*alike[:1], run)]
    if found:
        return found
    if runs := results.runs_of(Mode.SD):
        return [_Source(Mode.SD, runs[0].origin, runs[0].name, runs[0].records)]
    return [_Source(m, Origin.SIM, _EMBEDDED, simulated(m, results.seed)) for m in (Mode.SD, Mode.SSD)]


def _around_a_miss(source: _Source) -> _Shown:
    """SSD_ROUNDS around the first miss that does not come at once."""
    rounds = source.records.rounds.columns()
    first = _quiet_start(rounds["num_misses"], len(rounds["round"]))
    return _Shown(*source, first, min(SSD_ROUNDS, len(rounds["round"]) - first))


def _as_long(source: _Source, duration_s: float) -> _Shown:
    """As many rounds, from the second on, as fill a time."""
    rounds = source.records.rounds.columns()
    first = min(1, len(rounds["round"]) - 1)
    elapsed_s = (rounds["start_s"] + rounds["round_s"])[first:] - rounds["start_s"][first]
    count = int(np.searchsorted(elapsed_s, duration_s)) + 1
    return _Shown(*source, first, min(count, len(rounds["round"]) - first))


def _quiet_start(num_misses: np.ndarray, num_rounds: int) -> int:
    """A start some rounds before the first miss, after the first round of all."""
    misses = np.flatnonzero(num_misses[1:])
    wanted = int(misses[0]) + 1 - SSD_ROUNDS // 2 if len(misses) else 1
    return max(min(1, num_rounds - 1), min(wanted, num_rounds - SSD_ROUNDS))


def simulated(mode: Mode, seed: int = 0) -> Records:
    """A short run of the embedded pair at batch 1."""
    from ssdsim.sim import simulate

    overrides = [
        f"mode={mode}",
        "num_requests=1",
        "workload.arrivals=static",
        f"prompt_kind={_PROMPTS}",
        f"seed={seed}",
    ]
    return simulate(load_scenario(overrides=overrides)).records


def _draw(axes: Axes, shown: _Shown, span_ms: float) -> list[Bar]:
    bars = [
        Bar(shown.mode, span.lane, span.work, span.round, (span.start_s - shown.start_s) * _MS, span.duration_s * _MS)
        for span in shown.spans()
    ]
    for name, (works, colour) in _GROUPS.items():
        for lane, row in _LANES.items():
            mine = [bar for bar in bars if bar.work in works and bar.lane == lane]
            found = [(bar.start_ms, bar.duration_ms) for bar in mine if bar.duration_ms > _VISIBLE * span_ms]
            if found:
                axes.broken_barh(
                    found,
                    (row - _HEIGHT / 2, _HEIGHT),
                    facecolors=colour,
                    edgecolor="white",
                    linewidth=0.5,
                    label=name,
                )
    _mark_tokens(axes, shown, span_ms)
    axes.set_yticks([1, 0], ["verifier", "speculator" if shown.mode is Mode.SSD else "drafter"])
    axes.set_ylim(-0.5, 1.85)
    axes.grid(axis="y", visible=False)
    return bars


def _mark_tokens(axes: Axes, shown: _Shown, span_ms: float) -> None:
    """How many tokens each round gave, and which rounds were answered after a miss."""
    rounds, outcomes = shown.records.rounds.columns(), shown.records.outcomes.columns()
    total = 0
    for i in range(shown.first, shown.first + shown.num_rounds):
        rows = outcomes["round"] == rounds["round"][i]
        tokens = int(outcomes["num_emitted"][rows].sum())
        start_ms = (rounds["start_s"][i] - shown.start_s) * _MS
        middle_ms = start_ms + rounds["round_s"][i] / 2 * _MS
        if start_ms + rounds["round_s"][i] * _MS > span_ms * 1.001:
            break
        total += tokens
        missed = bool(np.isin(outcomes["source"][rows], [Source.JIT, Source.NONE, Source.RANDOM, Source.NGRAM]).any())
        text, colour = (f"miss: +{tokens}", _AFTER_A_MISS) if missed else (f"+{tokens}", "black")
        axes.text(middle_ms, 1.42, text, ha="center", va="bottom", fontsize="small", color=colour)
        axes.axvline(start_ms, color=GREY, linewidth=0.6, linestyle=":")
    batch = int(rounds["batch_size"][shown.first])
    axes.set_title(
        f"{shown.mode.upper()}, {shown.origin}, batch {batch}: {total} tokens in {span_ms:.0f} ms",
        fontsize="medium",
        loc="left",
    )


def _caption(stretches: list[_Shown]) -> str:
    named = {shown.source: shown.origin for shown in stretches}
    sources = " ".join(f"{shown.mode.upper()} is {shown.origin}: {shown.source}." for shown in stretches)
    if len(named) < len(stretches):
        sources = f"Both are {stretches[0].origin}: {stretches[0].source}."
    return (
        "SD drafts while the verifier idles and verifies while the drafter idles; SSD builds its cache beside "
        "verification and drafts in between only after a miss or for a request's first round. Numbers are tokens "
        f"emitted per round. {sources} The paper's Figure 1 (left, middle) is a sketch without times; here every bar "
        "has its own."
    )
