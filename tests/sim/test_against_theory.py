"""Simulated rates against closed forms that share nothing with the simulator but the numbers put in.

Each |z| must stay below 4: over the file's 20-odd comparisons a right simulator fails once in about 700 choices of
seed; the seeds are fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import run_of
from toy_scenarios import RATIOS

from ssdsim.metrics import rate_with_error, summarise
from ssdsim.scenario import Scenario
from ssdsim.sim import simulate
from ssdsim.theory.finite import static_batch
from ssdsim.theory.renewal import SlotChain, endless_batch
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw

ACCEPTANCE, LOOKAHEAD, PREFACTOR = 0.8, 5, 0.5
WEIGHTS = np.array([ACCEPTANCE**k * (1 - ACCEPTANCE) for k in range(LOOKAHEAD)] + [ACCEPTANCE**LOOKAHEAD])
TOKENS = float(WEIGHTS @ np.arange(1, LOOKAHEAD + 2))


def hit_prob(candidates: float) -> float:
    """1 - c/F, nothing at F = 0: the toy pair's curve."""
    return 1 - PREFACTOR / candidates if candidates else 0.0


def bonus_hit_prob(candidates: int) -> float:
    """Where nothing was rejected, under greedy decoding (THEORY 4.3)."""
    return ACCEPTANCE + (1 - ACCEPTANCE) * hit_prob(candidates - 1) if candidates else 0.0


def hit_rate(fan_out: list[int]) -> float:
    """p_p of a fan-out vector."""
    hits = [*map(hit_prob, fan_out[:-1]), bonus_hit_prob(fan_out[-1])]
    return float(WEIGHTS @ hits)


def z_of(scenario: Scenario, expected: float) -> float:
    rate = rate_with_error(simulate(scenario).records)
    return (rate.tokens_per_s - expected) / rate.standard_error


def scenario_of(**fields: Any) -> Scenario:
    return run_of(fields.pop("costs", RATIOS), **{"run__num_rounds": 20_000, "run__warmup_rounds": 200, **fields})


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_parallel_drafting_without_branches_is_a_fan_out_of_one(batch_size: int) -> None:
    """AMUSD and PEARL continue the draft as if everything were accepted: fan_out = (0, ..., 0, 1).

    The next draft is there if all K tokens were accepted and the bonus token is the draft's favourite; else the
    batch waits for one chain: E / (1 + T_j (1 - p^b)) per sequence (Theorem 7 with a batch).
    """
    fan_out = {"fan_out__policy": "explicit", "fan_out__per_position": None, "fan_out__values": [0] * 5 + [1]}
    hit = ACCEPTANCE**LOOKAHEAD * ACCEPTANCE
    expected = batch_size * TOKENS / (1 + RATIOS["jit"] * (1 - hit**batch_size))
    scenario = scenario_of(batch_size=batch_size, fallback__kind="jit", **fan_out)
    assert abs(z_of(scenario, expected)) < 4
    assert summarise(simulate(scenario).records)["cache_hit_rate"].value == pytest.approx(hit, abs=0.02)


def test_speculative_decoding_is_its_formula() -> None:
    """E / (1 + T_SD)."""
    assert abs(z_of(scenario_of(mode="sd"), TOKENS / 1.5)) < 4


@pytest.mark.parametrize("batch_size", [1, 5, 16])
@pytest.mark.parametrize("on_late", ["wait", "abort"])
@pytest.mark.parametrize("build", [0.8, 1.3])
def test_endless_rows_run_at_the_renewal_rate(batch_size: int, on_late: str, build: float) -> None:
    """Nothing proposed on a miss: B = 12 candidates for the one position that is left (THEORY 2.1, 4.3)."""
    chain = SlotChain(
        hit_after_draft=hit_rate([2] * 6),
        hit_after_fallback=bonus_hit_prob(12),
        tokens_drafted=TOKENS,
        tokens_fallback=1,
    )
    times = RoundTimes(
        window_s=np.ones(1), build_s=np.array([build]), fallback_s=np.zeros(batch_size + 1), on_late=on_late
    )
    expected = batch_size * float(endless_batch(chain, times).rate_per_sequence)
    assert (
        abs(z_of(scenario_of(costs={**RATIOS, "build": build}, batch_size=batch_size, on_late=on_late), expected)) < 4
    )


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_static_batches_take_the_exact_makespan(batch_size: int) -> None:
    """600 batches of 48-token requests, drafted anew on a miss: tokens over mean makespan (THEORY 2.3)."""
    hits = np.array([hit_prob(2)] * 5 + [bonus_hit_prob(2)])
    row = RowLaw(acceptance_prob=np.full(LOOKAHEAD, ACCEPTANCE), hit_prob=hits)
    times = RoundTimes(
        window_s=np.ones(1), build_s=np.array([0.8]), fallback_s=np.array([0.0] + [RATIOS["jit"]] * batch_size)
    )
    batch = static_batch(row, row, times, 48, initial_s=RATIOS["jit"])
    expected = batch_size * 48 / float(batch.makespan_s)
    scenario = scenario_of(
        batch_size=batch_size,
        arrivals="static",
        fallback__kind="jit",
        workload__output_tokens=48,
        workload__num_requests=600 * batch_size,
    )
    assert abs(z_of(scenario, expected)) < 4


def test_a_spread_between_requests_slows_long_ones_down() -> None:
    """The rate of requests of fixed length is a harmonic mean over their acceptance: below that of the mean."""
    load = {"workload__output_tokens": 200, "workload__num_requests": 1000, "mode": "sd"}
    alike, apart = (rate_with_error(simulate(scenario_of(spread=spread, **load)).records) for spread in (0.0, 0.2))
    assert apart.tokens_per_s < alike.tokens_per_s - 4 * (apart.standard_error + alike.standard_error)


def test_truncated_chains_emit_what_a_shorter_lookahead_would() -> None:
    """Each step of the build lasts .5 of a window: two tokens are ready, so hits accept like K = 2."""
    costs = {**RATIOS, "build": 2.5}
    records = simulate(
        scenario_of(costs=costs, on_late="truncate", fallback__kind="jit", per_position=4, run__num_rounds=6000)
    ).records
    outcomes = records.outcomes.columns()
    hits = outcomes["source"] == 2
    assert set(outcomes["num_proposed"][hits]) == {2}
    mean = outcomes["num_accepted"][hits].mean()
    expected = ACCEPTANCE + ACCEPTANCE**2
    error = outcomes["num_accepted"][hits].std() / np.sqrt(hits.sum())
    assert abs(mean - expected) < 4 * error
