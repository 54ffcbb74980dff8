"""How fast the simulator is, each target against bare SimPy: processes that exchange the same events and do nothing.

    python benchmarks/simulator.py [--requests 100000] [--check]

- rounds of one sequence with all records (target: at least .25 of bare SimPy's rounds per second);
- rounds of a batch of 64 with all records (at most 2 times as long as those of one sequence);
- 100,000 requests of 256 tokens at concurrency 32, SSD and AR, keeping requests and sums, each in its own process
  (at most 10 s and 300 MB). AR plays runs of rounds as one event and may well be faster than SimPy round by round.

Times are CPU times of one thread, the best of several turns taken one after the other, since a machine is rarely
quiet. With --check: exits 1 on a missed target.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import simpy

from ssdsim.scenario import Scenario
from ssdsim.scenario_files import scenario_from
from ssdsim.sim import Aggregates, simulate

TURNS = 9
NUM_ROUNDS = 20_000
NUM_TOKENS = 256
CONCURRENCY = 32
LOOKAHEAD = 7
ACCEPTANCE = 0.8

MIN_SHARE_OF_BARE = 0.25
MAX_BATCH_64 = 2.0
MAX_SECONDS, MAX_MB = 10.0, 300.0


def scenario(mode: str = "ssd", **workload: Any) -> Scenario:
    """K = 7, F = 3, every phase takes its time, misses are drafted just in time."""
    return scenario_from(
        {
            "pair": {
                "name": "benchmark",
                "target": "target",
                "draft": "draft",
                "hardware": {"target_device": "unit", "draft_device": "unit"},
                "behaviours": [
                    {
                        "acceptance": {"per_position": ACCEPTANCE},
                        "hit_curves": {
                            "after_draft": {
                                "rejection": {"kind": "power", "miss_exponent": 1.0, "miss_prefactor": 0.5}
                            }
                        },
                    }
                ],
                "costs": {"kind": "components", **{name: linear(time_s) for name, time_s in PHASES.items()}},
            },
            "mode": mode,
            "drafting": {"num_speculative_tokens": LOOKAHEAD},
            "workload": workload,
            "run": {"num_rounds": NUM_ROUNDS, "warmup_rounds": 0},
        }
    )


PHASES = {
    "verify": 20e-3,
    "draft_step": 2e-3,
    "tree_step": 1.5e-3,
    "glue": 1e-3,
    "store": 5e-4,
    "lookup": 1e-4,
    "accept": 1e-4,
    "reply": 5e-5,
    "outcome": 5e-5,
    "host": 1e-3,
}


def linear(base_s: float) -> dict[str, Any]:
    return {"kind": "linear", "base_s": base_s, "per_query_token_s": base_s / 1000}


def bare_simpy(has_fallback: list[bool]) -> None:
    """The simulator's events and nothing else: six per round, three more where the fallback is asked."""
    env = simpy.Environment()
    replies, outcomes, requests, answers = env.event(), env.event(), env.event(), env.event()

    def verifier() -> Iterator[Any]:
        nonlocal replies
        while True:
            yield replies
            replies = env.event()
            yield env.timeout(1.0)
            outcomes.succeed()

    def fallback() -> Iterator[Any]:
        nonlocal requests
        while True:
            yield requests
            requests = env.event()
            yield env.timeout(0.1)
            answers.succeed()

    def speculator() -> Iterator[Any]:
        nonlocal outcomes, answers
        for asks in has_fallback:
            yield env.timeout(0.1)
            if asks:
                answers = env.event()
                requests.succeed()
                yield answers
            outcomes = env.event()
            replies.succeed()
            yield env.timeout(0.5)
            yield outcomes
            yield env.timeout(0.1)

    env.process(verifier())
    env.process(fallback())
    env.run(env.process(speculator()))


def cpu_s(action: Callable[[], Any]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def best_of_turns(*actions: Callable[[], Any]) -> list[float]:
    """Best CPU time of each action, measured in turns."""
    turns = [[cpu_s(action) for action in actions] for _ in range(TURNS)]
    return [min(times) for times in zip(*turns, strict=True)]


def check_rounds() -> bool:
    one, many = (scenario(batch_size=size, output_tokens=None) for size in (1, 64))
    has_fallback = (simulate(one).records.rounds.columns()["fallback_s"] > 0).tolist()
    bare_s, one_s, many_s = best_of_turns(
        lambda: bare_simpy(has_fallback), lambda: simulate(one), lambda: simulate(many)
    )
    share, times = bare_s / one_s, many_s / one_s
    print(f"bare SimPy, same events   {NUM_ROUNDS / bare_s:>9,.0f} rounds/s")
    print(f"batch 1, all records      {rate(one_s)}  {share:.2f} of bare SimPy, at least {MIN_SHARE_OF_BARE}")
    print(f"batch 64, all records     {rate(many_s)}  {times:.2f} times batch 1, at most {MAX_BATCH_64}")
    return share >= MIN_SHARE_OF_BARE and times <= MAX_BATCH_64


def rate(time_s: float) -> str:
    return f"{NUM_ROUNDS / time_s:>9,.0f} rounds/s"


def check_requests(num_requests: int) -> bool:
    bare_s = best_of_turns(lambda: bare_simpy([True] * NUM_ROUNDS))[0] / NUM_ROUNDS
    good = True
    for mode in ("ssd", "ar"):
        command = [sys.executable, __file__, "--requests", str(num_requests), "--load", mode]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        took_s, peak_mb, num_rounds = float(printed[0]), float(printed[1]), int(printed[2])
        share = f"bare SimPy takes {bare_s * num_rounds:.1f} s for {num_rounds:,} rounds"
        limits = f"at most {MAX_SECONDS:g} s and {MAX_MB:g} MB"
        print(f"{num_requests:,} requests, {mode:<4} {took_s:>9.1f} s {peak_mb:>5.0f} MB  {limits}; {share}")
        good &= took_s <= MAX_SECONDS * num_requests / 100_000 and peak_mb <= MAX_MB
    return good


def run_load(mode: str, num_requests: int) -> None:
    """One load alone in this process: its CPU time, the process's peak memory, and the rounds it took."""
    load = scenario(mode, batch_size=CONCURRENCY, output_tokens=NUM_TOKENS, num_requests=num_requests)
    start = time.process_time()
    result = simulate(load, sink=Aggregates())
    took_s = time.process_time() - start
    assert len(result.records.requests) == num_requests
    assert result.tally is not None
    print(took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, result.tally.num_rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--load", choices=("ssd", "ar"), help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="exit 1 on a missed target")
    options = parser.parse_args()
    if options.load:
        run_load(options.load, options.requests)
        return 0
    good = [check_rounds(), check_requests(options.requests)]
    return int(options.check and not all(good))


if __name__ == "__main__":
    sys.exit(main())
