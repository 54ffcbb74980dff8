"""How long a sweep of 100,000 exact points takes, from the command line to the Parquet file.

    python benchmarks/sweep.py [--check]

The sweep runs as a user runs it: a new process that validates every point, evaluates it and writes the file. The
baseline is `evaluate` point by point, as the same sweep does for what arrays cannot answer, on a random sample of the
points; both are measured in one run, and the sampled rows are compared.

With --check: exits 1 unless the sweep takes at most 6 s and agrees with its baseline to 1e-10.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ssdsim.evaluate import Method
from ssdsim.planning.plan import SweepPlan, make_plan
from ssdsim.planning.store import read_results
from ssdsim.planning.sweep import compute_row
from ssdsim.quantities import LABELS
from ssdsim.scenario_files import complete

TARGET_S = 6.0
TOLERANCE = 1e-10
SAMPLE = 200
RUNS = 3
AXES = (
    "num_speculative_tokens=1:5",
    "drafting.fan_out.per_position=1,2,3,4",
    "behaviours.0.acceptance.per_position=0.5:0.95:10n",
    "batch_size=1:25",
    "num_draft_devices=1:4",
    "costs.host.seconds=0:4e-3:5n",
)


def sweep_once(out: Path) -> float:
    """Seconds of the whole command."""
    axes = [argument for axis in AXES for argument in ("--over", axis)]
    command = [
        sys.executable,
        "-c",
        "from ssdsim.cli import main; main()",
        "sweep",
        *axes,
        "--out",
        str(out),
        "--quiet",
    ]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def point_by_point(plan: SweepPlan, rows: np.ndarray[Any, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds and answers of the sampled rows."""
    start = time.perf_counter()
    answers = [compute_row(plan, row) for row in rows.tolist()]
    return time.perf_counter() - start, answers


def worst_difference(table: dict[str, Any], rows: np.ndarray[Any, Any], answers: list[dict[str, Any]]) -> float:
    """Largest relative difference over all quantities of the sampled rows."""
    worst = 0.0
    for row, answer in zip(rows.tolist(), answers, strict=True):
        for name in LABELS.keys() & answer.keys():
            expected, got = answer[name], table[name][row]
            worst = max(worst, abs(got - expected) / max(abs(expected), 1e-30))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description="100,000 exact points, end to end.")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    plan = make_plan(complete({}), AXES, [Method.EXACT])
    rows = np.random.default_rng(0).choice(plan.num_rows, SAMPLE, replace=False)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep.parquet"
        sweep_s, loop_s = np.inf, np.inf
        for _ in range(RUNS):
            sweep_s = min(sweep_s, sweep_once(out))
            seconds, answers = point_by_point(plan, rows)
            loop_s = min(loop_s, seconds)
        table = read_results(out)
    difference = worst_difference(table, rows, answers)
    points = plan.num_rows
    print(f"{points:,} points, validated, evaluated and written: {sweep_s:.2f} s ({points / sweep_s:,.0f}/s)")
    print(f"point by point: {SAMPLE / loop_s:,.0f}/s, {points / SAMPLE * loop_s / sweep_s:.0f} times slower")
    print(f"largest difference: {difference:.1e}; rows without an answer: {sum(table['status'] != 'ok')}")
    met = sweep_s <= TARGET_S and difference <= TOLERANCE and points == 100_000
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
