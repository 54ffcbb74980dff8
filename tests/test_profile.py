"""Profiles: versions of the file, acceptance that depends on the lookahead, and how errors are held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_scenarios import toy_pair

from ssdsim import profile as profiles
from ssdsim.catalog import load_profile
from ssdsim.errors import InputError, ScenarioError
from ssdsim.profile import PROFILE_SCHEMA, Acceptance, PairProfile, Uncertainty, in_current_schema
from ssdsim.schema import validate


def test_a_file_of_an_older_schema_is_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        return {("name" if key == "title" else key): value for key, value in data.items()}

    monkeypatch.setattr(profiles, "MIGRATIONS", {PROFILE_SCHEMA - 1: renamed})
    found = in_current_schema({"schema_version": PROFILE_SCHEMA - 1, "title": "old"}, "old.json")
    assert found == {"schema_version": PROFILE_SCHEMA, "name": "old"}


def test_a_file_of_a_newer_schema_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "newer.json"
    path.write_text(json.dumps({**toy_pair(), "schema_version": PROFILE_SCHEMA + 1}))
    with pytest.raises(InputError, match="upgrade ssdsim"):
        load_profile(str(path))


def test_a_schema_that_is_no_longer_read_is_refused() -> None:
    with pytest.raises(InputError, match="calibrate it anew"):
        in_current_schema({"schema_version": PROFILE_SCHEMA - 7}, "ancient.json")


@pytest.mark.parametrize("version", ["1", 1.5, True, None])
def test_a_version_must_be_a_whole_number(version: object) -> None:
    with pytest.raises(InputError, match="must be an integer"):
        in_current_schema({"schema_version": version}, "odd.json")


def test_acceptance_is_interpolated_between_measured_lookaheads() -> None:
    known = Acceptance(per_position=(0.7, 0.6, 0.5, 0.4), by_lookahead=((0.8, 0.7), (0.6, 0.5, 0.4, 0.3)))
    assert known.at(2) == (0.8, 0.7)
    assert known.at(4) == (0.6, 0.5, 0.4, 0.3)
    # Half way between lookaheads 2 and 4; the third position is known at 4 only.
    assert known.at(3) == pytest.approx((0.7, 0.6, 0.4))
    assert known.at(1) == (0.8,)


def test_a_lookahead_beyond_all_measured_ones_is_refused() -> None:
    with pytest.raises(ValueError, match="known for 2 positions"):
        Acceptance(per_position=(0.7, 0.6), by_lookahead=((0.7, 0.6),)).at(3)


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        ({"per_position": 0.5, "by_lookahead": [[0.5, 0.4], [0.5]]}, "increasing length"),
        ({"per_position": 0.5, "by_lookahead": [[0.99]], "spread": 0.2}, "spread must be below"),
    ],
)
def test_lists_by_lookahead_must_fit_together(acceptance: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        validate(Acceptance, acceptance)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"paths": ["a", "b"], "standard_errors": [0.1]}, "one entry per path"),
        (
            {"paths": ["a", "b"], "standard_errors": [0.1, 0.1], "correlations": [[], []]},
            "one number per path before it",
        ),
        ({"paths": ["a"], "standard_errors": [-0.1]}, "greater than or equal to 0"),
    ],
)
def test_errors_must_be_complete(group: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        validate(Uncertainty, group)


def test_an_embedded_profile_is_of_this_schema() -> None:
    assert PairProfile.model_validate(load_profile("qwen3-32b")).schema_version == PROFILE_SCHEMA
