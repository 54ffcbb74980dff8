"""How results are laid out: which axis is x, what gets a panel, and which lines are one."""

from __future__ import annotations

import numpy as np
import pytest
from toy_scenarios import toy_pair

from ssdsim.evaluate import Method
from ssdsim.planning.engines import EngineKind, open_engine
from ssdsim.planning.plan import make_plan
from ssdsim.planning.store import MemoryStore
from ssdsim.planning.sweep import run_sweep
from ssdsim.planning.views import view_of
from ssdsim.plotting.sweep import View
from ssdsim.scenario_files import complete


def view(*axes: str, methods=(Method.EXACT,), quantity: str = "tokens_per_s") -> View:
    plan = make_plan(complete({"pair": toy_pair(), "workload": {"output_tokens": None}}), axes, methods)
    with open_engine(EngineKind.LOCAL, 1) as engine:
        table = run_sweep(plan, MemoryStore(plan), engine)
    return view_of(plan, table, quantity)


def test_x_has_the_most_values_and_panels_come_next() -> None:
    laid_out = view("mode=sd,ssd", "batch_size=1,2,4", "num_speculative_tokens=1:5")
    assert (laid_out.x_name, laid_out.x_values) == ("lookahead", (1, 2, 3, 4, 5))
    assert (laid_out.panel_name, laid_out.panel_values) == ("batch size", (1, 2, 4))
    assert [line.label for line in laid_out.lines] == ["SD", "SSD"]
    assert laid_out.values.shape == (3, 2, 5)


def test_the_values_are_those_of_the_points() -> None:
    laid_out = view("batch_size=1,2", "mode=ar,ssd", "num_speculative_tokens=1,2,3")
    single = view("mode=ssd", "batch_size=2", "num_speculative_tokens=3")
    ssd = [line.label for line in laid_out.lines].index("SSD")
    assert laid_out.values[1, ssd, 2] == single.values.flat[0]


def test_lines_that_agree_everywhere_are_one() -> None:
    """AR knows neither lookahead nor fan-out, SD no fan-out."""
    laid_out = view(
        "mode=ar,sd,ssd", "fan_out.per_position=1,3", "num_speculative_tokens=1,2,3", "batch_size=1,2,4,8"
    )
    assert [line.label for line in laid_out.lines] == [
        "AR",
        "SD",
        "SSD, fan-out per position 1",
        "SSD, fan-out per position 3",
    ]


def test_with_many_lines_each_mode_keeps_its_best() -> None:
    laid_out = view("mode=sd,ssd", "fan_out.per_position=1:9", "num_speculative_tokens=1:11", "batch_size=1:10")
    assert [line.label for line in laid_out.lines] == ["SD", "SSD, best of 9"]
    single = view("fan_out.per_position=1:9", "num_speculative_tokens=3", "batch_size=2")
    assert laid_out.values[1, 1, 2] == pytest.approx(single.values.max())


def test_bounds_come_along_with_their_values() -> None:
    assert np.isnan(view("batch_size=1,2").bounds).all()
    plan = make_plan(
        complete({"pair": toy_pair(), "workload": {"num_requests": 10, "output_tokens": 20}}),
        ["batch_size=1,2", "mode=sd,ssd"],
        [Method.SIM],
    )
    with open_engine(EngineKind.LOCAL, 1) as engine:
        table = run_sweep(plan, MemoryStore(plan), engine)
    laid_out = view_of(plan, table, "tokens_per_s")
    low, high = laid_out.bounds
    assert low.shape == laid_out.values.shape
    assert np.all((low < laid_out.values) & (laid_out.values < high))


def test_methods_tell_lines_apart() -> None:
    laid_out = view("batch_size=1,2", methods=(Method.PAPER, Method.EXACT))
    assert [(line.label, line.method) for line in laid_out.lines] == [("SSD paper", "paper"), ("SSD exact", "exact")]


def test_rows_without_an_answer_leave_a_gap() -> None:
    laid_out = view("batch_size=0,1,2")
    assert np.isnan(laid_out.values[0, 0]).tolist() == [True, False, False]


def test_a_single_point_is_a_view_too() -> None:
    laid_out = view()
    assert (laid_out.x_values, laid_out.panel_values, laid_out.values.shape) == (("",), ("",), (1, 1, 1))


def test_names_stand_on_x_where_no_axis_has_numbers() -> None:
    assert view("fallback.kind=jit,none").x_values == ("jit", "none")
