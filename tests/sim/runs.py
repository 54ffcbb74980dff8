"""Runs for the simulator's tests: a pair whose phases last simple binary fractions, and what must hold of any run."""

from __future__ import annotations

from typing import Any

import numpy as np
from toy_scenarios import toy, toy_pair

from ssdsim.records import Fallback, Lookup, Records, Source
from ssdsim.scenario import Scenario

MISSED = (Source.JIT, Source.NGRAM, Source.NONE, Source.RANDOM)


def constant(seconds: float) -> dict[str, Any]:
    return {"kind": "constant", "seconds": seconds}


PHASES: dict[str, Any] = {
    "kind": "components",
    "verify": constant(1.0),
    "draft_step": constant(0.125),
    "jit_step": constant(0.0625),
    "glue": constant(0.125),
    "tree_step": constant(0.0625),
    "store": constant(0.03125),
    "ngram": constant(0.015625),
    "lookup": constant(0.015625),
    "accept": constant(0.03125),
    "reply": constant(0.0078125),
    "outcome": constant(0.00390625),
    "host": constant(0.25),
}
"""Sums of these are exact in floating point: a test may compare times for equality."""


def phases(**changed: float) -> dict[str, Any]:
    """PHASES with other constants."""
    return {**PHASES, **{name: constant(seconds) for name, seconds in changed.items()}}


def run_of(
    costs: dict[str, Any] | None = None, *, acceptance: Any = 0.8, spread: float = 0.0, **fields: Any
) -> Scenario:
    """A scenario of PHASES: K = 5, F = 2, 400 endless rounds after no warm-up; fields as in `toy`."""
    pair = toy_pair(acceptance=acceptance, spread=spread, costs=costs if costs is not None else PHASES)
    return toy(pair, **{"run__num_rounds": 400, "run__warmup_rounds": 0, **fields})


def check_invariants(records: Records) -> None:
    """What holds of every complete run, whatever was simulated."""
    rounds, outcomes, requests = (records.rounds.columns(), records.outcomes.columns(), records.requests.columns())
    check_clock(rounds)
    check_rows(rounds, outcomes)
    if len(requests["request_id"]):
        check_requests(rounds, outcomes, requests)


def check_clock(rounds: dict[str, np.ndarray]) -> None:
    """The clock is monotone, rounds follow each other without a gap, and their terms add up."""
    end_s = rounds["start_s"] + rounds["round_s"]
    assert np.array_equal(rounds["round"], np.arange(len(end_s)))
    assert np.all(rounds["round_s"] > 0)
    np.testing.assert_allclose(rounds["start_s"][1:], end_s[:-1], rtol=1e-12)
    window_s = rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"] + rounds["outcome_s"]
    serial_s = rounds["prefill_s"] + rounds["lookup_s"] + rounds["fallback_s"] + window_s + rounds["host_s"]
    build_wait_s = rounds["round_s"] - serial_s
    late_s = rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"] - window_s
    noise_s = 1e-12 * end_s[-1]
    assert np.all(build_wait_s >= -noise_s)
    assert np.all(build_wait_s <= np.maximum(late_s, np.append(0, late_s[:-1])).clip(0) + noise_s)
    before_reply_s = rounds["prefill_s"] + rounds["lookup_s"] + rounds["fallback_s"]
    assert np.all(rounds["verifier_wait_s"] >= before_reply_s - noise_s)  # no reply before what it answers is there


def check_rows(rounds: dict[str, np.ndarray], outcomes: dict[str, np.ndarray]) -> None:
    """Both tables tell of the same rows; what is accepted was proposed, what is emitted is that and a bonus token."""
    index = outcomes["round"]
    assert np.all(np.diff(index) >= 0)
    for column, sources in (("num_hits", (Source.HIT,)), ("num_misses", MISSED), ("num_first", (Source.FIRST,))):
        found = np.bincount(index[np.isin(outcomes["source"], sources)], minlength=len(rounds["round"]))
        assert np.array_equal(rounds[column], found)
    assert np.array_equal(rounds["batch_size"], np.bincount(index, minlength=len(rounds["round"])))
    assert np.array_equal(rounds["fallback"] == Fallback.NOT_NEEDED, rounds["num_misses"] == 0)
    assert np.all(outcomes["num_accepted"] <= outcomes["num_proposed"])
    final = outcomes["lookup"] == Lookup.FINAL
    assert np.array_equal(outcomes["num_emitted"][~final], outcomes["num_accepted"][~final] + 1)
    assert np.all(outcomes["num_emitted"][final] <= outcomes["num_accepted"][final] + 1)
    assert np.all(outcomes["num_emitted"] >= 1)
    check_causes(outcomes)


def check_causes(outcomes: dict[str, np.ndarray]) -> None:
    """A row is a hit exactly where the request's look-up before it hit."""
    order = np.lexsort((outcomes["round"], outcomes["request_id"]))
    request, source, lookup = (outcomes[name][order] for name in ("request_id", "source", "lookup"))
    follows = request[1:] == request[:-1]
    assert np.array_equal((source[1:] == Source.HIT)[follows], (lookup[:-1] == Lookup.HIT)[follows])
    assert np.array_equal(np.isin(source[1:], MISSED)[follows], (lookup[:-1] == Lookup.MISS)[follows])
    assert not np.any(lookup[:-1][follows] == Lookup.FINAL)


def check_requests(
    rounds: dict[str, np.ndarray], outcomes: dict[str, np.ndarray], requests: dict[str, np.ndarray]
) -> None:
    """No request is lost, and its row is the sum of its rounds."""
    ids = requests["request_id"]
    assert len(np.unique(ids)) == len(ids)
    sums = {"output_tokens": "num_emitted", "num_proposed": "num_proposed", "num_accepted": "num_accepted"}
    for total, part in sums.items():
        by_request = np.bincount(outcomes["request_id"], outcomes[part], ids.max() + 1)
        assert np.array_equal(requests[total], by_request[ids])
    assert np.array_equal(requests["num_rounds"], np.bincount(outcomes["request_id"])[ids])
    hits = np.bincount(outcomes["request_id"][outcomes["source"] == Source.HIT], minlength=ids.max() + 1)
    assert np.array_equal(requests["num_hits"], hits[ids])
    emitted_s = (
        rounds["start_s"] + rounds["verifier_wait_s"] + rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"]
    )
    last = np.zeros(ids.max() + 1, dtype=np.int64)
    np.maximum.at(last, outcomes["request_id"], outcomes["round"])
    np.testing.assert_allclose(requests["finish_s"], emitted_s[last[ids]], rtol=1e-12)
    assert np.all(requests["arrival_s"] <= requests["admitted_s"])
    assert np.all(requests["admitted_s"] < requests["first_token_s"])
    assert np.all(requests["first_token_s"] <= requests["finish_s"])
