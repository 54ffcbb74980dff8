"""From simulated runs of a known pair to a profile that predicts what was not run."""

from __future__ import annotations

import json

import pytest
from known_pair import CONTENTION, COSTS, GRID, known_pair, simulated_run, simulated_runs
from toy_scenarios import toy

from ssdsim.calibration.profile_from_records import Calibration, calibrate, profile_text
from ssdsim.calibration.runs import Run, read_runs
from ssdsim.catalog import load_profile
from ssdsim.costs.models import ComponentCosts
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.profile import PairProfile
from ssdsim.records import Records
from ssdsim.scenario import Mode, Scenario
from ssdsim.uncertainty import with_uncertainty


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return simulated_runs(11)


@pytest.fixture(scope="module")
def found(runs: list[Run]) -> Calibration:
    return calibrate(runs)


def _held_out(pair: object, **overrides: object) -> Scenario:
    settings = {
        "workload__output_tokens": 64,
        "prompt_tokens": {"kind": "uniform", "low": 32, "high": 96},
        "num_requests": 400,
        **overrides,
    }
    return toy(pair, **settings)


def test_times_come_back(found: Calibration) -> None:
    costs = found.profile.costs
    for name in ("verify", "glue", "host"):
        truth = COSTS[name]
        width = 5 if name in {"verify", "glue"} else 1
        for rows, query, context in ((1, width, 80.0), (4, 4 * width, 120.0)):
            expected = (
                truth["base_s"] + truth["per_query_token_s"] * query + truth["per_context_token_s"] * rows * context
            )
            # Noise of 5 % over a thousand rounds and more is 0.2 % of the mean; host time has 10 %.
            assert float(getattr(costs, name)(rows, query, context)) == pytest.approx(expected, rel=0.02), name
    truth = ComponentCosts.model_validate(COSTS)
    for chain in ("sd_draft_s", "jit_s", "tree_s"):
        for rows, num_steps in ((1, 3), (4, 6)):
            expected = float(getattr(truth, chain)(rows, num_steps, 100.0))
            assert float(getattr(costs, chain)(rows, num_steps, 100.0)) == pytest.approx(expected, rel=0.03), chain
    assert float(costs.draft_start(2, 2, 100.0)) == pytest.approx(6e-4, rel=0.15)
    assert costs.verify_contention == pytest.approx(CONTENTION, abs=0.01)
    # Prompts are read without jitter; the draft's share is told from chains that vary by 5 %.
    assert float(costs.prefill_s(1, 64)) == pytest.approx(1e-3 + 5e-5 * 64, rel=1e-6)
    assert float(costs.draft_prefill_s(1, 64)) == pytest.approx(3e-4 + 1e-5 * 64, rel=0.06)
    assert costs.jitter.verify == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize(
    "point",
    [
        {"mode": "sd", "num_speculative_tokens": 3, "batch_size": 2},
        {"mode": "ssd", "num_speculative_tokens": 3, "fan_out__per_position": 3, "batch_size": 2},
        {"mode": "ssd", "num_speculative_tokens": 6, "fan_out__per_position": 4, "fallback__kind": "jit"},
    ],
)
def test_points_that_were_not_run_are_predicted(found: Calibration, point: dict[str, object]) -> None:
    mode = Mode(str(point["mode"]))
    truth = evaluate(_held_out(known_pair(), **point), Method.EXACT, mode)
    answer = evaluate(_held_out(found.profile.model_dump(mode="json"), **point), Method.EXACT, mode)
    predicted = with_uncertainty([answer])[0].quantities
    for name in ("tokens_per_s", "mean_acceptance_length"):
        bounded = predicted[name]
        # Twice the 95 % bounds: four standard errors.
        off = abs(truth.quantities[name].value - bounded.value)
        assert off < bounded.high - bounded.low, name
        assert bounded.high - bounded.low < 0.2 * bounded.value, name


