"""Scenario files, profiles and overrides: what is merged, what is refused, and in whose words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_scenarios import toy_pair

from ssdsim.catalog import profile_names
from ssdsim.errors import InputError, ScenarioError
from ssdsim.scenario_files import (
    assign,
    complete,
    load_scenario,
    parse_override,
    read_document,
    resolve_path,
    scenario_from,
)


def scenario(*overrides: str, **data):
    return scenario_from({"pair": toy_pair(), **data}, [parse_override(text) for text in overrides])


def problems_of(*overrides: str, **data) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        scenario(*overrides, **data)
    return caught.value.problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "workload:\n  batch_size: 4\ndrafting:\n  num_speculative_tokens: 3\n"),
        ("s.toml", "[workload]\nbatch_size = 4\n[drafting]\nnum_speculative_tokens = 3\n"),
        ("s.json", '{"workload": {"batch_size": 4}, "drafting": {"num_speculative_tokens": 3}}'),
    ],
)
def test_yaml_toml_and_json_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    loaded = load_scenario(path)
    assert (loaded.workload.batch_size, loaded.drafting.num_speculative_tokens) == (4, 3)
    assert loaded.pair.name == "llama-3.1-70b"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("s.yaml", "a: [1", "not valid YAML"),
        ("s.toml", "a = ", "not valid TOML"),
        ("s.json", "{", "not valid JSON"),
        ("s.yaml", "- 1\n", "must hold a mapping"),
        ("s.txt", "a", "ends in .yaml, .toml or .json"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=complaint) as caught:
        load_scenario(path)
    assert name in str(caught.value)


def test_an_absent_file_and_a_binary_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_document(tmp_path / "b.yaml")


def test_every_embedded_profile_makes_a_scenario() -> None:
    for name in profile_names():
        assert load_scenario(pair=name).pair.name == name


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"llama-3\.1-70b"):
        load_scenario(pair="gpt")


def test_an_override_may_be_written_by_any_ending_that_is_unambiguous() -> None:
    changed = scenario("batch_size=8", "run.seed=3", "acceptance.spread=0.05", "output_tokens=64")
    assert changed.workload.batch_size == 8
    assert changed.run.seed == 3
    assert changed.pair.behaviours[0].acceptance.spread == 0.05
    assert changed.workload.output_tokens.value == 64


def test_an_ambiguous_ending_lists_what_it_may_mean() -> None:
    (problem,) = problems_of("kind=jit")
    assert "drafting.fallback.kind" in problem
    assert "workload.prompt_tokens.kind" in problem


def test_a_field_of_the_scenario_goes_before_one_of_its_pair() -> None:
    assert scenario("target_tp=2").placement.target_tp == 2
    assert scenario("hardware.target_tp=2").pair.hardware.target_tp == 2


def test_fields_that_the_profile_leaves_to_their_defaults_can_be_set() -> None:
    changed = scenario("limits.max_batch_size=4", "costs.jitter.verify=0.1", "when.temperature=0.0")
    assert changed.pair.limits.max_batch_size == 4
    assert changed.pair.costs.jitter.verify == 0.1
    assert changed.pair.behaviours[0].when.temperature == 0.0


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("2", 2), ("[1, 2]", [1, 2]), ("null", None), ("a", "a")]
)
def test_values_are_read_as_yaml_with_exponents_as_numbers(text: str, value: object) -> None:
    assert parse_override(f"x={text}") == ("x", value)


@pytest.mark.parametrize("text", ["batch_size", "=3", "x=[1"])
def test_an_override_that_cannot_be_read_says_how_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match="--set"):
        parse_override(text)


def test_all_problems_come_at_once_each_with_its_field_and_what_is_allowed() -> None:
    problems = problems_of(
        "batch_size=0",
        "batchsize=3",
        "workload.nonsense=3",
        "fallback.kind=foo",
        "acceptance.per_position=x",
        "miss_exponent=-1",
        "run.seed=true",
    )
    assert len(problems) == 7
    for start, allowed in [
        ("batchsize: no such field", "did you mean 'workload.batch_size'"),
        ("workload.batch_size: must be greater than or equal to 1", "got 0"),
        ("workload.nonsense: unknown field", "allowed: arrivals, batch_size"),
        ("drafting.fallback.kind: must be 'jit'", "got 'foo'"),
        ("pair.behaviours.0.acceptance.per_position: must be a valid number or must be a list", "got 'x'"),
        ("pair.behaviours.0.hit_curves.after_draft.rejection.miss_exponent: must be greater than 0", "got -1"),
        ("run.seed: must be a valid integer", "got True"),
    ]:
        (problem,) = [p for p in problems if p.startswith(start)]
        assert allowed in problem


def test_a_misspelt_field_inside_a_tagged_part_is_named_by_the_users_own_path() -> None:
    costs = {"kind": "ratios", "build": 0.8, "jit": 0.2, "sd_drft": 0.5}
    problems = problems_of(pair=toy_pair(costs=costs))
    assert any(p.startswith("pair.costs.sd_draft: this field is required") for p in problems)
    assert any(p.startswith("pair.costs.sd_drft: unknown field; did you mean 'sd_draft'?") for p in problems)


def test_fields_that_do_not_fit_together_are_separate_problems() -> None:
    problems = problems_of(
        "drafting.fan_out={policy: explicit, values: [1, 2]}", "output_tokens=null", "arrivals=static"
    )
    assert len(problems) == 2
    assert problems[0].startswith("drafting.fan_out.values: needs 8 entries")
    assert problems[1].startswith("workload.output_tokens: endless")


def test_bad_numbers_are_refused_wherever_a_number_is_expected() -> None:
    for bad in ("true", ".nan", ".inf", "-1", "text", "[1]"):
        assert problems_of(f"pair.costs.build={bad}")[0].startswith("pair.costs.build:")


def test_a_file_is_worth_the_same_with_and_without_an_unrelated_override() -> None:
    """Defaults of an inner part come from that part, not from the default scenario's choice for it."""
    data = {"drafting": {"fan_out": {"budget": 24}}}
    assert scenario(**data).drafting == scenario("batch_size=1", **data).drafting


