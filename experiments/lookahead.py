"""Lookahead: SD and SSD over K, and whether a profile that saw the ends predicts the middle and the best K.

K = 2 and K = 8 calibrate; the others are predictions, with the bounds that the profile's own errors give.
"""

from __future__ import annotations

from experiments.common import (
    Row,
    calibrated,
    observed,
    per_position,
    predicted,
    setting,
    start,
    study_from_arguments,
)
from ssdsim.scenario import Mode

LOOKAHEADS = (1, 2, 3, 4, 6, 8)
CALIBRATED_ON = (2, 8)
FAN_OUT = 3


def main() -> None:
    """Run the study."""
    study = study_from_arguments("lookahead", __doc__ or "")
    wanted = [
        setting(mode, lookahead=k, fan_out=per_position(FAN_OUT)) for mode in (Mode.SD, Mode.SSD) for k in LOOKAHEADS
    ]
    runs = study.run([setting(Mode.AR), *wanted])
    ends = [
        run
        for run in runs
        if run.setting.mode is Mode.AR or run.setting.drafting.num_speculative_tokens in CALIBRATED_ON
    ]
    profile = calibrated(ends)
    rows: list[Row] = []
    for run in runs[1:]:
        seen, expected = observed(run), predicted(run, profile, bounded=True)
        rate, k = expected["tokens_per_s"], run.setting.drafting.num_speculative_tokens
        rows.append(
            {
                "mode": str(run.setting.mode),
                "K": k,
                "tokens/s": seen["tokens_per_s"].value,
                "predicted": rate.value,
                "low": rate.low,
                "high": rate.high,
                "acceptance length": seen["mean_acceptance_length"].value,
                "predicted length": expected["mean_acceptance_length"].value,
                "seen by the profile": k in CALIBRATED_ON,
            }
        )
    study.save(rows, **{f"best_K_of_{mode}": _best(rows, str(mode)) for mode in (Mode.SD, Mode.SSD)})


def _best(rows: list[Row], mode: str) -> str:
    chosen = [row for row in rows if row["mode"] == mode]
    seen, expected = (max(chosen, key=lambda row: float(row[key]))["K"] for key in ("tokens/s", "predicted"))
    return f"{seen} observed, {expected} predicted"


if __name__ == "__main__":
    start(main)
