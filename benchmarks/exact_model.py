"""How fast the exact model is, over arrays and point by point.

    python benchmarks/exact_model.py [--points 100000] [--check]

Rows: an endless batch of 8 whose verification grows with its query tokens; the general joint law at batch 16
(late builds that misses abort, a fallback that grows with the misses, every time a function of the drafted
rows); a static batch of 16 requests of 256 tokens, K = 7. The baseline is the definition written out in plain
Python for one point, sums over every combination of hits and misses, and tokens left one by one; both are
measured in one run, in turn, and the best block of each counts. The results of the two are compared as well.

With --check: exits 1 unless every row reaches its target and agrees with its baseline to 1e-9.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np

from ssdsim.theory.domain import FloatArray
from ssdsim.theory.finite import static_batch
from ssdsim.theory.renewal import SlotChain, endless_batch
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw

BLOCKS = 5
NUM_TOKENS = 7
OUTPUT_TOKENS = 256


class Case(NamedTuple):
    """One row: the array evaluation of all points, and the baseline for one of them."""

    num_points: int
    target_points_per_s: float
    arrays: Callable[[], FloatArray]
    one_point: Callable[[int], float]
    baseline_points: int


class Measured(NamedTuple):
    points_per_s: float
    baseline_points_per_s: float
    worst_difference: float


def endless_case(num_points: int) -> Case:
    """Batch 8, window = base + per query token, a constant fallback, builds on time."""
    batch_size, rng = 8, np.random.default_rng(8)
    chains = random_chains(rng, num_points)
    n = np.arange(batch_size + 1.0)
    window_s = 0.9 + 0.002 * (n * (NUM_TOKENS + 1) + batch_size - n) * rng.random((num_points, 1))
    fallback_s = np.zeros((num_points, batch_size + 1))
    fallback_s[:, 1:] = rng.random((num_points, 1))
    times = {"window_s": window_s, "build_s": 0.8 * rng.random((num_points, 1)), "fallback_s": fallback_s}
    return Case(
        num_points,
        200e3,
        lambda: np.asarray(
            endless_batch(SlotChain(**chains), RoundTimes(**times, on_late="abort")).rate_per_sequence
        ),
        lambda point: endless_by_definition(at(chains, point), at(times, point)),
        baseline_points=300,
    )


def joint_case(num_points: int) -> Case:
    """Batch 16, builds that are late and aborted, every time a function of its count."""
    batch_size, rng = 16, np.random.default_rng(16)
    chains = random_chains(rng, num_points)
    fallback_s = np.zeros((num_points, batch_size + 1))
    fallback_s[:, 1:] = np.sort(rng.random((num_points, batch_size)), axis=1)
    times = {
        "window_s": 0.5 + rng.random((num_points, batch_size + 1)),
        "build_s": 2.0 * rng.random((num_points, batch_size + 1)),
        "fallback_s": fallback_s,
    }
    return Case(
        num_points,
        5e3,
        lambda: np.asarray(
            endless_batch(SlotChain(**chains), RoundTimes(**times, on_late="abort")).rate_per_sequence
        ),
        lambda point: endless_by_definition(at(chains, point), at(times, point)),
        baseline_points=50,
    )


def finite_case(num_points: int) -> Case:
    """Static batch of 16, K = 7, a fallback that proposes nothing."""
    batch_size, rng = 16, np.random.default_rng(256)
    acceptance = 0.7 + 0.25 * rng.random((num_points, 1)) * np.ones(NUM_TOKENS)
    hits, hits_after_nothing = rng.random((num_points, NUM_TOKENS + 1)), rng.random((num_points, 1))
    times = RoundTimes(window_s=[1.0], build_s=[0.8], fallback_s=[0.0] + [0.3] * batch_size, on_late="abort")

    def arrays() -> FloatArray:
        drafted = RowLaw(acceptance_prob=acceptance, hit_prob=hits)
        fallback = RowLaw(acceptance_prob=np.empty((num_points, 0)), hit_prob=hits_after_nothing)
        return np.asarray(static_batch(drafted, fallback, times, OUTPUT_TOKENS).makespan_s)

    def one_point(point: int) -> float:
        ends = drafted_ends(acceptance[point].tolist(), hits[point].tolist())
        hit = float(hits_after_nothing[point, 0])
        return makespan_by_definition(ends, [(hit, 1.0 - hit)], batch_size, 1.0, 1.0, 1.3)

    return Case(num_points, 300.0, arrays, one_point, baseline_points=2)


def random_chains(rng: np.random.Generator, num_points: int) -> dict[str, FloatArray]:
    return {
        "hit_after_draft": rng.random(num_points),
        "hit_after_fallback": rng.random(num_points),
        "tokens_drafted": 1.0 + 4.0 * rng.random(num_points),
        "tokens_fallback": 1.0 + rng.random(num_points),
    }


def at(fields: dict[str, FloatArray], point: int) -> dict[str, Any]:
    """One point's entries as Python numbers and lists."""
    return {name: values[point].tolist() for name, values in fields.items()}


