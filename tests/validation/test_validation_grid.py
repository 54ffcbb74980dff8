"""The measured points: enough of them, within the calibrated range, none in both parts."""

from __future__ import annotations

import pytest

from ssdsim.scenario import FallbackKind, Mode
from ssdsim.validation.grid import GridName, validation_grid


@pytest.mark.parametrize("name", list(GridName))
def test_no_held_out_point_was_calibrated_on(name: GridName) -> None:
    grid = validation_grid(name)
    names = [s.name for s in (*grid.calibration, *grid.held_out)]
    assert len(names) == len(set(names))
    assert grid.anchor in grid.calibration


def test_the_full_grid_covers_what_is_promised() -> None:
    held_out = validation_grid(GridName.FULL).held_out
    assert len(held_out) >= 40
    assert {s.batch_size for s in held_out} >= {1, 2, 4, 8}
    assert {s.drafting.num_speculative_tokens for s in held_out if s.mode is not Mode.AR} == set(range(1, 9))
    assert {s.temperature for s in held_out} == {0.0, 1.0}
    assert {s.mode for s in held_out} == set(Mode)
    fallbacks = {s.drafting.fallback.kind for s in held_out if s.mode is Mode.SSD}
    assert fallbacks == {FallbackKind.JIT, FallbackKind.NONE, FallbackKind.NGRAM}


@pytest.mark.parametrize("name", list(GridName))
def test_held_out_points_lie_within_the_calibrated_range(name: GridName) -> None:
    grid = validation_grid(name)
    for mode in Mode:
        seen = [s for s in grid.calibration if s.mode is mode]
        asked = [s for s in grid.held_out if s.mode is mode]
        assert max(s.batch_size for s in asked) <= max(s.batch_size for s in grid.calibration)
        assert max(s.drafting.num_speculative_tokens for s in asked) <= max(
            s.drafting.num_speculative_tokens for s in seen
        )


def test_policies_are_vectors_that_measurement_and_prediction_share() -> None:
    held_out = validation_grid(GridName.FULL).held_out
    explicit = [s.drafting.fan_out for s in held_out if s.drafting.fan_out.policy != "uniform"]
    assert explicit
    assert all(fan_out.policy == "explicit" for fan_out in explicit)
