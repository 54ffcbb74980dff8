"""The round in time, written out by hand: when each round starts, when its reply leaves, and who waits for whom.

One sequence, K = 1, acceptance and hits all or nothing, so that every round is known beforehand. Phases: verify 1,
accept 1/32, reply 1/128, outcome 1/256 (window 1.04296875), look-up 1/64, host 1/4, jit step 1/16, glue 1/8, tree
step 1/16, store 1/32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import phases, run_of

from ssdsim.records import Records
from ssdsim.scenario import Scenario
from ssdsim.sim import simulate

WINDOW, LOOKUP, HOST, JIT = 1.04296875, 0.015625, 0.25, 0.0625
LATE = phases(tree_step=2.0)
"""A build of 1/8 + 2 + 1/32 = 2.15625 for K = 1."""
BUILD = 2.15625


def certain(costs: dict[str, Any] | None = None, *, hits: bool, **fields: Any) -> Scenario:
    """Three rounds of one sequence whose drafts are all accepted and whose look-ups all hit, or all miss."""
    fan_out = [0, 1] if hits else [1, 0]
    settings = {"num_speculative_tokens": 1, "fan_out__policy": "explicit", "fan_out__per_position": None}
    settings |= {"fan_out__values": fan_out, "run__num_rounds": 3, "fallback__kind": "jit", **fields}
    return run_of(costs, acceptance=1.0, **settings)


def column(records: Records, name: str) -> list[float]:
    values: list[float] = records.rounds.columns()[name].tolist()
    return values


def test_a_hit_costs_look_up_window_and_host() -> None:
    records = simulate(certain(hits=True)).records
    first, others = LOOKUP + JIT + WINDOW + HOST, LOOKUP + WINDOW + HOST
    assert column(records, "round_s") == [first, others, others]
    assert column(records, "start_s") == [0.0, first, first + others]
    assert column(records, "num_first") == [1, 0, 0]
    assert column(records, "num_hits") == [0, 1, 1]
    assert column(records, "verifier_wait_s") == [LOOKUP + JIT, LOOKUP, LOOKUP]
    assert column(records, "speculator_wait_s") == [WINDOW - 0.21875] * 3  # 1/8 + 1/16 + 1/32 were spent building


def test_a_miss_adds_one_chain() -> None:
    records = simulate(certain(hits=False)).records
    assert column(records, "round_s") == [LOOKUP + JIT + WINDOW + HOST] * 3
    assert column(records, "num_misses") == [0, 1, 1]


def test_a_late_build_is_waited_for() -> None:
    records = simulate(certain(LATE, hits=True)).records
    assert column(records, "round_s") == [LOOKUP + JIT + BUILD + HOST, *[LOOKUP + BUILD + HOST] * 2]
    assert column(records, "speculator_wait_s") == [0.0] * 3


def test_an_aborted_build_delays_hits_and_not_misses() -> None:
    """The rest of the build runs in the next round, from its look-up on; here it outlives the fallback."""
    hits = simulate(certain(LATE, hits=True, on_late="abort")).records
    rest = BUILD - WINDOW
    assert column(hits, "round_s") == [LOOKUP + JIT + WINDOW + HOST, *[LOOKUP + rest + WINDOW + HOST] * 2]
    misses = simulate(certain(LATE, hits=False, on_late="abort")).records
    assert column(misses, "round_s") == [LOOKUP + JIT + WINDOW + HOST] * 3


@pytest.mark.parametrize(("jit_step", "waited"), [(0.0625, BUILD - WINDOW), (4.0, 4.0)])
def test_rest_of_a_build_and_fallback_run_side_by_side(jit_step: float, waited: float) -> None:
    """Two sequences, one hits and one misses: the round goes on when both are done."""
    costs = {**LATE, "jit_step": {"kind": "constant", "seconds": jit_step}}
    scenario = run_of(costs, batch_size=8, fallback__kind="jit", on_late="abort", num_speculative_tokens=1)
    rounds = simulate(scenario).records.rounds.columns()
    mixed = (rounds["num_hits"] > 0) & (rounds["num_misses"] > 0)
    assert mixed.sum() > 50
    np.testing.assert_array_equal(rounds["round_s"][mixed], LOOKUP + waited + WINDOW + HOST)


def test_a_truncated_build_delays_nobody_and_shortens_the_chains() -> None:
    """K = 5 at half a unit a step after 1/8 of glue: one step of the window's 1.04296875 is done."""
    scenario = run_of(phases(tree_step=0.5), fallback__kind="jit", on_late="truncate")
    records = simulate(scenario).records
    rounds, outcomes = records.rounds.columns(), records.outcomes.columns()
    quiet = rounds["fallback_s"] == 0
    assert set(rounds["round_s"][quiet]) == {LOOKUP + WINDOW + HOST}
    assert set(rounds["store_s"]) == {0.0}
    by_source = {source: set(outcomes["num_proposed"][outcomes["source"] == source]) for source in (1, 2, 3)}
    assert by_source == {1: {5}, 2: {1}, 3: {5}}  # first rounds and misses are drafted in full, hits get one token


def test_sd_drafts_then_verifies() -> None:
    records = simulate(certain(hits=True, mode="sd")).records
    assert column(records, "round_s") == [0.125 + 1.0 + 0.03125 + HOST] * 3
    extra = simulate(certain(hits=True, mode="sd", sd_extra_step=True)).records
    assert column(extra, "round_s") == [2 * 0.125 + 1.0 + 0.03125 + HOST] * 3


