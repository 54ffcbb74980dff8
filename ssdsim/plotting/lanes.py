"""Rounds as spans of work in lanes (verifier, speculator, fallback), from records of the simulator or the executor.

Used by `timeline` and `chrome_trace`, which draw the same spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from ssdsim.records import Fallback, Records

_ROUNDING_S = 1e-12


class Lane(StrEnum):
    """Who is at work."""

    VERIFIER = "verifier"
    SPECULATOR = "speculator"
    FALLBACK = "fallback"


class Work(StrEnum):
    """What is done in a span."""

    PREFILL = "prefill"
    LOOKUP = "look-up"
    FALLBACK = "answer misses"
    FIRST = "first drafts"
    DRAFT = "draft"
    REPLY = "reply travels"
    VERIFY = "verify"
    ACCEPT = "accept"
    OUTCOME = "outcomes travel"
    GLUE = "glue"
    TREE = "tree steps"
    STORE = "store"
    REST = "rest of the build"
    HOST = "host"


class Span(NamedTuple):
    """One piece of work."""

    lane: Lane
    work: Work
    start_s: float
    duration_s: float
    round: int


def spans_of(records: Records, first: int = 0, count: int | None = None) -> Iterator[Span]:
    """The spans of `count` recorded rounds from the `first` on, round by round."""
    columns = {name: column[first:][:count].tolist() for name, column in records.rounds.columns().items()}
    interrupted_s = 0.0
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield from (span for span in _round(row, interrupted_s) if span.duration_s > _ROUNDING_S)
        interrupted_s = _interrupted(row)


def _round(row: dict[str, Any], interrupted_s: float) -> Iterator[Span]:
    """Look-up, fallback and what is left of a prefill, then verification and build side by side, then the host.

    Where one process does everything (AR, SD), the prefill comes first and delays all the rest.
    """
    number, start_s = row["round"], row["start_s"]
    launch_s = start_s + row["verifier_wait_s"]
    lane, work = _drafting(row)
    first_s = start_s + (row["prefill_s"] if work is Work.DRAFT else 0.0)
    looked_up_s = first_s + row["lookup_s"]
    prefill_from_s = start_s if work is Work.DRAFT else launch_s - row["prefill_s"]
    yield Span(Lane.VERIFIER, Work.PREFILL, prefill_from_s, row["prefill_s"], number)
    yield Span(Lane.SPECULATOR, Work.LOOKUP, first_s, row["lookup_s"], number)
    yield Span(lane, work, looked_up_s, row["fallback_s"], number)
    if row["num_hits"]:
        yield Span(Lane.SPECULATOR, Work.REST, looked_up_s, interrupted_s, number)
    verification = (
        (Work.REPLY, "reply_s"),
        (Work.VERIFY, "verify_s"),
        (Work.ACCEPT, "accept_s"),
        (Work.OUTCOME, "outcome_s"),
    )
    yield from _chain(row, Lane.VERIFIER, launch_s, verification)
    build = (Work.GLUE, "glue_s"), (Work.TREE, "tree_s"), (Work.STORE, "store_s")
    built_until_s = launch_s + _build_s(row) - _interrupted(row)
    for span in _chain(row, Lane.SPECULATOR, launch_s, build):
        yield span._replace(duration_s=min(span.duration_s, built_until_s - span.start_s))
    yield Span(Lane.VERIFIER, Work.HOST, start_s + row["round_s"] - row["host_s"], row["host_s"], number)


def _chain(row: dict[str, Any], lane: Lane, start_s: float, phases: tuple[tuple[Work, str], ...]) -> Iterator[Span]:
    """Phases one after the other."""
    for work, name in phases:
        yield Span(lane, work, start_s, row[name], row["round"])
        start_s += row[name]


def _drafting(row: dict[str, Any]) -> tuple[Lane, Work]:
    """Whose drafting the verifier waits for: SSD's fallback, or SD's drafter."""
    if row["fallback"] != Fallback.NOT_NEEDED:
        return Lane.FALLBACK, Work.FALLBACK
    return (Lane.FALLBACK, Work.FIRST) if row["num_first"] else (Lane.SPECULATOR, Work.DRAFT)


def _build_s(row: dict[str, Any]) -> float:
    return float(row["glue_s"] + row["tree_s"] + row["store_s"])


def _interrupted(row: dict[str, Any]) -> float:
    """What is left of the build when the round ends, where the outcomes interrupted it."""
    window_s = row["reply_s"] + row["verify_s"] + row["accept_s"] + row["outcome_s"]
    late_s = _build_s(row) - window_s
    waited_s = row["round_s"] - row["verifier_wait_s"] - window_s - row["host_s"]
    return float(late_s) if late_s > _ROUNDING_S and waited_s < late_s / 2 else 0.0
