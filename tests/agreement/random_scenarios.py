"""Random scenarios that both the exact model and the simulator cover, over everything that a round can do.

Costs do not grow with context (there the exact model takes a mean), and `truncate` and replayed traces are left to
the simulator. The i-th scenario is the same for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ssdsim.scenario import Scenario
from ssdsim.scenario_files import scenario_from

FALLBACKS = ("jit", "none", "random", "ngram", "auto", "threshold")


def random_scenario(index: int) -> Scenario:
    """Scenario number `index`."""
    rng = np.random.default_rng([20261130, index])
    lookahead = int(rng.integers(1, 9))
    fallback = FALLBACKS[index % len(FALLBACKS)]
    batch_size = int(rng.choice([1, 2, 3, 4, 6, 8, 16, 32, 64]))
    load = _load(rng, fallback, batch_size)
    return scenario_from(
        {
            "pair": _pair(rng, lookahead, index, spread=load["output_tokens"] is not None),
            "drafting": _drafting(rng, lookahead, fallback),
            "placement": {"num_draft_devices": int(rng.integers(1, 4))},
            "workload": {"batch_size": batch_size, **load},
            "run": {
                "seed": int(rng.integers(2**31)),
                "num_rounds": 12_000,
                "warmup_rounds": 200,
                "warmup_requests": 4 * batch_size if load["arrivals"] == "closed" and load["output_tokens"] else 0,
            },
        }
    )


def _load(rng: np.random.Generator, fallback: str, batch_size: int) -> dict[str, Any]:
    """Endless rows, a closed loop of requests of various lengths, or static batches."""
    kind = "endless" if fallback == "threshold" else str(rng.choice(["endless", "closed", "static"]))
    if kind == "endless":
        return {"arrivals": "closed", "output_tokens": None}
    if kind == "static":
        lengths = {"kind": "constant", "value": int(rng.integers(8, 80))}
        return {"arrivals": "static", "output_tokens": lengths, "num_requests": 250 * batch_size}
    lengths = [
        {"kind": "constant", "value": int(rng.integers(8, 160))},
        {"kind": "uniform", "low": 4, "high": 90},
        {"kind": "geometric", "mean": 40.0, "max": 200},
    ][int(rng.integers(3))]
    return {"arrivals": "closed", "output_tokens": lengths, "num_requests": 200 * batch_size + 200}


def _drafting(rng: np.random.Generator, lookahead: int, fallback: str) -> dict[str, Any]:
    policy = str(rng.choice(["uniform", "geometric", "optimal", "explicit"]))
    fan_out: dict[str, Any] = {"policy": policy, "budget": int(rng.integers(lookahead + 1, 30))}
    if policy == "explicit":
        fan_out = {"policy": policy, "values": [int(f) for f in rng.integers(0, 5, lookahead + 1)]}
        fan_out["values"][0] += 1
    choice: dict[str, Any] = {"kind": fallback}
    if fallback == "ngram":
        choice["num_tokens"] = int(rng.integers(1, lookahead + 1))
    on_miss = {"policy": "uniform", "budget": int(rng.integers(2, 24))} if rng.random() < 0.4 else None
    return {
        "num_speculative_tokens": lookahead,
        "fan_out": fan_out,
        "fan_out_on_miss": on_miss,
        "fallback": choice,
        "first_round": str(rng.choice(["jit", "miss"])),
        "on_late": str(rng.choice(["wait", "abort"])),
        "padded_verify": bool(rng.random() < 0.3),
        "redraft_hits": fallback == "jit" and on_miss is None and bool(rng.random() < 0.3),
    }


def _pair(rng: np.random.Generator, lookahead: int, index: int, *, spread: bool) -> dict[str, Any]:
    acceptance = rng.uniform(0.4, 0.95, lookahead).round(3)
    power = {
        "kind": "power",
        "miss_exponent": float(rng.uniform(0.2, 1.5)),
        "miss_prefactor": float(rng.uniform(0.3, 1)),
    }
    return {
        "name": "random",
        "target": "target",
        "draft": "draft",
        "hardware": {"target_device": "unit", "draft_device": "unit"},
        "behaviours": [
            {
                "acceptance": {
                    "per_position": acceptance.tolist(),
                    "spread": 0.08 if spread and rng.random() < 0.3 else 0.0,
                },
                "ngram_acceptance": {"per_position": float(rng.uniform(0.2, 0.7))},
                "hit_curves": {"after_draft": {"rejection": power}},
            }
        ],
        "costs": _costs(rng) | _prefills(np.random.default_rng([20261201, index])),
    }


def _prefills(rng: np.random.Generator) -> dict[str, Any]:
    """Prompts that are read in no time, during the first drafting, or longer than anything else takes."""
    longest = float(rng.choice([0.0, 0.3, 1.5]))
    terms = {"prefill": rng.uniform(0, longest), "draft_prefill": rng.uniform(0, longest / 8)}
    return {name: {"kind": "constant", "seconds": float(seconds)} for name, seconds in terms.items()}


def _costs(rng: np.random.Generator) -> dict[str, Any]:
    """A third of the builds outlive verification, some always, some only with many rows."""
    late = rng.random() < 1 / 3
    return {
        "kind": "components",
        "verify": {
            "kind": "linear",
            "base_s": 0.9,
            "per_sequence_s": float(rng.uniform(0, 0.01)),
            "per_query_token_s": float(rng.uniform(0, 0.01)),
        },
        "draft_step": {"kind": "linear", "base_s": 0.08},
        "jit_step": {"kind": "linear", "base_s": float(rng.uniform(0.01, 0.15)), "per_sequence_s": 0.002},
        "glue": {"kind": "linear", "base_s": 0.05, "per_query_token_s": 0.001},
        "tree_step": {
            "kind": "linear",
            "base_s": float(rng.uniform(0.15, 0.4) if late else rng.uniform(0.01, 0.06)),
            "per_sequence_s": float(rng.uniform(0, 0.002)),
        },
        "store": {"kind": "constant", "seconds": 0.01},
        "ngram": {"kind": "linear", "base_s": 0.01, "per_sequence_s": 0.001},
        "lookup": {"kind": "constant", "seconds": 0.005},
        "accept": {"kind": "constant", "seconds": 0.01},
        "reply": {"kind": "constant", "seconds": float(rng.uniform(0, 0.02))},
        "outcome": {"kind": "constant", "seconds": float(rng.uniform(0, 0.02))},
        "host": {"kind": "constant", "seconds": float(rng.uniform(0, 0.05))},
    }
