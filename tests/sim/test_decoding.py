"""AR by runs of rounds is AR round by round, and AR is what remains of SD and SSD without drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import check_invariants, phases, run_of

from ssdsim.records import TABLES, Records
from ssdsim.scenario import Scenario
from ssdsim.sim import engine, simulate
from ssdsim.sim.decoding import Decoding
from ssdsim.sim.requests import Requests

LENGTHS = {"kind": "geometric", "mean": 40.0, "max": 300}
GROWING = {"kind": "linear", "base_s": 1.0, "per_sequence_s": 0.125, "per_context_token_s": 2**-10}
LOADS: list[dict[str, Any]] = [
    {"batch_size": 1},
    {"batch_size": 7},
    {"batch_size": 7, "arrivals": "static"},
    {"batch_size": 3, "costs": {**phases(), "verify": GROWING, "jitter": {"verify": 0.2, "host": 0.1}}},
]


def ar(**fields: Any) -> Scenario:
    settings = {"workload__output_tokens": LENGTHS, "workload__num_requests": 600, "mode": "ar", **fields}
    return run_of(**settings)


def assert_same(records: Records, expected: Records) -> None:
    """Counts are equal; clock readings are sums in another order, apart by rounding."""
    for table in TABLES:
        columns = getattr(expected, table).columns()
        for name, column in getattr(records, table).columns().items():
            np.testing.assert_allclose(column, columns[name], rtol=1e-9, err_msg=f"{table}.{name}")


@pytest.mark.parametrize("fields", LOADS)
def test_a_run_of_rounds_is_its_rounds(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = ar(**fields)
    by_runs = simulate(scenario)
    monkeypatch.setattr(engine, "Decoding", lambda workload, requests: Decoding(workload, requests, longest_run=1))
    one_by_one = simulate(scenario)
    assert_same(by_runs.records, one_by_one.records)
    check_invariants(by_runs.records)
    for name, quantity in by_runs.quantities().items():
        assert quantity.value == pytest.approx(one_by_one.quantities()[name].value, rel=1e-9), name


def test_runs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """1000 tokens each in a closed loop of 2: one event per batch of two requests, not per round."""
    plans: list[int] = []
    original = engine.plans_of
    monkeypatch.setattr(engine, "plans_of", lambda *args: (plans.append(1) or plan for plan in original(*args)))
    records = simulate(ar(batch_size=2, workload__output_tokens=1000, workload__num_requests=6)).records
    assert len(records.rounds) == 3000
    assert len(plans) == 3


def test_sd_that_looks_ahead_by_nothing_is_ar() -> None:
    """Where checking nothing costs nothing."""
    decoded, verified = (
        simulate(ar(costs=phases(accept=0.0), batch_size=4, mode=mode, num_speculative_tokens=lookahead)).records
        for mode, lookahead in (("ar", 5), ("sd", 0))
    )
    for name in ("start_s", "round_s", "batch_size", "num_query_tokens", "context_tokens"):
        expected = verified.rounds.columns()[name]
        np.testing.assert_allclose(decoded.rounds.columns()[name], expected, rtol=1e-12)


def test_requests_are_the_workload_s() -> None:
    """Each takes as many rounds as it has tokens."""
    scenario = ar(batch_size=4)
    requests = simulate(scenario).records.requests.columns()
    order = np.argsort(requests["request_id"])
    streams = engine.Streams(scenario.run.seed)
    expected = Requests(scenario, None, streams).output_tokens(0, 600)
    np.testing.assert_array_equal(requests["output_tokens"][order], expected)
    np.testing.assert_array_equal(requests["num_rounds"][order], expected)
