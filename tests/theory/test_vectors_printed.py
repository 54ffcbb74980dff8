"""The reference vectors of the closed forms, refusals included (those of the exact model have their own test)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsim.errors import DomainError
from ssdsim.theory import acceptance, fallback, fan_out, hit_curve, sampling, speedup, systems

EXACT_MODEL = {"system_hits", "exact_rate", "exact_finite", "threshold_rate"}


def curve(spec: dict[str, Any]) -> hit_curve.HitCurve:
    match spec["kind"]:
        case "power":
            return hit_curve.PowerLaw(spec["r"], spec.get("c", 1.0))
        case "shifted":
            return hit_curve.ShiftedPowerLaw(spec["r"], spec["s"])
        case "table":
            return hit_curve.Table(tuple(spec["h"]))
        case "full":
            return hit_curve.AllAccepted(spec["a"], curve(spec["base"]))
    raise ValueError(f"unknown curve kind {spec['kind']}")


def curves(specs: Any) -> hit_curve.HitCurve | list[hit_curve.HitCurve]:
    return [curve(spec) for spec in specs] if isinstance(specs, list) else curve(specs)


def saguaro_stats(p_t: Any, p_d: Any, F: int, C: float, exclude: bool) -> dict[str, Any]:
    stats = sampling.saguaro_stats(p_t, p_d, F, C, exclude_rejected=exclude)
    return {"accept": stats.acceptance_prob, "hit_given_reject": stats.hit_prob_on_rejection}


CALLS: dict[str, Callable[..., Any]] = {
    "acceptance": lambda p_t, p_d: acceptance.acceptance_prob(p_t, p_d),
    "tokens_geometric": lambda a, K: acceptance.mean_acceptance_length(a, K),
    "tokens_general": lambda a, K: acceptance.mean_acceptance_length_per_position(acceptance.per_position(a, K)),
    "tokens_beta": lambda A, B, K: acceptance.mean_acceptance_length_beta(A, B, K),
    "weights": lambda a, K: acceptance.outcome_weights(acceptance.per_position(a, K)),
    "p_hit_stationary": lambda pp, pb: speedup.stationary_cache_hit_rate(pp, pb),
    "ssd_speedup": lambda p, Eh, Em, Tp, Tb, b=1: speedup.ssd_speedup(p, Eh, Em, Tp, Tb, b),
    "cor9_bounds": lambda p, Eh, Em, Esd, Tsd: speedup.ssd_over_sd_bounds(p, Eh, Em, Esd, Tsd),
    "b_star_paper": lambda p, Tp, Eh, Em: fallback.critical_batch_size_printed(p, Tp, Eh, Em),
    "b_star_consistent": lambda pp, pb, Tj, Eh, Em: fallback.critical_batch_size(pp, pb, Tj, Eh, Em),
    "batch_latency": lambda p, b, Lh, Lm: speedup.mean_batch_latency(p, b, Lh, Lm),
    "frechet_speedup": lambda A, p, b, Tb: speedup.ssd_speedup_bounds(A, p, b, Tb),
    "curve_values": lambda spec, Fs: curve(spec).hit_prob(Fs),
    "fanout_closed_form": lambda a, K, r, B: fan_out.geometric(a, K, r, B),
    "round_largest_remainder": lambda F, B: fan_out.round_largest_remainder(F, B),
    "fanout_greedy": lambda w, curves_, B: fan_out.greedy(w, curves(curves_), B),
    "fanout_dp": lambda w, curves_, B: fan_out.dynamic_programming(w, curves(curves_), B),
    "hit_prob": lambda w, curves_, F: fan_out.hit_prob(w, curves(curves_), F),
    "n_eff": lambda w, r: fan_out.effective_positions(w, r),
    "saguaro_dist": lambda p_d, F, C: sampling.saguaro_distribution(p_d, F, C),
    "saguaro_stats": saguaro_stats,
    "sd_step_speedup": lambda A, T_target, K, T_draft, T_verify: systems.sd_step_speedup(
        A, T_target, K, T_draft, T_verify
    ),
    "comm_gain": lambda A, q, c0, V, W: systems.comm_gain_s(A, q, c0, V, W),
    "moe_time": lambda dispatch, ranks, combine: systems.moe_s(dispatch, ranks, combine),
    "throughput_ratio": lambda B_sd, B_ar, A, L_ar_at_B_ar, C_spec_at_B_sd: systems.throughput_ratio(
        B_sd, B_ar, A, L_ar_at_B_ar, C_spec_at_B_sd
    ),
}


@pytest.fixture(scope="module")
def vectors(shared_data: Path) -> list[dict[str, Any]]:
    return json.loads((shared_data / "theory_vectors.json").read_text())["vectors"]


def call(vector: dict[str, Any]) -> Any:
    # `curves` is a function here, so the argument of that name travels as `curves_`
    arguments = {("curves_" if name == "curves" else name): value for name, value in vector["args"].items()}
    return CALLS[vector["fn"]](**arguments)


def assert_matches(got: Any, expected: Any, tolerance: float) -> None:
    if isinstance(expected, dict):
        assert got == pytest.approx(expected, abs=tolerance)
    elif isinstance(expected, list) and isinstance(expected[0], str):
        kind, batch_size = got
        assert kind == expected[0]
        assert batch_size == (None if expected[1] is None else pytest.approx(expected[1], abs=tolerance))
    elif isinstance(expected, list):
        assert list(got) == pytest.approx(expected, abs=tolerance)
    else:
        assert got == pytest.approx(expected, abs=tolerance)


def test_every_function_of_the_vectors_is_answered_somewhere(vectors) -> None:
    assert {vector["fn"] for vector in vectors} == set(CALLS) | EXACT_MODEL


@pytest.mark.parametrize("fn", sorted(CALLS))
def test_the_vectors_of_a_function_are_reproduced(fn, vectors) -> None:
    for vector in (v for v in vectors if v["fn"] == fn):
        if vector.get("refuse"):
            with pytest.raises(DomainError):
                call(vector)
        else:
            assert_matches(call(vector), vector["expect"], vector["tol"])
