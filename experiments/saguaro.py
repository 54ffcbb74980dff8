"""Saguaro sampling: what the constant C gives in hits and takes in acceptance, at temperature 1.

C = 1 is plain speculative sampling. Nothing is assumed to be monotone (THEORY 5): the best C is the observed one.
"""

from __future__ import annotations

from experiments.common import Row, observed, per_position, setting, start, study_from_arguments
from ssdsim.scenario import FallbackKind, Mode

DOWNWEIGHTS = (1.0, 0.7, 0.4, 0.2, 0.1)
FAN_OUT = 3


def main() -> None:
    """Run the study."""
    study = study_from_arguments("saguaro", __doc__ or "")
    runs = study.run(
        [
            setting(Mode.SSD, fan_out=per_position(FAN_OUT), fallback=fallback, downweight=c, temperature=1.0)
            for fallback in (FallbackKind.JIT, FallbackKind.NONE)
            for c in DOWNWEIGHTS
        ]
    )
    rows: list[Row] = []
    for run in runs:
        seen = observed(run)
        rows.append(
            {
                "fallback": str(run.setting.drafting.fallback.kind),
                "C": run.setting.drafting.saguaro_downweight,
                "acceptance length": seen["mean_acceptance_length"].value,
                "hit rate": seen["cache_hit_rate"].value,
                "after a draft": seen["hit_rate_after_draft"].value,
                "tokens/s": seen["tokens_per_s"].value,
            }
        )
    best = {
        kind: max((row for row in rows if row["fallback"] == kind), key=lambda row: float(row["tokens/s"]))["C"]
        for kind in ("jit", "none")
    }
    study.save(rows, best_C=", ".join(f"{kind}: {c:g}" for kind, c in best.items()))


if __name__ == "__main__":
    start(main)