def endless_by_definition(chain: dict[str, Any], times: dict[str, Any]) -> float:
    """THEORY 2.1 written out: sum over drafted rows, hits among them and hits among the others."""
    hit_p, hit_b = chain["hit_after_draft"], chain["hit_after_fallback"]
    share = hit_b / (1.0 + hit_b - hit_p)
    slots = len(times["fallback_s"]) - 1
    builds = times["build_s"] * (slots + 1) if len(times["build_s"]) == 1 else times["build_s"]
    mean_s = 0.0
    for n in range(slots + 1):
        prob_n = comb(slots, n) * share**n * (1 - share) ** (slots - n)
        window_s = times["window_s"][n]
        hit_s = max(window_s, builds[n])
        for i in range(n + 1):
            prob_i = comb(n, i) * hit_p**i * (1 - hit_p) ** (n - i)
            for j in range(slots - n + 1):
                prob_j = comb(slots - n, j) * hit_b**j * (1 - hit_b) ** (slots - n - j)
                misses = slots - i - j
                miss_s = window_s + times["fallback_s"][misses]
                duration_s = hit_s if misses == 0 else miss_s if misses == slots else max(hit_s, miss_s)
                mean_s += prob_n * prob_i * prob_j * duration_s
    return float((share * chain["tokens_drafted"] + (1 - share) * chain["tokens_fallback"]) / mean_s)


def drafted_ends(acceptance: list[float], hits: list[float]) -> list[tuple[float, float]]:
    """(hit, miss) probabilities by accepted count."""
    ends, reached = [], 1.0
    for accept, hit in zip([*acceptance, 0.0], hits, strict=True):
        weight = reached * (1.0 - accept)
        ends.append((weight * hit, weight * (1.0 - hit)))
        reached *= accept
    return ends


def makespan_by_definition(
    drafted: list[tuple[float, float]],
    fallback: list[tuple[float, float]],
    slots: int,
    window_s: float,
    hit_s: float,
    miss_s: float,
) -> float:
    """THEORY 2.3 written out: tokens left one by one, the formula of the mean round, until all are done."""
    state = {(OUTPUT_TOKENS, True): 1.0}
    done, total_s = 0.0, 0.0
    while state:
        following: dict[tuple[int, bool], float] = {}
        finished = 0.0
        for (left, is_drafted), prob in state.items():
            for accepted, by_end in enumerate(drafted if is_drafted else fallback):
                for hit, weight in zip((True, False), by_end, strict=True):
                    if accepted + 1 >= left:
                        finished += prob * weight
                    else:
                        key = (left - accepted - 1, hit)
                        following[key] = following.get(key, 0.0) + prob * weight
        hits = sum(prob for (_, hit), prob in following.items() if hit)
        misses = sum(prob for (_, hit), prob in following.items() if not hit)
        quiet, no_miss, no_hit = (done + finished) ** slots, (1 - misses) ** slots, (1 - hits) ** slots
        total_s += (quiet - done**slots) * window_s + (no_miss - quiet) * hit_s + (no_hit - quiet) * miss_s
        total_s += (1.0 - no_miss - no_hit + quiet) * max(hit_s, miss_s)
        done += finished
        state = following if hits + misses > 1e-15 else {}
    return total_s


def measure(case: Case) -> Measured:
    """Arrays and single points in turn, so that other load hits both alike."""
    arrays_s, loop_s, worst = np.inf, np.inf, 0.0
    chosen = range(case.baseline_points)
    for _ in range(BLOCKS):
        start = time.perf_counter()
        values = case.arrays()
        arrays_s = min(arrays_s, time.perf_counter() - start)
        start = time.perf_counter()
        expected = np.array([case.one_point(point) for point in chosen])
        loop_s = min(loop_s, time.perf_counter() - start)
        worst = max(worst, float(np.abs(values[: len(expected)] / expected - 1.0).max()))
    return Measured(case.num_points / arrays_s, case.baseline_points / loop_s, worst)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000, help="points of the endless row (default 100000)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target or an agreement fails")
    arguments = parser.parse_args()
    cases = {
        "endless, verify(b, q), b = 8": endless_case(arguments.points),
        "general joint law, b = 16": joint_case(max(1000, arguments.points // 20)),
        "static batch, N = 256, K = 7": finite_case(max(256, arguments.points // 100)),
    }
    print(f"{'':30} {'points/s':>12} {'target':>10} {'plain Python':>13} {'ratio':>8} {'difference':>11}")
    failed = False
    for name, case in cases.items():
        result = measure(case)
        ok = result.points_per_s >= case.target_points_per_s and result.worst_difference < 1e-9
        failed |= not ok
        print(
            f"{name:30} {result.points_per_s:12,.0f} {case.target_points_per_s:10,.0f}"
            f" {result.baseline_points_per_s:13,.1f} {result.points_per_s / result.baseline_points_per_s:8,.0f}"
            f" {result.worst_difference:11.1e}  {'pass' if ok else 'FAIL'}"
        )
    return int(failed and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
