"""Small scenarios whose answers are known by hand: the unit of time is one verification, as in THEORY."""

from __future__ import annotations

from typing import Any

from ssdsim.scenario import Scenario
from ssdsim.scenario_files import scenario_from

RATIOS = {"kind": "ratios", "build": 0.8, "jit": 0.2, "sd_draft": 0.5}


def toy_pair(
    *, acceptance: float | list[float] = 0.8, spread: float = 0.0, costs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The pair of THEORY section 3: a = .8, hit curve 1 - .5/F, greedy bonus position."""
    return {
        "name": "toy",
        "target": "target",
        "draft": "draft",
        "hardware": {"target_device": "unit", "target_tp": 4, "draft_device": "unit"},
        "behaviours": [
            {
                "acceptance": {"per_position": acceptance, "spread": spread},
                "ngram_acceptance": {"per_position": 0.5},
                "hit_curves": {
                    "after_draft": {"rejection": {"kind": "power", "miss_exponent": 1.0, "miss_prefactor": 0.5}}
                },
            }
        ],
        "costs": costs if costs is not None else RATIOS,
    }


def toy(pair: dict[str, Any] | None = None, **overrides: Any) -> Scenario:
    """K = 5, F = 2 at every position, endless requests, nothing proposed on a miss; overrides by unique path ending.

    A double underscore stands for the dot: `fallback__kind="jit"`.
    """
    settings: dict[str, Any] = {
        "drafting__num_speculative_tokens": 5,
        "drafting__fan_out__per_position": 2,
        "drafting__fallback__kind": "none",
        "workload__output_tokens": None,
    }
    settings.update(overrides)
    data = {"pair": pair if pair is not None else toy_pair()}
    return scenario_from(data, [(path.replace("__", "."), value) for path, value in settings.items()])
