"""The method `real`: a scenario in, quantities by the simulator's names out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_pair import write_random_pair
from toy_scenarios import toy, toy_pair

from executor.measure import read_token_prompts
from executor.pair_source import resolve_pair
from executor.real import model_source, requests_for
from executor.resolution import resolved_drafting
from ssdsim.design_point import resolve
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.measurement import Texts
from ssdsim.scenario import Mode, Scenario

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The toy profile, with models behind it."""
    target, draft = write_random_pair(tmp_path_factory.mktemp("pair"))
    return {**toy_pair(), "target": str(target), "draft": str(draft)}


def small(pair: dict[str, Any], **overrides: Any) -> Scenario:
    settings = {"prompt_tokens": 6, "output_tokens": 10, "num_requests": 4, "batch_size": 2}
    return toy(pair, **{f"workload__{name}": value for name, value in settings.items()}, **overrides)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("arrivals", ["closed", "static"])
def test_a_run_answers_with_the_simulators_quantities(pair: dict[str, Any], mode: Mode, arrivals: str) -> None:
    scenario = small(pair, workload__arrivals=arrivals)
    real, simulated = (evaluate(scenario, method, mode).quantities for method in (Method.REAL, Method.SIM))
    assert real.keys() <= simulated.keys()
    assert real["tokens_per_s"].value > 0
    assert 1 <= real["mean_acceptance_length"].value <= 6


def test_policies_are_resolved_as_for_the_other_methods(pair: dict[str, Any]) -> None:
    """A miss that proposes nothing has one position, which gets the whole budget of twelve."""
    point = resolve(small(pair))
    drafting = resolved_drafting(point)
    assert drafting.fan_out.values == point.drafted.fan_out
    assert drafting.fan_out_on_miss is not None
    assert drafting.fan_out_on_miss.values == (12,)
    redrafted = resolved_drafting(resolve(small(pair, drafting__fallback__kind="jit")))
    assert redrafted.fan_out_on_miss is not None
    assert redrafted.fan_out_on_miss.values == point.redrafted.fan_out


def test_prompts_have_the_scenarios_length_and_kind(pair: dict[str, Any]) -> None:
    scenario = small(pair)
    named = resolve_pair(model_source(scenario.pair))
    prompts = read_token_prompts(Texts(num_prompts=3, raw_prompts=True), named)
    requests = requests_for(scenario, prompts)
    assert [len(request.prompt) for request in requests] == [6] * 4
    assert requests[0].prompt == requests[3].prompt  # the fourth request begins with the first of three prompts
    assert {request.max_tokens for request in requests} == {10}


def test_an_unknown_kind_of_prompt_names_the_known_ones(pair: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no built-in prompt is of kind 'poems'; they are of: chat, code"):
        evaluate(small(pair, workload__prompt_kind="poems"), Method.REAL, Mode.AR)


def test_a_profile_without_models_is_refused() -> None:
    with pytest.raises(InputError, match="no such directory, and not a hub id"):
        evaluate(small(toy_pair()), Method.REAL, Mode.AR)


def test_built_in_pairs_are_found_by_the_profiles_name_or_target(pair: dict[str, Any], tmp_path: Path) -> None:
    for named in ({**pair, "name": "tiny"}, {**pair, "target": "tiny/target"}):
        assert model_source(small(named).pair).pair == "tiny"
