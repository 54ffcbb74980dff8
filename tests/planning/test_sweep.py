"""A sweep of the exact model in arrays gives what `evaluate` gives point by point, refusals included."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_scenarios import toy_pair

from ssdsim.evaluate import Method
from ssdsim.planning.blocks import exact_piece
from ssdsim.planning.engines import EngineKind, open_engine
from ssdsim.planning.plan import SweepPlan, make_plan
from ssdsim.planning.results import from_plain_rows, piece_of_rows, plain_rows
from ssdsim.planning.store import MemoryStore
from ssdsim.planning.sweep import compute_row, run_sweep, useful_workers
from ssdsim.scenario_files import complete

COMPONENTS = {
    "kind": "components",
    "verify": {"kind": "linear", "base_s": 0.02, "per_query_token_s": 1e-4, "per_context_token_s": 1e-8},
    "draft_step": {"kind": "constant", "seconds": 0.001},
    "tree_step": {"kind": "linear", "base_s": 0.001, "per_sequence_s": 1e-5},
    "host": {"kind": "constant", "seconds": 0.002},
}


def plan_of(*axes: str, methods=(Method.EXACT,), **data) -> SweepPlan:
    return make_plan(complete({"pair": toy_pair(costs=COMPONENTS), **data}), axes, methods)


def sweep(plan: SweepPlan):
    with open_engine(EngineKind.LOCAL, 1) as engine:
        return run_sweep(plan, MemoryStore(plan), engine)


def assert_both_ways_agree(plan: SweepPlan, rows: np.ndarray) -> list[dict]:
    """The arrays' rows, after comparing each with the long way (rounding of sums in another order aside)."""
    slow = piece_of_rows(plan, [compute_row(plan, row) for row in rows.tolist()])
    fast = exact_piece(plan, rows, compute_row)
    order = np.argsort(fast["row"])
    fast = {name: column[order] for name, column in fast.items()}
    assert fast.keys() == slow.keys()
    for name, expected in slow.items():
        if expected.dtype == float:
            np.testing.assert_allclose(fast[name], expected, rtol=1e-12, atol=0, err_msg=name)
        else:
            assert fast[name].tolist() == expected.tolist(), name
    return plain_rows(fast)


GRIDS = {
    "drafting, behaviour, batch, devices and costs": (
        "num_speculative_tokens=1,3,6",
        "fan_out.per_position=1,3",
        "acceptance.per_position=0.5,0.9",
        "batch_size=1,3,8",
        "num_draft_devices=1,2",
        "pair.costs.host.seconds=0.0,0.004",
    ),
    "modes and fallbacks": (
        "mode=ar,sd,ssd",
        "fallback.kind=jit,none,random,ngram",
        "batch_size=1,4",
        "behaviours.0.acceptance.spread=0.0,0.1",
    ),
    "rules that look at the batch": (
        "fallback.kind=jit,auto,threshold,none",
        "batch_size=1,5",
        "output_tokens=null,40",
    ),
    "late builds": ("on_late=wait,abort,truncate", "fan_out.per_position=1,60", "batch_size=1,4"),
    "loads": ("arrivals=closed,static", "output_tokens=16,40", "first_round=jit,miss", "batch_size=1,2"),
    "the official engine": (
        "redraft_hits=false,true",
        "padded_verify=false,true",
        "sd_extra_step=false,true",
        "mode=sd,ssd",
    ),
    "whole parts": (
        "pair=llama-3.1-70b,qwen3-32b",
        "drafting.fan_out={policy: geometric, budget: 9},{policy: explicit, values: [1, 2, 3]}",
        "num_speculative_tokens=2,3",
        "pair.hardware.target_tp=1,8",
    ),
    "linked fields": (
        "num_speculative_tokens=2,4; batch_size=8,2; target_tp=1,2",
        "slo.ttft_s=null,0.5",
        "run.seed=1,2",
    ),
    "invalid points": (
        "batch_size=0,1,2",
        "num_speculative_tokens=-1,2",
        "pair.costs.host.seconds=-1.0,0.0",
        "slo.ttft_s=-1,1.0",
    ),
    "limits": (
        "pair.limits.max_batch_size=null,4",
        "batch_size=4,5",
        "pair.limits.max_speculative_tokens=3",
        "num_speculative_tokens=3,4",
    ),
    "jitter": ("pair.costs.jitter.verify=0.0,0.2", "batch_size=1,2"),
}


@pytest.mark.parametrize("axes", GRIDS.values(), ids=GRIDS)
def test_arrays_and_evaluate_agree_on_every_point(axes: tuple[str, ...]) -> None:
    plan = plan_of(*axes)
    assert_both_ways_agree(plan, np.arange(plan.num_rows))


def test_a_replayed_trace_is_refused_either_way() -> None:
    pair = toy_pair(costs=COMPONENTS)
    pair["behaviours"][0]["rank_trace"] = {"requests": [[0, 1, 0, 0]]}
    plan = make_plan(complete({"pair": pair}), ["batch_size=1,2"], [Method.EXACT])
    rows = assert_both_ways_agree(plan, np.arange(2))
    assert {row["status"] for row in rows} == {"invalid"}
    assert "method 'sim'" in rows[0]["error"]


def test_a_failing_point_is_recorded_with_its_reason_and_the_others_go_on() -> None:
    table = sweep(plan_of("batch_size=0,1", "num_speculative_tokens=2,true"))
    assert table["status"].tolist() == ["invalid", "invalid", "ok", "invalid"]
    assert table["error"][0] == "workload.batch_size: must be greater than or equal to 1; got 0"
    assert table["error"][1].count(";") == 3, "both problems are named"
    assert table["error"][2] is None
    assert math.isnan(table["tokens_per_s"][0])
    assert table["tokens_per_s"][2] > 0


