"""A toy pair of logit distributions, for pictures at temperatures above 0 where no measured behaviour was given.

The target's logits are normal, wider in some contexts than in others; the draft's are the target's with noise, and
less sure. It shows mechanisms; no number of it describes a real pair, and every picture drawn from it says so.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.catalog import load_profile
from ssdsim.theory.sampling import cached_mask, saguaro_stats

FloatArray = NDArray[np.float64]

NAME = "a toy pair of logit distributions"
COSTS_OF = "llama-3.1-70b"
TEMPERATURES = (0.0, 0.25, 0.5, 0.75, 1.0)
_CONTEXTS, _VOCABULARY, _SEED = 500, 512, 7
_SPREAD, _NOISE = 5.0, 0.5
_DRAFT_SHARPNESS = 0.6
"""The draft is less sure than its target, which costs acceptance the more the higher the temperature."""
_SHARPNESS = 0.5
"""Standard deviation of the logarithm of a context's spread: some contexts leave no doubt, others many options."""
_MAX_FAN_OUT = 24
_COLDEST = 0.02
"""Stands for greedy decoding: nearly one-hot, yet nothing underflows among the tokens that are ranked."""


class Distributions(NamedTuple):
    """Next-token distributions of many contexts, [contexts, vocabulary]."""

    target: FloatArray
    draft: FloatArray


@cache
def distributions(temperature: float) -> Distributions:
    """Both models' distributions at a temperature."""
    generator = np.random.default_rng(_SEED)
    spread = _SPREAD * generator.lognormal(0.0, _SHARPNESS, (_CONTEXTS, 1))
    target = spread * generator.normal(size=(_CONTEXTS, _VOCABULARY))
    draft = _DRAFT_SHARPNESS * (target + generator.normal(0.0, _NOISE, target.shape))
    return Distributions(_softmax(target, temperature), _softmax(draft, temperature))


def behaviour(temperature: float) -> dict[str, Any]:
    """The pair's behaviour as plain profile data: acceptance, and hit curves as tables."""
    pair = distributions(temperature)
    fan_outs = range(1, _MAX_FAN_OUT + 1)
    stats = [saguaro_stats(*pair, fan_out, 1.0) for fan_out in fan_outs]
    rejected = 1.0 - float(np.mean(stats[0].acceptance_prob))
    at_rejection = [float(np.mean(one.reject_and_hit_prob)) / rejected for one in stats]
    accepted = [float((pair.target * cached_mask(pair.draft, f)).sum(axis=-1).mean()) for f in fan_outs]
    return {
        "when": {"temperature": temperature},
        "acceptance": {"per_position": 1.0 - rejected},
        "hit_curves": {"after_draft": {"rejection": _table(at_rejection), "all_accepted": _table(accepted)}},
    }


@cache
def profile() -> dict[str, Any]:
    """The toy pair on the costs of the embedded Llama pair."""
    data = load_profile(COSTS_OF)
    behaviours = [behaviour(temperature) for temperature in TEMPERATURES]
    source = {"kind": "assumed", "source": NAME}
    return {
        **{key: data[key] for key in ("schema_version", "hardware", "costs") if key in data},
        "name": "toy",
        "target": "toy target",
        "draft": "toy draft",
        "behaviours": behaviours,
        "provenance": {"behaviours": source, "costs": {"kind": "assumed", "source": f"those of {COSTS_OF}"}},
    }


def _table(hit_probs: list[float]) -> dict[str, Any]:
    return {"kind": "table", "hit_probs": [0.0, *np.minimum(np.maximum.accumulate(hit_probs), 1.0).tolist()]}


def _softmax(logits: FloatArray, temperature: float) -> FloatArray:
    scaled = logits / max(temperature, _COLDEST)
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    probs: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    return probs
