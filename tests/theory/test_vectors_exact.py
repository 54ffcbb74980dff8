"""The exact model against the reference vectors, values and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory.finite import static_batch
from ssdsim.theory.hit_curve import AllAccepted, HitCurve, PowerLaw, Table
from ssdsim.theory.renewal import endless_batch
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw, slot_chain
from ssdsim.theory.threshold import threshold_policies

FUNCTIONS = ("system_hits", "exact_rate", "exact_finite", "threshold_rate")


def curve(spec: dict[str, Any]) -> HitCurve:
    if spec["kind"] == "table":
        return Table(tuple(spec["h"]))
    if spec["kind"] == "power":
        return PowerLaw(exponent=spec["r"], prefactor=spec["c"])
    return AllAccepted(acceptance_prob=spec["a"], base=curve(spec["base"]))


def row_law(acceptance: list[float], fan_out: list[int], curves: Any) -> RowLaw:
    per_position = curves if isinstance(curves, list) else [curves] * len(fan_out)
    hits = [curve(c).hit_prob(f) for c, f in zip(per_position, fan_out, strict=True)]
    return RowLaw(acceptance_prob=acceptance, hit_prob=hits)


class System:
    """A vector's `system`, as the reference data describes it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.drafted = row_law(spec["ap"], spec["Fp"], spec["hp"])
        self.fallback = row_law(spec["ab"], spec["Fb"], spec["hb"])
        self.initial_s = spec.get("Tinit", 0.0)
        self.spec = spec

    def times(self, fallback_s: float | None = None) -> RoundTimes:
        spec, b = self.spec, self.spec.get("b", 1)
        n, m = np.arange(b + 1.0), np.arange(b + 1.0)
        width = n * (len(spec["ap"]) + 1) + (b - n) * (len(spec["ab"]) + 1)
        window_s = spec.get("Tv", 1.0) + spec.get("Tvq", 0.0) * width + spec.get("comm", 0.0)
        per_miss_s = (spec["Tb"] if fallback_s is None else fallback_s) + spec.get("Tb1", 0.0) * m
        return RoundTimes(
            window_s=window_s if spec.get("Tvq") else window_s[:1],
            build_s=[spec["Tp"]],
            fallback_s=np.where(m > 0, per_miss_s, 0.0),
            on_late="abort" if spec.get("abort", True) else "wait",
        )


def evaluate(fn: str, args: dict[str, Any]) -> Any:
    system = System(args["system"])
    chain = slot_chain(system.drafted, system.fallback)
    if fn == "system_hits":
        return {
            "pp": chain.hit_after_draft,
            "pb": chain.hit_after_fallback,
            "pi": chain.cache_hit_rate,
            "Ep": chain.tokens_drafted,
            "Eb": chain.tokens_fallback,
        }
    if fn == "exact_rate":
        return endless_batch(chain, system.times()).rate_per_sequence
    if fn == "threshold_rate":
        policies = threshold_policies(chain, system.times(), system.times(fallback_s=args["Tj"]))
        return policies.rate_per_sequence[args["m_star"] - 1]
    result = static_batch(system.drafted, system.fallback, system.times(), args["N"], initial_s=system.initial_s)
    return {
        "makespan": result.makespan_s,
        "rounds_per_sequence": result.rounds_per_sequence,
        "rate": result.rate_per_sequence,
    }


def test_every_reference_vector_of_the_exact_model_is_reproduced_or_refused(shared_data: Path) -> None:
    vectors = json.loads((shared_data / "theory_vectors.json").read_text())["vectors"]
    ours = [vector for vector in vectors if vector["fn"] in FUNCTIONS]
    assert {vector["fn"] for vector in ours} == set(FUNCTIONS)
    for vector in ours:
        if vector.get("refuse"):
            with pytest.raises(DomainError):
                evaluate(vector["fn"], vector["args"])
            continue
        got, expect = evaluate(vector["fn"], vector["args"]), vector["expect"]
        wanted = expect if isinstance(expect, dict) else {"value": expect}
        found = got if isinstance(expect, dict) else {"value": got}
        for name, value in wanted.items():
            assert float(found[name]) == pytest.approx(value, abs=vector["tol"]), (vector["id"], name)
