"""How fast the printed formulas are, over arrays and point by point.

    python benchmarks/closed_forms.py [--points 200000] [--check]

Rows are formulas, domain checks included. The baseline is the same function called with scalars in a Python
loop, as one would without arrays; both are measured in one run, in turn, and the best block of each counts.
The results of the two are compared as well.

With --check: exits 1 unless every formula reaches 1 M points/s over arrays and agrees with its baseline to
1e-12.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ssdsim.theory import acceptance, speedup
from ssdsim.theory.domain import FloatArray

TARGET_POINTS_PER_S = 1e6
BLOCKS = 5
BASELINE_POINTS = 2000


class Measured(NamedTuple):
    points_per_s: float
    baseline_points_per_s: float
    worst_difference: float


def inputs(num_points: int) -> dict[str, Any]:
    """Random points over the whole domain, one array per argument."""
    rng = np.random.default_rng(2)
    return {
        "p": rng.random(num_points),
        "a": rng.random(num_points),
        "K": rng.integers(1, 12, num_points),
        "E_hit": 3.0 + 4.0 * rng.random(num_points),
        "E_miss": 1.0 + 2.0 * rng.random(num_points),
        "T_p": 2.0 * rng.random(num_points),
        "T_b": rng.random(num_points),
        "b": rng.integers(1, 64, num_points),
    }


FORMULAS: dict[str, tuple[Callable[..., Any], str]] = {
    "mean acceptance length": (acceptance.mean_acceptance_length, "a K"),
    "Theorem 7, hit rate": (speedup.stationary_cache_hit_rate, "a p"),
    "Theorem 7, speed-up": (speedup.ssd_speedup, "p E_hit E_miss T_p T_b"),
    "Corollary 8": (speedup.ssd_over_sd, "p T_p"),
    "Corollary 9": (lambda *args: speedup.ssd_over_sd_bounds(*args).exact, "p E_hit E_miss E_hit T_p"),
    "Corollary 16": (speedup.ssd_speedup, "p E_hit E_miss T_p T_b b"),
    "Corollary 16, slowest member": (speedup.ssd_speedup_slowest_member, "p E_hit E_miss T_p T_b b"),
}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def measure(formula: Callable[..., Any], columns: list[Any]) -> Measured:
    """Array call and scalar loop in turn, so that other load hits both alike."""
    rows = [tuple(column[i].item() for column in columns) for i in range(BASELINE_POINTS)]

    def one_by_one() -> FloatArray:
        return np.array([formula(*row) for row in rows])

    array_s, loop_s, worst = np.inf, np.inf, 0.0
    for _ in range(BLOCKS):
        seconds, values = timed(lambda: formula(*columns))
        array_s = min(array_s, seconds)
        seconds, expected = timed(one_by_one)
        loop_s = min(loop_s, seconds)
        worst = max(worst, float(np.max(np.abs(values[:BASELINE_POINTS] / expected - 1.0))))
    return Measured(columns[0].size / array_s, BASELINE_POINTS / loop_s, worst)


def main() -> int:
    parser = argparse.ArgumentParser(description="Closed forms: points per second, arrays against a loop.")
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    columns = inputs(max(options.points, BASELINE_POINTS))
    print(f"{'formula':30} {'M points/s':>10} {'loop, k/s':>10} {'ratio':>7} {'difference':>11}")
    met = True
    for name, (formula, arguments) in FORMULAS.items():
        result = measure(formula, [columns[argument] for argument in arguments.split()])
        ratio = result.points_per_s / result.baseline_points_per_s
        print(
            f"{name:30} {result.points_per_s / 1e6:10.2f} {result.baseline_points_per_s / 1e3:10.1f} "
            f"{ratio:7.0f} {result.worst_difference:11.1e}"
        )
        met &= result.points_per_s >= TARGET_POINTS_PER_S and result.worst_difference <= 1e-12
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
