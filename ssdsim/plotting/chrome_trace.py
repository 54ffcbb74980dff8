"""A run as a trace for chrome://tracing or ui.perfetto.dev, from its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ssdsim.plotting.lanes import Lane, spans_of
from ssdsim.records import Records

_PROCESS = 1
_MICROSECONDS = 1e6


def write_chrome_trace(records: Records, path: Path) -> None:
    """Write every recorded round as complete events in the trace-event format, one thread per lane."""
    with path.open("w") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for number, event in enumerate(trace_events(records)):
            file.write(",\n" if number else "")
            json.dump(event, file)
        file.write("\n]}\n")


def trace_events(records: Records) -> Iterator[dict[str, Any]]:
    """Events in the trace-event format, times in microseconds."""
    name = str(records.about.get("scenario", {}).get("name", "run"))
    yield {"name": "process_name", "ph": "M", "pid": _PROCESS, "tid": 0, "args": {"name": name}}
    threads = {lane: number for number, lane in enumerate(Lane, start=1)}
    for lane, thread in threads.items():
        yield {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": lane.value}}
    for span in spans_of(records):
        yield {
            "name": span.work.value,
            "ph": "X",
            "pid": _PROCESS,
            "tid": threads[span.lane],
            "ts": span.start_s * _MICROSECONDS,
            "dur": span.duration_s * _MICROSECONDS,
            "args": {"round": span.round},
        }
    yield from _look_ups(records)


def _look_ups(records: Records) -> Iterator[dict[str, Any]]:
    """Hits and misses of every round as a counter."""
    rounds = records.rounds.columns()
    names = ("start_s", "num_hits", "num_misses")
    for start_s, hits, misses in zip(*(rounds[name].tolist() for name in names), strict=True):
        counts = {"hits": hits, "misses": misses}
        yield {
            "name": "look-ups",
            "ph": "C",
            "pid": _PROCESS,
            "tid": 0,
            "ts": start_s * _MICROSECONDS,
            "args": counts,
        }