def test_bounds_cover_the_truth_at_their_rate() -> None:
    # 8 calibrations, 95 % bounds on a rate that is known: 3 or more misses have probability < 0.006.
    point = {"mode": "ssd", "num_speculative_tokens": 4, "fan_out__per_position": 3}
    truth = evaluate(_held_out(known_pair(), **point), Method.EXACT, Mode.SSD).tokens_per_s
    misses = 0
    for seed in range(8):
        chosen = [simulated_run(seed, name=str(i), **GRID[i]) for i in (2, 3, 5, 6)]
        profile = calibrate(chosen).profile.model_dump(mode="json")
        answer = evaluate(_held_out(profile, **point), Method.EXACT, Mode.SSD)
        bounds = with_uncertainty([answer], num_draws=60)[0].quantities["tokens_per_s"]
        misses += not bounds.low <= truth <= bounds.high
    assert misses <= 2


def test_a_profile_is_small_sorted_and_read_back(found: Calibration, tmp_path) -> None:
    path = tmp_path / "mine.json"
    found.write(path)
    text = path.read_text()
    assert len(text) < 16_000
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert profile_text(PairProfile.model_validate(load_profile(str(path)))) == text


def test_every_estimate_says_what_it_rests_on(found: Calibration) -> None:
    sources = found.profile.provenance
    for group in found.profile.uncertainties:
        for path in group.paths:
            parts = path.split(".")
            assert any(".".join(parts[:n]) in sources for n in range(1, len(parts) + 1)), path


def test_limits_are_what_was_seen(runs: list[Run], found: Calibration) -> None:
    limits = found.profile.limits
    assert (limits.max_batch_size, limits.max_speculative_tokens) == (8, 8)
    longest = max(int(run.records.requests.columns()["prompt_tokens"].max()) for run in runs)
    assert limits.max_context_tokens == longest + 64
    beyond = evaluate(_held_out(found.profile.model_dump(mode="json"), mode="sd", batch_size=16), Method.EXACT)
    assert any("extrapolated: batch size" in note for note in beyond.notes)


def test_what_was_not_seen_is_said() -> None:
    few = calibrate([simulated_run(0, mode="sd", num_speculative_tokens=4, num_requests=4)])
    said = "\n".join(few.warnings)
    for words in ("no AR run", "no SSD run", "4 requests only", "lookahead 4 only", "hit rates are zero"):
        assert words in said


def test_runs_of_several_conditions_become_several_behaviours() -> None:
    pair = known_pair()
    warm = [
        simulated_run(0, pair=pair, mode="ssd", temperature=t, drafting__saguaro_downweight=c)
        for t, c in ((0.0, 1.0), (1.0, 1.0), (1.0, 0.5))
    ]
    behaviours = calibrate(warm).profile.behaviours
    conditions = [(b.when.temperature, b.when.saguaro_downweight) for b in behaviours]
    assert conditions == [(0.0, None), (1.0, 1.0), (1.0, 0.5)]


def test_runs_that_drafted_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="none of these runs drafted"):
        calibrate([simulated_run(0, mode="ar")])


def test_folders_are_read_with_their_runs(runs: list[Run], tmp_path) -> None:
    for run in runs[:3]:
        run.records.write(tmp_path / "measured" / run.name)
    assert [run.mode for run in read_runs([tmp_path / "measured"])] == [run.mode for run in runs[:3]]
    with pytest.raises(InputError, match="no such folder"):
        read_runs([tmp_path / "absent"])


def test_a_run_without_its_scenario_is_refused() -> None:
    with pytest.raises(InputError, match="tells no scenario"):
        Run.of(Records({"mode": "sd"}), "mine")


def test_without_ar_and_sd_a_prefill_is_seen_where_it_outlives_the_first_drafting() -> None:
    """40 ms beside a first drafting of some 3 ms: every admission waits, and what is hidden is added again."""
    pair = known_pair({**COSTS, "prefill": {"kind": "constant", "seconds": 0.04}})
    lookaheads = (2, 4)
    runs = [simulated_run(3, pair=pair, num_speculative_tokens=k, fallback__kind="jit") for k in lookaheads]
    found = calibrate(runs)
    assert float(found.profile.costs.prefill_s(1, 64)) == pytest.approx(0.04, rel=0.03)
    assert any("costs.prefill: no AR or SD run" in warning for warning in found.warnings)