def test_setting_one_size_of_a_fan_out_takes_back_the_other() -> None:
    assert scenario("fan_out.budget=24").drafting.fan_out.per_position is None
    assert scenario("fan_out.budget=24").drafting.fan_out.budget == 24
    (problem,) = problems_of("fan_out.budget=24", "drafting.fan_out.per_position=3")
    assert "exactly one of budget, per_position" in problem


def test_parts_that_are_absent_by_default_can_be_set_field_by_field() -> None:
    changed = scenario("fan_out_on_miss.policy=uniform", "fan_out_on_miss.budget=5", "slo.ttft_s=0.5")
    assert changed.drafting.fan_out_on_miss is not None
    assert changed.drafting.fan_out_on_miss.budget == 5
    assert changed.slo.ttft_s == 0.5


def test_another_profile_can_be_chosen_and_changed_in_one_go() -> None:
    changed = scenario("pair=qwen3-32b", "pair.hardware.target_tp=2")
    assert (changed.pair.name, changed.pair.hardware.target_tp) == ("qwen3-32b", 2)


def test_a_list_is_addressed_by_number_and_an_absent_item_is_refused() -> None:
    data = complete({"pair": toy_pair(acceptance=[0.9, 0.8])})
    path = resolve_path(data, "acceptance.per_position.1")
    assert assign(data, [(path, 0.5)])["pair"]["behaviours"][0]["acceptance"]["per_position"] == [0.9, 0.5]
    with pytest.raises(InputError, match="items 0 to 0"):
        assign(data, [(("pair", "behaviours", "3", "when"), {})])


def test_overrides_leave_the_data_they_start_from_alone() -> None:
    data = complete({"pair": toy_pair()})
    before = json.dumps(data, sort_keys=True)
    assign(data, [(("pair", "costs", "build"), 3.0), (("workload", "batch_size"), 2)])
    assert json.dumps(data, sort_keys=True) == before
