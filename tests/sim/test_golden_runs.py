"""Runs of every kind: they hold what every run must hold, give the same numbers for ever, and lose nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import PHASES, check_invariants, phases, run_of

from ssdsim.records import TABLES, Records
from ssdsim.sim import Aggregates, AllRows, Sample, simulate

LATE = phases(tree_step=0.5)
GROWING = {
    **PHASES,
    "verify": {"kind": "linear", "base_s": 1.0, "per_query_token_s": 1 / 128, "per_context_token_s": 2**-14},
    "prefill": {"kind": "linear", "per_query_token_s": 2**-12},
    "jitter": {"verify": 0.1, "draft": 0.2, "host": 0.5},
}
FINITE: dict[str, Any] = {
    "workload__output_tokens": {"kind": "geometric", "mean": 30.0, "max": 120},
    "workload__num_requests": 60,
}
KINDS: dict[str, dict[str, Any]] = {
    "ar endless": {"mode": "ar"},
    "ar closed": {"mode": "ar", "batch_size": 4, **FINITE},
    "ar static": {"mode": "ar", "batch_size": 4, "arrivals": "static", **FINITE},
    "sd": {"mode": "sd", "batch_size": 3, **FINITE, "sd_extra_step": True},
    "ssd jit": {"batch_size": 4, "fallback__kind": "jit"},
    "ssd none closed": {"batch_size": 4, **FINITE},
    "ssd none static": {"batch_size": 4, "arrivals": "static", **FINITE},
    "ssd random, first rounds miss": {"batch_size": 4, "fallback__kind": "random", "first_round": "miss", **FINITE},
    "ssd ngram": {"batch_size": 4, "fallback__kind": "ngram", "fallback__num_tokens": 3, **FINITE},
    "ssd auto": {"batch_size": 4, "fallback__kind": "auto"},
    "ssd threshold": {"batch_size": 6, "fallback__kind": "threshold", "fallback__threshold": 2, **FINITE},
    "ssd best threshold": {"batch_size": 6, "fallback__kind": "threshold"},
    "ssd redrafts hits": {"batch_size": 4, "fallback__kind": "jit", "redraft_hits": True, **FINITE},
    "ssd late, waited for": {"costs": LATE, "batch_size": 4, **FINITE},
    "ssd late, aborted": {"costs": LATE, "batch_size": 4, "fallback__kind": "jit", "on_late": "abort", **FINITE},
    "ssd late, truncated": {"costs": LATE, "batch_size": 4, "fallback__kind": "jit", "on_late": "truncate", **FINITE},
    "ssd growing, with jitter": {"costs": GROWING, "batch_size": 4, "spread": 0.2, "padded_verify": True, **FINITE},
    "ssd K = 0": {"num_speculative_tokens": 0, "fan_out__per_position": 2, **FINITE},
    "ssd three draft devices": {"batch_size": 4, "num_draft_devices": 3, **FINITE},
}


@pytest.fixture(scope="module")
def runs() -> dict[str, Records]:
    return {kind: simulate(run_of(**fields)).records for kind, fields in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_holds_what_runs_must_hold(runs: dict[str, Records], kind: str) -> None:
    check_invariants(runs[kind])


@pytest.mark.parametrize("kind", [kind for kind, fields in KINDS.items() if "workload__num_requests" in fields])
def test_every_request_comes_and_goes(runs: dict[str, Records], kind: str) -> None:
    assert sorted(runs[kind].requests.columns()["request_id"]) == list(range(60))


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_run_whatever_is_kept(runs: dict[str, Records], kind: str) -> None:
    scenario = run_of(**KINDS[kind])
    again, sample, sums = (simulate(scenario, sink=sink) for sink in (AllRows(), Sample(every=7), Aggregates()))
    for table in TABLES:
        for name, column in getattr(runs[kind], table).columns().items():
            assert np.array_equal(column, getattr(again.records, table).columns()[name]), name
    rounds = runs[kind].rounds.columns()
    assert np.array_equal(sample.records.rounds.columns()["start_s"], rounds["start_s"][::7])
    assert len(sums.records.rounds) == len(sums.records.outcomes) == 0
    full, summed = again.quantities(), sums.quantities()
    for name in summed:
        assert summed[name].value == pytest.approx(full[name].value, rel=1e-9), name
    assert {name for name in full if "itl_p" not in name} == set(summed)  # percentiles of gaps need the rounds


def test_another_seed_is_another_run() -> None:
    first, second = (simulate(run_of(seed=seed)).records.outcomes.columns()["num_accepted"] for seed in (1, 2))
    assert not np.array_equal(first, second)


GOLDEN = {
    "ar endless": (400, 400, 500.0),
    "ar closed": (1454, 381, 476.25),
    "ar static": (1454, 704, 880.0),
    "sd": (1454, 145, 294.53125),
    "ssd jit": (5940, 400, 598.125),
    "ssd none closed": (1454, 125, 179.51171875),
    "ssd none static": (1454, 219, 291.26953125),
    "ssd random, first rounds miss": (1454, 135, 176.66015625),
    "ssd ngram": (1454, 120, 173.9375),
    "ssd auto": (5157, 400, 523.75),
    "ssd threshold": (1454, 79, 119.31640625),
    "ssd best threshold": (8364, 400, 561.5625),
    "ssd redrafts hits": (1454, 112, 172.8125),
    "ssd late, waited for": (1454, 125, 379.55859375),
    "ssd late, aborted": (1454, 112, 323.34765625),
    "ssd late, truncated": (1454, 177, 265.99609375),
    "ssd K = 0": (1454, 1454, 1902.6953125),
}
"""Tokens, rounds and seconds, taken from the first run that passed the checks above and agreed with the exact model.

Seconds are equal, not close: all phases are binary fractions. Every finite run emits the same 1454 tokens, since
lengths are drawn for the request and not for the policy."""


@pytest.mark.parametrize("kind", GOLDEN)
def test_runs_stay_what_they_were(runs: dict[str, Records], kind: str) -> None:
    rounds, outcomes = runs[kind].rounds.columns(), runs[kind].outcomes.columns()
    end_s = rounds["start_s"][-1] + rounds["round_s"][-1]
    assert (outcomes["num_emitted"].sum(), len(rounds["round"]), end_s) == GOLDEN[kind]
