"""Spans of work from records: every phase where and when it happened, nothing overlapping in a lane."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from toy_scenarios import toy, toy_pair

from ssdsim.errors import InputError
from ssdsim.plotting.chrome_trace import write_chrome_trace
from ssdsim.plotting.lanes import Lane, Span, Work, spans_of
from ssdsim.plotting.timeline import draw_timeline
from ssdsim.records import Records
from ssdsim.sim import simulate

PHASES = {
    "verify": 1.0,
    "draft_step": 0.125,
    "tree_step": 0.0625,
    "glue": 0.125,
    "store": 0.03125,
    "lookup": 0.015625,
    "accept": 0.03125,
    "reply": 0.0078125,
    "outcome": 0.00390625,
    "host": 0.25,
    "prefill": 0.5,
}
KINDS: dict[str, dict[str, Any]] = {
    "ssd": {"fallback__kind": "jit", "batch_size": 3},
    "ssd late, waited for": {"tree_step": 0.5, "fallback__kind": "jit", "batch_size": 3},
    "ssd late, aborted": {"tree_step": 0.5, "fallback__kind": "jit", "batch_size": 3, "on_late": "abort"},
    "ssd late, truncated": {"tree_step": 0.5, "fallback__kind": "jit", "batch_size": 3, "on_late": "truncate"},
    "sd": {"mode": "sd"},
    "ar": {"mode": "ar"},
}


def run(**fields: Any) -> Records:
    phases = {**PHASES, **{name: fields.pop(name) for name in tuple(fields) if name in PHASES}}
    costs = {"kind": "components", **{name: {"kind": "constant", "seconds": s} for name, s in phases.items()}}
    return simulate(toy(toy_pair(costs=costs), num_rounds=60, warmup_rounds=0, **fields)).records


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_does_two_things_at_once(kind: str) -> None:
    spans = list(spans_of(run(**KINDS[kind])))
    for lane in Lane:
        busy = sorted((span.start_s, span.duration_s) for span in spans if span.lane is lane)
        for (start_s, duration_s), (next_s, _) in pairwise(busy):
            assert start_s + duration_s <= next_s + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_happens_before_its_cause(kind: str) -> None:
    """Verification begins when look-up, fallback and the rest of an aborted build are done."""
    spans = list(spans_of(run(**KINDS[kind])))
    for number in range(60):
        mine = [span for span in spans if span.round == number]
        checks = next(span.start_s for span in mine if span.work is Work.VERIFY)
        before = {Work.PREFILL, Work.LOOKUP, Work.FIRST, Work.FALLBACK, Work.REST, Work.DRAFT}
        assert all(span.start_s + span.duration_s <= checks + 1e-9 for span in mine if span.work in before)


def test_a_round_is_laid_out_as_it_ran() -> None:
    """Round 0 of one sequence: look-up, five draft steps, the rest of the prefill; verification beside the build."""
    spans = list(spans_of(run(fallback__kind="jit"), count=1))
    drafted_s = 0.015625 + 5 * 0.0625
    launch_s = 0.5
    verified_s = launch_s + 0.0078125
    assert spans == [
        Span(Lane.VERIFIER, Work.PREFILL, drafted_s, launch_s - drafted_s, 0),
        Span(Lane.SPECULATOR, Work.LOOKUP, 0.0, 0.015625, 0),
        Span(Lane.FALLBACK, Work.FIRST, 0.015625, 0.3125, 0),
        Span(Lane.VERIFIER, Work.REPLY, launch_s, 0.0078125, 0),
        Span(Lane.VERIFIER, Work.VERIFY, verified_s, 1.0, 0),
        Span(Lane.VERIFIER, Work.ACCEPT, verified_s + 1.0, 0.03125, 0),
        Span(Lane.VERIFIER, Work.OUTCOME, verified_s + 1.03125, 0.00390625, 0),
        Span(Lane.SPECULATOR, Work.GLUE, launch_s, 0.125, 0),
        Span(Lane.SPECULATOR, Work.TREE, launch_s + 0.125, 0.3125, 0),
        Span(Lane.SPECULATOR, Work.STORE, launch_s + 0.4375, 0.03125, 0),
        Span(Lane.VERIFIER, Work.HOST, verified_s + 1.03515625, 0.25, 0),
    ]


def test_an_aborted_build_goes_on_for_the_hits_only() -> None:
    """2.65625 of build outlive 1.04296875 of window; the rest runs in the next round if some row hits."""
    records = run(**KINDS["ssd late, aborted"])
    rest = {span.round: span.duration_s for span in spans_of(records) if span.work is Work.REST}
    hits = records.rounds.columns()["num_hits"]
    assert set(rest) == {number for number in range(1, 60) if hits[number]}
    assert set(rest.values()) == {2.65625 - 1.04296875}


def test_a_trace_is_json_that_viewers_read(tmp_path: Path) -> None:
    """Complete events with microseconds, one named thread per lane, counters of look-ups."""
    records = run(fallback__kind="jit")
    write_chrome_trace(records, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads == {"verifier", "speculator", "fallback"}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(list(spans_of(records)))
    verify = next(event for event in complete if event["name"] == "verify")
    assert (verify["ts"], verify["dur"]) == (507812.5, 1e6)
    assert sum(event["ph"] == "C" for event in events) == len(records.rounds)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_run_can_be_drawn(kind: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"timeline{suffix}"
    draw_timeline(run(**KINDS[kind]), path)
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in head or b"<?xml" in head


def test_a_timeline_names_its_lanes_and_work(tmp_path: Path) -> None:
    draw_timeline(run(fallback__kind="jit", batch_size=3), tmp_path / "timeline.svg", num_rounds=8)
    text = (tmp_path / "timeline.svg").read_text()
    labels = (
        "verifier",
        "speculator",
        "fallback",
        "time (ms)",
        "verify",
        "tree steps",
        "answer misses",
        "0: 3 first",
    )
    assert [label for label in labels if label not in text] == []


def test_rounds_that_are_not_there_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it recorded 60"):
        draw_timeline(run(), tmp_path / "timeline.png", first_round=60)
