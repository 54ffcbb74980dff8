"""What a prediction rests on is said as far as the scenario uses it, and no further."""

from __future__ import annotations

import pytest
from toy_scenarios import toy, toy_pair

from ssdsim.caveats import beyond_limits, caveats_of

ASSUMED = {"kind": "assumed", "source": "a guess"}
FITTED = {"kind": "fitted", "source": "a table"}


def pair(**fields):
    first = toy_pair()["behaviours"][0]
    behaviours = [first, {**first, "when": {"prompt_kind": "code"}}]
    provenance = {
        "behaviours.0.hit_curves": ASSUMED,
        "behaviours.1.acceptance": ASSUMED,
        "behaviours.0.acceptance": FITTED,
        "behaviours.0.ngram_acceptance": ASSUMED,
        "costs.jit": ASSUMED,
    }
    return {**toy_pair(), "behaviours": behaviours, "provenance": provenance, **fields}


def test_assumed_numbers_are_those_of_the_behaviour_and_fallback_in_use() -> None:
    assert caveats_of(toy(pair())).assumed == ("hit_curves", "costs.jit")
    assert caveats_of(toy(pair(), workload__prompt_kind="code")).assumed == ("acceptance", "costs.jit")
    assert "ngram_acceptance" in caveats_of(toy(pair(), fallback__kind="ngram")).assumed


@pytest.mark.parametrize(
    ("limit", "overrides", "what", "value"),
    [
        ("max_batch_size", {"workload__batch_size": 9}, "batch size", 9),
        ("max_speculative_tokens", {"drafting__num_speculative_tokens": 9}, "lookahead", 9),
        ("max_fan_out", {"drafting__fan_out__per_position": 9}, "fan-out", 9),
        ("max_context_tokens", {"workload__prompt_tokens": 4, "workload__output_tokens": 5}, "context", 9),
    ],
)
def test_a_scenario_is_extrapolated_from_one_step_beyond_a_limit(
    limit: str, overrides, what: str, value: int
) -> None:
    at_the_limit = toy(pair(limits={limit: value}), **overrides)
    beyond = toy(pair(limits={limit: value - 1}), **overrides)
    assert beyond_limits(at_the_limit) == {}
    assert beyond_limits(beyond) == {what: (value, value - 1)}
    assert caveats_of(beyond).extrapolated == (f"{what} {value} beyond {value - 1}",)


def test_the_title_says_as_much_as_there_is_to_say() -> None:
    extrapolated = {"limits": {"max_batch_size": 1}}
    assert caveats_of(toy()).title == ""
    assert caveats_of(toy(pair())).title == "partly assumed"
    assert caveats_of(toy(pair(**extrapolated), workload__batch_size=2)).title == "partly assumed and extrapolated"