def test_a_crash_in_one_point_is_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("ssdsim.planning.sweep.compare", crash)
    table = sweep(plan_of("batch_size=1,2", methods=(Method.PAPER,)))
    assert table["status"].tolist() == ["failed", "failed"]
    assert table["error"][0] == "ZeroDivisionError: boom"


def test_the_table_has_the_varied_fields_in_front_and_one_row_per_point_and_method() -> None:
    table = sweep(plan_of("batch_size=1,2", "mode=sd,ssd", methods=(Method.PAPER, Method.EXACT)))
    assert list(table)[:3] == ["workload.batch_size", "mode", "method"]
    assert table["workload.batch_size"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2]
    assert table["mode"].tolist() == ["sd", "sd", "ssd", "ssd"] * 2
    assert table["method"].tolist() == ["paper", "exact"] * 4


def test_speedups_compare_modes_of_the_same_method_at_the_same_point() -> None:
    table = sweep(plan_of("batch_size=1,4", "mode=ar,sd,ssd"))
    rate = table["tokens_per_s"].reshape(2, 3)
    np.testing.assert_allclose(table["speedup_over_ar"].reshape(2, 3), rate / rate[:, :1])
    np.testing.assert_allclose(table["speedup_over_sd"].reshape(2, 3), rate / rate[:, 1:2])


def test_simulated_speedups_compare_the_modes_that_were_simulated() -> None:
    data = {"methods": (Method.SIM,), "workload": {"num_requests": 10, "output_tokens": 20}}
    table = sweep(plan_of("mode=ar,ssd", "batch_size=1,2", **data))
    rate = table["tokens_per_s"]
    np.testing.assert_allclose(table["speedup_over_ar"], rate / np.tile(rate[:2], 2))
    assert np.isnan(table["speedup_over_sd"]).all()


def test_rows_as_plain_data_have_every_quantity_with_its_bounds_and_lead_back_to_the_table() -> None:
    table = sweep(plan_of("batch_size=0,2"))
    rows = plain_rows(table)
    assert rows[0]["quantities"]["tokens_per_s"] == {"value": None, "low": None, "high": None}
    assert rows[1]["quantities"]["tokens_per_s"]["value"] == table["tokens_per_s"][1]
    back = from_plain_rows(rows)
    assert back.keys() == table.keys()
    np.testing.assert_array_equal(back["tokens_per_s"], table["tokens_per_s"])


def test_values_of_several_kinds_make_columns_of_one_kind() -> None:
    seven = "[0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]"
    axes = ("fan_out_on_miss=null,{policy: uniform, budget: 4}", f"acceptance.per_position=0.5,{seven}")
    table = sweep(plan_of(*axes))
    assert table["drafting.fan_out_on_miss"].tolist() == [None, None] + ['{"policy": "uniform", "budget": 4}'] * 2
    assert table["pair.behaviours.0.acceptance.per_position"][1].startswith("[0.9, 0.9")
    assert set(table["status"]) == {"ok"}


def test_simulated_rows_depend_on_the_seed_only_and_come_with_bounds() -> None:
    axes = ("batch_size=1,2", "run.seed=1,2")
    plan = plan_of(*axes, methods=(Method.SIM,), workload={"num_requests": 40, "output_tokens": 50})
    first, second = sweep(plan), sweep(plan)
    assert first["error"].tolist() == [None] * 4
    np.testing.assert_array_equal(first["tokens_per_s"], second["tokens_per_s"])
    assert len(set(first["tokens_per_s"])) == 4
    assert np.all(first["tokens_per_s_low"] < first["tokens_per_s"])
    assert np.all(first["tokens_per_s"] < first["tokens_per_s_high"])


def test_arrays_keep_to_one_worker_unless_more_are_wished_for() -> None:
    assert useful_workers(plan_of(), None) == 1
    assert useful_workers(plan_of(), 3) == 3
    assert useful_workers(plan_of(methods=(Method.SIM,)), None) is None


def test_equal_plans_have_equal_fingerprints() -> None:
    assert plan_of("batch_size=1,2") == plan_of("workload.batch_size=1:2")
    assert plan_of("batch_size=1,2,3") != plan_of("batch_size=1,2")
    assert plan_of("batch_size=1,2", run={"seed": 1}) != plan_of("batch_size=1,2")
    assert plan_of("batch_size=1,2", methods=(Method.SIM,)) != plan_of("batch_size=1,2")


def test_with_uncertainty_every_answer_lies_within_bounds_that_ranges_open_up() -> None:
    pair = {**toy_pair(costs=COMPONENTS), "ranges": {"costs.host.seconds": {"low": 0.0, "high": 0.008}}}
    plan = make_plan(complete({"pair": pair}), ["batch_size=0,1,4"], [Method.EXACT], uncertainty=True)
    table = sweep(plan)
    assert table["status"].tolist() == ["invalid", "ok", "ok"]
    low, value, high = (table[f"tokens_per_s{bound}"][1:] for bound in ("_low", "", "_high"))
    assert np.all(low < value)
    assert np.all(value < high)
    plain = sweep(make_plan(complete({"pair": pair}), ["batch_size=1,4"], [Method.EXACT]))
    np.testing.assert_allclose(value, plain["tokens_per_s"])
    assert "tokens_per_s_low" not in plain
