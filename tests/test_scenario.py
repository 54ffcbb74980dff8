"""The scenario's own rules: sizes of vectors, which options belong together, devices."""

from __future__ import annotations

import pytest
from toy_scenarios import toy, toy_pair

from ssdsim.errors import ScenarioError
from ssdsim.scenario import FallbackKind, FanOut, num_fallback_tokens


def test_a_fan_out_has_exactly_one_size() -> None:
    assert FanOut(per_position=3).total(6) == 18
    assert FanOut(budget=20).total(6) == 20
    assert FanOut(policy="explicit", values=(1, 0, 2)).total(3) == 3
    for fields in ({}, {"budget": 3, "per_position": 1}, {"policy": "explicit", "budget": 3}, {"values": (1, 2)}):
        with pytest.raises(ValueError, match="exactly one of"):
            FanOut(**fields)


def test_explicit_vectors_have_an_entry_for_every_outcome() -> None:
    assert toy(drafting__fan_out={"policy": "explicit", "values": [0, 0, 0, 0, 0, 1]}).drafting.fan_out.values
    with pytest.raises(ScenarioError, match=r"drafting\.fan_out\.values: needs 6 entries"):
        toy(drafting__fan_out={"policy": "explicit", "values": [1, 2, 3]})
    with pytest.raises(ScenarioError, match=r"drafting\.fan_out_on_miss\.values: needs 1 entries"):
        toy(drafting__fan_out_on_miss={"policy": "explicit", "values": [1, 2]})


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            {"fallback__kind": "jit", "drafting__fallback__num_tokens": 2},
            "num_tokens belongs to the fallback kind 'ngram'",
        ),
        ({"fallback__kind": "jit", "drafting__fallback__threshold": 2}, "threshold belongs to the fallback kind"),
        ({"redraft_hits": True}, "belongs to the fallback kind 'jit' only"),
        ({"fallback__kind": "ngram", "drafting__fallback__num_tokens": 9}, "must be at most the lookahead"),
        ({"workload__arrivals": "static"}, "endless requests never leave a static batch"),
        ({"workload__output_tokens": 8, "workload__num_requests": 4, "run__warmup_requests": 4}, "must be below"),
        ({"workload__num_requests": 0}, "greater than or equal to 1"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(overrides, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        toy(**overrides)


def test_a_lookahead_beyond_the_known_positions_names_the_cures() -> None:
    pair = toy_pair(acceptance=[0.9, 0.8, 0.7])
    assert toy(pair, drafting__num_speculative_tokens=3).drafting.num_speculative_tokens == 3
    with pytest.raises(ScenarioError, match="known for 3 positions, 5 are asked for"):
        toy(pair)


def test_a_behaviour_is_chosen_by_the_most_specific_condition() -> None:
    pair = toy_pair()
    general = pair["behaviours"][0]
    pair["behaviours"] = [general, {**general, "when": {"prompt_kind": "code"}, "acceptance": {"per_position": 0.95}}]
    known = {kind: toy(pair, workload__prompt_kind=kind).pair for kind in ("code", "chat")}
    assert [
        known[k]
        .behaviour(temperature=0.0, saguaro_downweight=1.0, prompt_kind=k, drafter="model")
        .acceptance.per_position
        for k in ("code", "chat")
    ] == [0.95, 0.8]
    pair["behaviours"] = pair["behaviours"][1:]
    with pytest.raises(ScenarioError, match=r"no behaviour for .*prompt_kind=chat"):
        toy(pair, workload__prompt_kind="chat")


@pytest.mark.parametrize(
    ("kind", "tokens"), [("jit", 5), ("random", 5), ("none", 0), ("ngram", 5), ("auto", 0), ("threshold", 0)]
)
def test_each_fallback_proposes_its_number_of_tokens(kind: str, tokens: int) -> None:
    assert num_fallback_tokens(toy(fallback__kind=FallbackKind(kind)).drafting) == tokens
    assert num_fallback_tokens(toy(fallback__kind="ngram", drafting__fallback__num_tokens=2).drafting) == 2


def test_devices_come_from_the_placement_or_else_from_the_profile() -> None:
    assert (toy().num_target_devices, toy().num_speculator_devices) == (4, 1)
    placed = toy(placement__target_tp=8, placement__draft_tp=2, placement__num_draft_devices=3)
    assert (placed.num_target_devices, placed.num_speculator_devices) == (8, 6)
