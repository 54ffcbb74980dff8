"""A profile that stands for the truth in tests of the closed loop."""

from __future__ import annotations

from typing import Any

from ssdsim.profile import PairProfile


def known_profile() -> PairProfile:
    """A small pair with a few milliseconds per verification, whose requests differ."""

    def linear(base_s: float, per_query_token_s: float = 0.0, per_context_token_s: float = 0.0) -> dict[str, Any]:
        return {
            "kind": "linear",
            "base_s": base_s,
            "per_query_token_s": per_query_token_s,
            "per_context_token_s": per_context_token_s,
        }

    law = {"kind": "power", "miss_exponent": 0.4, "miss_prefactor": 0.7}
    return PairProfile.model_validate(
        {
            "name": "truth",
            "target": "target",
            "draft": "draft",
            "hardware": {"target_device": "unit", "draft_device": "unit"},
            "behaviours": [
                {
                    "acceptance": {"per_position": 0.75, "spread": 0.07},
                    "ngram_acceptance": {"per_position": 0.3},
                    "hit_curves": {"after_draft": {"rejection": law}},
                }
            ],
            "costs": {
                "kind": "components",
                "verify": linear(4e-3, 1e-4, 1e-6),
                "draft_step": linear(4e-4),
                "tree_step": linear(3e-4, 1e-5),
                "glue": linear(3e-4, 1e-5),
                "host": linear(2e-4),
                "prefill": linear(1e-3, 2e-5),
                "draft_prefill": linear(2e-4, 5e-6),
                "reply": linear(4e-5),
                "outcome": linear(4e-5),
                "jitter": {"verify": 0.04, "draft": 0.04, "host": 0.1},
            },
        }
    )
