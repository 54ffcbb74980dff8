"""Bounds from ranges and from errors of estimates: drawn as stated, shared between modes, absent without cause."""

from __future__ import annotations

import numpy as np
import pytest
from toy_scenarios import RATIOS, toy, toy_pair

from ssdsim.evaluate import Method, compare, evaluate
from ssdsim.profile import PairProfile
from ssdsim.scenario import Mode
from ssdsim.uncertainty import draw_profiles, with_uncertainty

_ACCEPTANCE = "behaviours.0.acceptance.per_position"


def _uncertain_pair(**fields: object) -> dict[str, object]:
    return {**toy_pair(), **fields}


def _known_to(error: float) -> dict[str, object]:
    return _uncertain_pair(uncertainties=[{"paths": [_ACCEPTANCE], "standard_errors": [error]}])


def test_ranges_are_drawn_uniformly() -> None:
    pair = _uncertain_pair(ranges={"costs.build": {"low": 0.4, "high": 1.2}})
    drawn = np.array([p.costs.build for p in draw_profiles(PairProfile.model_validate(pair), 2000)])
    assert 0.4 <= drawn.min() < 0.41
    assert 1.19 < drawn.max() <= 1.2
    # Mean and variance of the uniform law; 4 standard errors of 2000 draws.
    assert drawn.mean() == pytest.approx(0.8, abs=4 * 0.8 / np.sqrt(12 * 2000))


def test_correlated_errors_stay_together() -> None:
    paths = ["costs.build", "costs.jit"]
    group = {"paths": paths, "standard_errors": [0.02, 0.01], "correlations": [[], [-0.9]]}
    profiles = draw_profiles(PairProfile.model_validate(_uncertain_pair(uncertainties=[group])), 2000)
    build, jit = (np.array([getattr(p.costs, name) for p in profiles]) for name in ("build", "jit"))
    assert build.std() == pytest.approx(0.02, rel=0.1)
    assert np.corrcoef(build, jit)[0, 1] == pytest.approx(-0.9, abs=0.03)


def test_bounds_are_those_of_the_answers_derivative() -> None:
    # For a small error the answer is linear in it: bounds = value -+ 1.96 error x derivative, here by difference.
    scenario = toy(_known_to(0.005))
    rate = with_uncertainty([evaluate(scenario, Method.EXACT, Mode.SSD)], num_draws=2000)[0].quantities[
        "tokens_per_s"
    ]
    up, down = (
        evaluate(toy(toy_pair(acceptance=0.8 + step)), Method.EXACT, Mode.SSD).tokens_per_s
        for step in (0.001, -0.001)
    )
    half = 1.96 * 0.005 * (up - down) / 0.002
    # The 97.5 % quantile of 2000 draws is known to about 3 %.
    assert (rate.high - rate.low) / 2 == pytest.approx(half, rel=0.1)


def test_errors_that_cancel_in_a_ratio_do_not_widen_it() -> None:
    pair = _uncertain_pair(ranges={"costs.unit_s": {"low": 0.5, "high": 2.0}})
    ssd = next(a for a in with_uncertainty(compare(toy(pair))) if a.mode is Mode.SSD)
    rate, speedup = ssd.quantities["tokens_per_s"], ssd.quantities["speedup_over_sd"]
    assert rate.high > 3 * rate.low
    low, high = speedup.low or speedup.value, speedup.high or speedup.value
    assert high - low < 1e-9 * speedup.value


def test_a_certain_profile_gives_no_bounds() -> None:
    answers = [evaluate(toy(), Method.EXACT, Mode.SSD)]
    assert with_uncertainty(answers) == answers


def test_a_fan_out_is_not_optimised_anew_for_every_draw() -> None:
    # With a free fan-out the better curves would be used better, and the upper bound would lie higher.
    fields = {"ranges": {"behaviours.0.hit_curves.after_draft.rejection.miss_exponent": {"low": 0.2, "high": 3.0}}}
    optimal = toy(_uncertain_pair(**fields), fan_out={"policy": "optimal", "budget": 12})
    bounded = with_uncertainty([evaluate(optimal, Method.EXACT, Mode.SSD)])[0].quantities["cache_hit_rate"]
    best = toy(toy_pair(), fan_out={"policy": "optimal", "budget": 12})
    curve = best.pair.behaviours[0].hit_curves.after_draft.rejection.model_copy(update={"miss_exponent": 3.0})
    changed = best.pair.model_dump(mode="json")
    changed["behaviours"][0]["hit_curves"]["after_draft"]["rejection"] = curve.model_dump(mode="json")
    anew = evaluate(toy(changed, fan_out={"policy": "optimal", "budget": 12}), Method.EXACT, Mode.SSD)
    assert bounded.high < anew.quantities["cache_hit_rate"].value


@pytest.mark.parametrize("method", [Method.PAPER, Method.SIM])
def test_other_methods_get_bounds_too(method: Method) -> None:
    settings = {} if method is Method.PAPER else {"workload__output_tokens": 64, "num_requests": 50}
    answer = evaluate(toy(_known_to(0.02), **settings), method, Mode.SSD)
    bounded = with_uncertainty([answer], num_draws=50)[0].quantities["tokens_per_s"]
    assert bounded.low < answer.tokens_per_s < bounded.high


def test_what_the_exact_model_refuses_is_simulated() -> None:
    settings = {"workload__output_tokens": 32, "num_requests": 40, "on_late": "truncate"}
    pair = {**_known_to(0.03), "costs": {**RATIOS, "build": 1.3}}
    answer = evaluate(toy(pair, **settings), Method.SIM, Mode.SSD)
    bounded = with_uncertainty([answer])[0].quantities["tokens_per_s"]
    assert bounded.low < answer.tokens_per_s < bounded.high


def test_the_same_seed_draws_the_same() -> None:
    answer = evaluate(toy(_known_to(0.02)), Method.EXACT, Mode.SSD)
    first, again, other = (with_uncertainty([answer], num_draws=40, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
