"""The exact model and the simulator share the scenario's numbers and nothing else; over random scenarios they agree.

z = (simulated - exact) / standard error of the simulated rate. If both are right z is close to standard normal, so
over n scenarios its mean lies within .25, its sd within .85-1.15 and none beyond 4.5: a right pair fails this with
probability .3 at n = 40 and below .01 at n = 200. The scenarios and seeds are fixed, so each set passes or fails for
ever; that the criterion has power is tested by planting an error of 1 % in either side.
"""

from __future__ import annotations

import numpy as np
import pytest
from random_scenarios import FALLBACKS, random_scenario

from ssdsim.evaluate import Method, evaluate
from ssdsim.metrics import RateWithError, rate_with_error
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim import simulate

SMALL, FULL = 40, 200
MEAN, SD, LARGEST = 0.25, (0.85, 1.15), 4.5


def simulated_rate(scenario: Scenario) -> RateWithError:
    """Tokens per second of the simulated batch, with its standard error."""
    result = simulate(scenario)
    return rate_with_error(result.records, result.tally)


def exact_rate(scenario: Scenario) -> float:
    return evaluate(scenario, Method.EXACT, Mode.SSD).tokens_per_s


def z_scores(simulated: list[RateWithError], exact: list[float]) -> np.ndarray:
    pairs = zip(simulated, exact, strict=True)
    return np.array([(rate.tokens_per_s - truth) / rate.standard_error for rate, truth in pairs])


def complaints(z: np.ndarray) -> list[str]:
    """What of the criterion does not hold."""
    checks = {
        f"mean {z.mean():.3f}": abs(z.mean()) < MEAN,
        f"sd {z.std(ddof=1):.3f}": SD[0] < z.std(ddof=1) < SD[1],
        f"largest {np.abs(z).max():.2f}": np.abs(z).max() < LARGEST,
    }
    return [said for said, holds in checks.items() if not holds]


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [random_scenario(index) for index in range(SMALL)]


@pytest.fixture(scope="module")
def simulated(scenarios: list[Scenario]) -> list[RateWithError]:
    return [simulated_rate(scenario) for scenario in scenarios]


def test_the_scenarios_cover_what_a_round_can_do(scenarios: list[Scenario]) -> None:
    drafting, loads = [s.drafting for s in scenarios], [s.workload for s in scenarios]
    assert {d.fallback.kind.value for d in drafting} == set(FALLBACKS)
    assert {d.on_late for d in drafting} == {"wait", "abort"}
    assert {d.first_round for d in drafting} == {"jit", "miss"}
    assert any(d.fan_out_on_miss for d in drafting)
    assert any(d.redraft_hits for d in drafting)
    assert any(d.padded_verify for d in drafting)
    assert {load.arrivals for load in loads} == {"static", "closed"}
    assert any(load.output_tokens is None for load in loads)
    assert max(load.batch_size for load in loads) == 64
    assert any(s.pair.behaviours[0].acceptance.spread for s in scenarios)
    finite = [s for s in scenarios if s.workload.output_tokens is not None]
    assert {float(s.costs.prefill_s(1, 1)) > 0.3 for s in finite} == {True, False}
    assert {float(s.costs.draft_prefill_s(1, 1)) > 0 for s in finite} == {True, False}


def test_they_agree_over_40_scenarios(scenarios: list[Scenario], simulated: list[RateWithError]) -> None:
    assert complaints(z_scores(simulated, [exact_rate(s) for s in scenarios])) == []


def test_one_per_cent_planted_in_the_exact_rate_is_caught(
    scenarios: list[Scenario], simulated: list[RateWithError]
) -> None:
    for planted in (0.99, 1.01):
        assert complaints(z_scores(simulated, [planted * exact_rate(s) for s in scenarios]))


def test_one_per_cent_planted_in_the_simulated_times_is_caught(scenarios: list[Scenario]) -> None:
    """Every phase of the simulated run is 1 % longer than the exact model believes."""
    some = scenarios[:: SMALL // 10]
    slower = [simulated_rate(_slower(scenario, 1.01)) for scenario in some]
    assert complaints(z_scores(slower, [exact_rate(s) for s in some]))


@pytest.mark.bench
def test_they_agree_over_200_scenarios() -> None:
    scenarios = [random_scenario(index) for index in range(FULL)]
    z = z_scores([simulated_rate(s) for s in scenarios], [exact_rate(s) for s in scenarios])
    assert complaints(z) == []


def _slower(scenario: Scenario, factor: float) -> Scenario:
    """The same scenario in which every cost term is `factor` times as long."""
    costs = scenario.pair.costs
    scaled = {name: _scaled(term, factor) for name, term in costs.model_dump(exclude_none=True).items()}
    pair = scenario.pair.model_dump(exclude_none=True) | {"costs": scaled}
    return Scenario.model_validate(scenario.model_dump(exclude={"pair"}) | {"pair": pair})


def _scaled(term: object, factor: float) -> object:
    if not isinstance(term, dict) or term.get("kind") not in {"linear", "constant"}:
        return term
    return {key: value * factor if isinstance(value, float) else value for key, value in term.items()}
