"""Axes as they are written, and the grid that they span."""

from __future__ import annotations

import numpy as np
import pytest
from toy_scenarios import toy_pair

from ssdsim.errors import InputError
from ssdsim.planning.grid import Axis, build_grid, parse_axis, parse_values
from ssdsim.scenario_files import complete


@pytest.fixture
def data():
    return complete({"pair": toy_pair()})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1:4", [1, 2, 3, 4]),
        ("4:1:-1", [4, 3, 2, 1]),
        ("1:10:3", [1, 4, 7, 10]),
        ("1:12:3", [1, 4, 7, 10]),
        ("1:64:2x", [1, 2, 4, 8, 16, 32, 64]),
        ("64:8:0.5x", [64, 32.0, 16.0, 8.0]),
        ("0.1:0.5:0.2", [0.1, 0.3, 0.5]),
        ("0:1:5n", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("1e-3:1e-1:10x", [0.001, 0.01, 0.1]),
        ("1,4:6,true", [1, 4, 5, 6, True]),
        ("jit,none", ["jit", "none"]),
        ("[1, 2],[3, 4]", [[1, 2], [3, 4]]),
        ("{policy: uniform, budget: 3},null", [{"policy": "uniform", "budget": 3}, None]),
        ("'a,b',c", ["a,b", "c"]),
        ("a:b", ["a:b"]),
    ],
)
def test_values_and_ranges(text: str, values: list[object]) -> None:
    assert parse_values(text, where="--over x") == values


@pytest.mark.parametrize(
    "text", ["0.5:0.9", "1:4:0", "1:4:-1", "4:1", "1:64:1x", "0:64:2x", "64:1:2x", "0:1:1n", "0:1:2.5n", "0:1:1e-9"]
)
def test_a_range_that_leads_nowhere_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--over x"):
        parse_values(text, where="--over x")


def test_paths_are_completed_as_for_overrides(data) -> None:
    assert parse_axis(data, "batch_size=1,2").names == ("workload.batch_size",)
    assert parse_axis(data, "acceptance.per_position=.5,.9").names == ("pair.behaviours.0.acceptance.per_position",)
    with pytest.raises(InputError, match="did you mean"):
        parse_axis(data, "batchsize=1")


def test_linked_fields_move_together(data) -> None:
    axis = parse_axis(data, "batch_size=1,2,4; run.seed=10:12")
    assert axis.names == ("workload.batch_size", "run.seed")
    assert axis.values == ((1, 10), (2, 11), (4, 12))
    with pytest.raises(InputError, match=r"equally many values; workload\.batch_size has 2, run\.seed has 3"):
        parse_axis(data, "batch_size=1,2; run.seed=10:12")


@pytest.mark.parametrize("text", ["batch_size", "=1", "batch_size=", "batch_size=1; run.seed"])
def test_an_axis_without_path_or_values_says_how_to_write_it(data, text: str) -> None:
    with pytest.raises(InputError, match=r"write path\.to\.field=1,2,4"):
        parse_axis(data, text)


def test_a_field_is_varied_once(data) -> None:
    with pytest.raises(InputError, match="varied twice"):
        build_grid(data, ["batch_size=1,2", "workload.batch_size=4"])


def test_the_last_axis_runs_fastest(data) -> None:
    grid = build_grid(data, ["run.seed=1,2", "batch_size=1,2,4"])
    assert grid.size == 6
    seen = [tuple(value for _, value in grid.settings(point)) for point in range(grid.size)]
    assert seen == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)]
    assert [step.tolist() for step in grid.steps(np.arange(6))] == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


def test_outer_fields_are_set_before_inner_ones(data) -> None:
    """Otherwise choosing another profile would wipe out what was set in it."""
    grid = build_grid(data, ["pair.hardware.target_tp=1,2", "pair=llama-3.1-70b,qwen3-32b"])
    assert [path for path, _ in grid.settings(3)] == [("pair",), ("pair", "hardware", "target_tp")]


def test_without_an_axis_there_is_one_point() -> None:
    grid = build_grid({}, [])
    assert (grid.size, grid.settings(0), grid.steps(np.arange(1))) == (1, [], [])


def test_an_axis_gives_the_column_of_each_of_its_fields() -> None:
    axis = Axis((("a",), ("b",)), ((1, "x"), (2, "y")))
    assert (len(axis), axis.column(0), axis.column(1)) == (2, (1, 2), ("x", "y"))
