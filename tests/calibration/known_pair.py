"""A pair whose numbers are known, and simulated runs of it: the truth that calibration must find again."""

from __future__ import annotations

from typing import Any

from toy_scenarios import toy, toy_pair

from ssdsim.calibration.runs import Run
from ssdsim.sim import simulate

ACCEPTANCE = [0.85, 0.8, 0.78, 0.76, 0.74, 0.72, 0.7, 0.68]
SPREAD = 0.08
MISS_PREFACTOR, MISS_EXPONENT = 0.8, 0.3
CONTENTION = 1.05
NOISE = 0.05


def linear(base_s: float, per_query_token_s: float = 0.0, per_context_token_s: float = 0.0) -> dict[str, Any]:
    """A linear cost term in plain data."""
    return {
        "kind": "linear",
        "base_s": base_s,
        "per_query_token_s": per_query_token_s,
        "per_context_token_s": per_context_token_s,
    }


COSTS: dict[str, Any] = {
    "kind": "components",
    "verify": linear(5e-3, 1e-4, 1e-6),
    "draft_start": linear(6e-4),
    "draft_step": linear(5e-4),
    "jit_start": linear(4e-4),
    "jit_step": linear(5e-4, 2e-5),
    "tree_start": linear(3e-4, 2e-6),
    "tree_step": linear(4e-4, 1e-5),
    "glue": linear(3e-4, 1e-5),
    "store": linear(1e-6, 1e-7),
    "lookup": linear(2e-5),
    "accept": linear(1e-4),
    "reply": linear(5e-5),
    "outcome": linear(5e-5),
    "host": linear(2e-4),
    "prefill": linear(1e-3, 5e-5),
    "draft_prefill": linear(3e-4, 1e-5),
    "verify_contention": CONTENTION,
    "jitter": {"verify": NOISE, "draft": NOISE, "host": 0.1},
}

GRID: tuple[dict[str, Any], ...] = (
    {"mode": "ar", "batch_size": 1},
    {"mode": "ar", "batch_size": 4},
    {"mode": "sd", "num_speculative_tokens": 2, "batch_size": 1},
    {"mode": "sd", "num_speculative_tokens": 4, "batch_size": 8},
    {"mode": "sd", "num_speculative_tokens": 8, "batch_size": 4},
    {"mode": "ssd", "num_speculative_tokens": 2, "fan_out__per_position": 2},
    {"mode": "ssd", "num_speculative_tokens": 4, "fan_out__per_position": 4, "fallback__kind": "none"},
    {"mode": "ssd", "num_speculative_tokens": 8, "fan_out__per_position": 8, "batch_size": 2},
    {"mode": "ssd", "num_speculative_tokens": 4, "fan_out__per_position": 1, "batch_size": 4},
)
"""Modes, lookaheads, fan-outs and batch sizes of a calibration set."""


def known_pair(costs: dict[str, Any] = COSTS) -> dict[str, Any]:
    """The pair in plain data."""
    pair = toy_pair(acceptance=ACCEPTANCE, spread=SPREAD, costs=costs)
    law = {"kind": "power", "miss_exponent": MISS_EXPONENT, "miss_prefactor": MISS_PREFACTOR}
    pair["behaviours"][0]["hit_curves"]["after_draft"]["rejection"] = law
    return pair


def simulated_run(seed: int = 0, *, pair: dict[str, Any] | None = None, name: str = "run", **overrides: Any) -> Run:
    """One simulated run of the known pair."""
    settings: dict[str, Any] = {
        "workload__output_tokens": 64,
        "prompt_tokens": {"kind": "uniform", "low": 32, "high": 96},
        "num_requests": 32,
        "fallback__kind": "jit",
        "seed": seed,
    }
    scenario = toy(pair if pair is not None else known_pair(), **{**settings, **overrides})
    return Run.of(simulate(scenario).records, name)


def simulated_runs(seed: int = 0, *, pair: dict[str, Any] | None = None, **overrides: Any) -> list[Run]:
    """The calibration set, all runs over the same requests."""
    return [
        simulated_run(seed, pair=pair, name=f"run{number}", **{**overrides, **settings})
        for number, settings in enumerate(GRID)
    ]