def test_ar_is_verification_and_host() -> None:
    records = simulate(certain(hits=True, mode="ar")).records
    assert column(records, "round_s") == [1.0 + HOST] * 3
    assert column(records, "accept_s") == [0.0] * 3


def test_a_fast_fallback_takes_no_time_and_a_first_round_that_misses_gets_it() -> None:
    records = simulate(certain(hits=False, fallback__kind="none", first_round="miss")).records
    assert column(records, "round_s") == [LOOKUP + WINDOW + HOST] * 3
    assert column(records, "num_misses")[0] == 1


def test_without_lookahead_nothing_is_drafted_or_built() -> None:
    """SSD at K = 0 is AR with its exchange: look-up, reply, acceptance and outcome remain."""
    rounds = simulate(run_of(num_speculative_tokens=0)).records.rounds.columns()
    assert set(rounds["fallback_s"]) == set(rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"]) == {0.0}
    assert set(rounds["round_s"]) == {LOOKUP + WINDOW + HOST}


REFILLED = {"workload__output_tokens": 10, "workload__num_requests": 8, "batch_size": 2, "fallback__kind": "jit"}


def with_prefill(per_token_s: float, per_draft_token_s: float = 0.0, **fields: Any) -> tuple[Records, Records]:
    """A run whose 256-token prompts take no time, and the same run whose prompts take their time."""
    reading = {"prefill": per_token_s, "draft_prefill": per_draft_token_s}
    terms = {name: {"kind": "linear", "per_query_token_s": seconds} for name, seconds in reading.items()}
    scenarios = (run_of(costs, **REFILLED, **fields) for costs in (phases(), {**phases(), **terms}))
    plain, read = (simulate(scenario).records for scenario in scenarios)
    return plain, read


def admissions_of(records: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many requests each round admits."""
    outcomes = records.outcomes.columns()
    _, first = np.unique(outcomes["request_id"], return_index=True)
    return np.bincount(outcomes["round"][first], minlength=len(records.rounds))


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_one_process_reads_a_prompt_before_everything_else(mode: str) -> None:
    """256 tokens at 1/4096 each on the target and, where there is a draft, 1/32768 each on it."""
    plain, read = with_prefill(2**-12, 2**-15, mode=mode)
    rounds, admitted = read.rounds.columns(), admissions_of(read)
    draft_s = 2**-7 if mode == "sd" else 0.0
    assert rounds["prefill_s"].tolist() == (admitted / 16).tolist()
    added_s = rounds["round_s"] - plain.rounds.columns()["round_s"]
    np.testing.assert_allclose(added_s, admitted * (1 / 16 + draft_s), atol=1e-12)


def test_two_processes_read_a_prompt_side_by_side() -> None:
    """The target takes 1/16, or 1 with two requests at once; the speculator looks up (1/64), reads 1/128 and drafts
    5/16 meanwhile, so that of the short prompts nothing is left, and of the long ones what outlives the drafting."""
    plain, short = with_prefill(2**-12, 2**-15)
    admitted = admissions_of(short)
    assert short.rounds.columns()["prefill_s"].tolist() == [0.0] * len(short.rounds)
    added_s = short.rounds.columns()["fallback_s"] - plain.rounds.columns()["fallback_s"]
    np.testing.assert_allclose(added_s, admitted / 128, atol=1e-12)
    _, long = with_prefill(2**-9, 2**-15)
    rounds = long.rounds.columns()
    meanwhile_s = rounds["lookup_s"] + rounds["fallback_s"]
    expected_s = np.maximum(admitted / 2 - np.where(admitted, meanwhile_s, 0.0), 0.0)
    assert expected_s.max() > 0.5
    np.testing.assert_allclose(rounds["prefill_s"], expected_s, atol=1e-12)


def test_a_late_build_hides_a_prefill() -> None:
    """The prompt is read from the arrival of the outcomes on, the build outlives it by 2.15625 - 1.04296875 and more:
    only where nothing was built, in the first round of all, a prompt of 1/2 is waited for."""
    plain, read = (
        simulate(run_of(phases(tree_step=2.0) | extra, **REFILLED)).records
        for extra in ({}, {"prefill": {"kind": "linear", "per_query_token_s": 2**-9}})
    )
    unread_s = read.rounds.columns()["prefill_s"]
    assert unread_s[0] > 0
    assert unread_s[1:].tolist() == [0.0] * (len(unread_s) - 1)
    assert read.rounds.columns()["round_s"][1:].tolist() == plain.rounds.columns()["round_s"][1:].tolist()


def test_verification_beside_a_build_may_be_slower() -> None:
    """SSD verifies for 1.25 where it builds, SD never does."""
    costs = {**phases(), "verify_contention": 1.25}
    assert column(simulate(certain(costs, hits=True)).records, "verify_s") == [1.25] * 3
    assert column(simulate(certain(costs, hits=True, mode="sd")).records, "verify_s") == [1.0] * 3
    nothing_cached = {"fan_out__values": [0, 0], "fallback__kind": "jit"}
    assert column(simulate(certain(costs, hits=True, **nothing_cached)).records, "verify_s") == [1.0] * 3
