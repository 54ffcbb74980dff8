"""Metrics on records written by hand, and the coverage of their bounds on simulated ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from toy_scenarios import toy

from ssdsim.metrics import RateWithError, Tally, Window, outcome_histogram, rate_with_error, summarise, tally_of
from ssdsim.records import OUTCOME_COLUMNS, REQUEST_COLUMNS, ROUND_COLUMNS, Lookup, Records, Source
from ssdsim.sim import simulate


def by_hand() -> Records:
    """Two requests side by side, then one alone: rounds of 2, 2 and 1 seconds with 5, 4 and 2 tokens.

    Request 0 emits 3 + 1 tokens, request 1 emits 2 + 3 + 2. In every round K = 2 tokens are proposed.
    """
    records = Records()
    rounds: dict[str, Any] = dict.fromkeys(ROUND_COLUMNS, 0)
    rounds |= {
        "round": [0, 1, 2],
        "start_s": [0.0, 2.0, 4.0],
        "round_s": [2.0, 2.0, 1.0],
        "batch_size": [2, 2, 1],
        "num_hits": [0, 1, 1],
        "num_misses": [0, 1, 0],
        "num_first": [2, 0, 0],
        "fallback_s": [0.5, 0.5, 0.0],
        "verify_s": [1.0, 1.0, 0.75],
        "host_s": [0.25, 0.25, 0.25],
        "glue_s": 0.125,
        "tree_s": [0.5, 1.125, 0.5],
        "verifier_wait_s": [0.5, 0.5, 0.0],
    }
    records.rounds.extend(3, **rounds)
    outcomes: dict[str, Any] = dict.fromkeys(OUTCOME_COLUMNS, 0)
    outcomes |= {
        "round": [0, 0, 1, 1, 2],
        "request_id": [0, 1, 0, 1, 1],
        "source": [Source.FIRST, Source.FIRST, Source.JIT, Source.HIT, Source.HIT],
        "lookup": [Lookup.MISS, Lookup.HIT, Lookup.FINAL, Lookup.HIT, Lookup.FINAL],
        "num_proposed": 2,
        "num_accepted": [2, 1, 0, 2, 1],
        "num_emitted": [3, 2, 1, 3, 2],
    }
    records.outcomes.extend(5, **outcomes)
    requests: dict[str, Any] = dict.fromkeys(REQUEST_COLUMNS, 0)
    requests |= {
        "request_id": [0, 1],
        "first_token_s": [1.5, 1.5],
        "finish_s": [3.5, 4.75],
        "output_tokens": [4, 7],
        "num_rounds": [2, 3],
    }
    records.requests.extend(2, **requests)
    return records


def test_every_mean_is_a_ratio_of_sums() -> None:
    values = {name: quantity.value for name, quantity in summarise(by_hand()).items()}
    expected = {
        "tokens_per_s": 11 / 5,
        "tokens_per_s_per_request": 11 / 9,
        "requests_per_s": 2 / 5,
        "mean_acceptance_length": 11 / 5,
        "batch_size": 5 / 3,
        "round_s": 5 / 3,
        "fallback_s": 1 / 3,
        "window_s": 2.75 / 3,
        "build_s": 2.5 / 3,
        "overhead_s": 0.25,
        "build_wait_s": 0.5 / 3,  # rounds 0 and 1 last .25 longer than their terms
        "cache_hit_rate": 2 / 3,
        "prob_all_hit": 2 / 3,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_shares_by_what_came_before() -> None:
    """First rounds and hits look up 3 times and hit 2 times; the drafted row after a miss ends its request."""
    quantities = summarise(by_hand())
    assert quantities["hit_rate_after_draft"].value == pytest.approx(2 / 3)
    assert "hit_rate_after_fallback" not in quantities
    assert quantities["acceptance_prob_1"].value == pytest.approx(4 / 5)
    assert quantities["acceptance_prob_2"].value == pytest.approx(2 / 4)
    assert quantities["draft_acceptance_rate"].value == pytest.approx(6 / 10)


def test_latencies_are_the_requests() -> None:
    values = {name: quantity.value for name, quantity in summarise(by_hand()).items()}
    assert values["ttft_s"] == 1.5
    assert values["e2e_s"] == (3.5 + 4.75) / 2
    assert values["e2e_p50_s"] == (3.5 + 4.75) / 2
    assert values["tpot_s"] == pytest.approx((2 / 3 + 3.25 / 6) / 2)
    assert values["itl_s"] == pytest.approx((2 + 3.25) / 3)  # one gap of request 0, two of request 1


def test_gaps_count_the_rows_that_waited() -> None:
    """Tokens are out at 1.5, 3.5 and 4.75; two rows wait for 2 seconds, one for 1.25."""
    values = {name: quantity.value for name, quantity in summarise(by_hand()).items()}
    assert values["itl_p50_s"] == 2.0
    assert values["itl_p99_s"] == 2.0


def test_a_run_without_a_cache_reports_none() -> None:
    quantities = summarise(simulate(toy(mode="ar", num_rounds=50)).records)
    assert not {"cache_hit_rate", "prob_all_hit", "hit_rate_after_draft", "acceptance_prob_1"} & set(quantities)
    assert quantities["tokens_per_s"].value == pytest.approx(1.0)


def test_nothing_recorded_is_nothing_reported() -> None:
    assert summarise(Records()) == {}
    assert math.isnan(rate_with_error(Records()).tokens_per_s)


def test_warm_up_is_left_out() -> None:
    """Of endless runs by rounds, of finite ones by requests; a closed loop that runs dry ends the measurement."""
    endless = simulate(toy(num_rounds=300, warmup_rounds=100)).records
    assert len(endless.rounds) == 400
    assert tally_of(endless).num_rounds == 300
    finite = {"output_tokens": {"kind": "uniform", "low": 5, "high": 60}, "num_requests": 40, "batch_size": 4}
    records = simulate(toy(**finite, warmup_requests=10)).records
    rounds, requests = records.rounds.columns(), records.requests.columns()
    start_s = requests["admitted_s"][requests["request_id"] == 10]
    measured = (rounds["start_s"] >= start_s) & (rounds["batch_size"] == 4)
    assert tally_of(records).num_rounds == measured.sum()
    ids = Window.of(records).requests(requests)["request_id"]
    assert ids.tolist() == list(range(10, 40))


def rounds_of(seconds: np.ndarray) -> dict[str, Any]:
    columns: dict[str, Any] = {name: np.zeros(len(seconds)) for name in ROUND_COLUMNS}
    return columns | {"batch_size": np.ones(len(seconds)), "round_s": seconds}


def test_sums_do_not_depend_on_how_a_run_is_cut() -> None:
    rng = np.random.default_rng(5)
    seconds, tokens = rng.random(1234), rng.integers(1, 6, 1234)
    whole, cut = Tally(), Tally()
    whole.add_rounds(rounds_of(seconds), tokens)
    for start, end in ((0, 1), (1, 500), (500, 501), (501, 1234)):
        cut.add_rounds(rounds_of(seconds[start:end]), tokens[start:end])
    assert whole.num_rounds == cut.num_rounds == 1234
    np.testing.assert_allclose(whole.batches("tokens", "round_s"), cut.batches("tokens", "round_s"))
    assert len(whole.batches("tokens")[0]) == 1234 // 32  # 64 batches of 16 would need 1024, so 38 of 32


def test_outcomes_add_up_whatever_their_range() -> None:
    tally = Tally()
    for proposed in (2, 7, 3):
        one = {"source": np.array([2]), "lookup": np.array([1]), "num_proposed": np.array([proposed])}
        tally.add_outcomes({**one, "num_accepted": np.array([1])})
    assert tally.outcomes[2, 1, [2, 3, 7], 1].tolist() == [1, 1, 1]
    assert tally.outcomes.sum() == 3
    assert outcome_histogram(*(np.zeros(0, np.int8) for _ in range(4))).sum() == 0


def error_of(rates: list[RateWithError]) -> float:
    """Standard deviation of (rate - mean of all) / its own error."""
    values = np.array([rate.tokens_per_s for rate in rates])
    errors = np.array([rate.standard_error for rate in rates])
    return float(np.std((values - values.mean()) / errors))


@pytest.mark.parametrize(
    "load",
    [
        {"num_rounds": 2000, "warmup_rounds": 50},
        {"output_tokens": 40, "num_requests": 400, "warmup_requests": 40},
        {"output_tokens": 40, "num_requests": 160, "arrivals": "static"},
    ],
    ids=["endless", "closed", "static"],
)
def test_standard_errors_are_the_spread_of_repeated_runs(load: dict[str, Any]) -> None:
    """Over 100 seeds the spread in units of its own error is 1 within .07 (standard error); .75-1.3 leaves 3.5."""
    rates = [rate_with_error(simulate(toy(batch_size=4, seed=seed, **load)).records) for seed in range(100)]
    assert 0.75 < error_of(rates) < 1.3


def test_bounds_hold_the_truth_as_often_as_they_say() -> None:
    """95 % of 100 runs: fewer than 86 or a perfect 100 would each happen about once in 1,000 (binomial)."""
    scenarios = [toy(seed=seed, num_rounds=1500, mode="sd") for seed in range(100)]
    truth = sum(0.8**k for k in range(6))
    lengths = [summarise(simulate(scenario).records)["mean_acceptance_length"] for scenario in scenarios]
    held = sum(length.low <= truth <= length.high for length in lengths)  # type: ignore[operator]
    assert 86 <= held <= 99
