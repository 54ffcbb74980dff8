"""Stretches of rounds drawn at once are the same rounds as those drawn one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run_of

from ssdsim.records import TABLES
from ssdsim.sim import engine, simulate
from ssdsim.sim.foreseen import compose, num_accepted

FINITE: dict[str, Any] = {
    "workload__output_tokens": {"kind": "uniform", "low": 1, "high": 200},
    "workload__num_requests": 90,
    "workload__prompt_tokens": {"kind": "uniform", "low": 5, "high": 50},
}
INDEPENDENT_ROWS: list[dict[str, Any]] = [
    {"mode": "sd", "batch_size": 3},
    {"batch_size": 5, "fallback__kind": "jit"},
    {"batch_size": 5, "fallback__kind": "none"},
    {"batch_size": 4, "fallback__kind": "ngram", **FINITE},
    {"batch_size": 4, "fallback__kind": "random", "first_round": "miss", **FINITE, "spread": 0.2},
    {"batch_size": 4, "arrivals": "static", **FINITE},
    {"batch_size": 100, **FINITE},
]


@pytest.mark.parametrize("fields", INDEPENDENT_ROWS)
def test_rounds_at_once_are_rounds_one_by_one(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = run_of(**fields)
    at_once = simulate(scenario).records
    monkeypatch.setattr(engine, "looks_at_batch", lambda *_: True)
    one_by_one = simulate(scenario).records
    for table in TABLES:
        expected = getattr(one_by_one, table).columns()
        for name, column in getattr(at_once, table).columns().items():
            np.testing.assert_array_equal(column, expected[name], err_msg=name)


@given(st.integers(1, 4), st.integers(1, 40), st.randoms(use_true_random=False))
def test_two_state_maps_compose(num_chains: int, num_rounds: int, random: Any) -> None:
    """Against following every chain step by step."""
    bits = np.array([[random.random() < 0.5 for _ in range(num_rounds)] for _ in range(2 * num_chains)])
    if_false, if_true = bits[:num_chains], bits[num_chains:]
    initial = np.array([random.random() < 0.5 for _ in range(num_chains)])
    state, expected = initial, []
    for t in range(num_rounds):
        state = np.where(state, if_true[:, t], if_false[:, t])
        expected.append(state)
    np.testing.assert_array_equal(compose(initial, if_false, if_true), np.array(expected).T)


def test_tokens_accepted_follow_from_one_uniform() -> None:
    """With survival .8, .4 a uniform below .4 accepts two tokens, one below .8 the first."""
    luck = np.array([[0.39, 0.4, 0.79, 0.8]])
    assert num_accepted(luck, np.array([[0.8, 0.4]])).tolist() == [[2, 1, 1, 0]]
