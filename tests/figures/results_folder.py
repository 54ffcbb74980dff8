"""Small results as they lie on disk: simulated runs, some of which pass for measured, with ranks that are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toy_scenarios import toy_pair

from ssdsim.records import Records
from ssdsim.scenario import Mode
from ssdsim.scenario_files import scenario_from
from ssdsim.sim import simulate

PRODUCER = "executor.measure"
KINDS = ("chat", "code")
RANKS = (0, 0, 3, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0) * 3


def pair(*, replayed: bool = False) -> dict[str, Any]:
    """The toy pair; replayed, its greedy runs know the rank of every bonus token."""
    found = toy_pair()
    if replayed:
        found["behaviours"][0]["rank_trace"] = {"requests": [list(RANKS)] * 4}
    return found


def write_run(folder: Path, mode: Mode, batch_size: int, *, measured: bool, replayed: bool = False) -> Records:
    """Simulate a run of 40 requests and write it, as the simulator's or as if the executor had made it."""
    data = {
        "pair": pair(replayed=replayed),
        "mode": mode.value,
        "drafting": {"num_speculative_tokens": 4, "fan_out": {"policy": "uniform", "per_position": 2}},
        "workload": {"batch_size": batch_size, "num_requests": 40, "output_tokens": 60},
    }
    records = simulate(scenario_from(data)).records
    if measured:
        records.about |= {"producer": PRODUCER, "prompt_kinds": list(KINDS)}
        kinds = records.requests.columns()["prompt_kind"]
        kinds[:] = range(len(kinds))
        kinds %= len(KINDS)
    records.write(folder / "runs" / f"{mode}-b{batch_size}")
    return records


def write_profile(folder: Path) -> None:
    """The profile that the runs belong to."""
    (folder / "profile.json").write_text(json.dumps({**pair(), "schema_version": 1}))


def write_report(folder: Path, points: list[dict[str, Any]], producer: str = PRODUCER) -> None:
    """A report of `ssdsim validate` with these held-out points."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {"verb": "validate", "about": {"producer": producer}, "points": points}
    (folder / "report.json").write_text(json.dumps(report))
