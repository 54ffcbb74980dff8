"""Hit curves: how the miss probability falls with the fan-out, by temperature and by position.

One run per temperature tells the whole curve where the executor ranks every bonus token; further fan-outs serve the
simulator, which only knows hits and misses. Shown: counted shares, the fitted law with its error, whether it fits.
"""

from __future__ import annotations

import numpy as np

from experiments.common import Row, per_position, setting, start, study_from_arguments
from ssdsim.calibration.guesses import POSITIONS, count_guesses
from ssdsim.calibration.miss_law import fit_hit_curve
from ssdsim.calibration.runs import Run
from ssdsim.profile import PowerLawCurve
from ssdsim.scenario import FallbackKind, Mode

TEMPERATURES = (0.0, 1.0)
FAN_OUTS = (1, 4, 16)
SHOWN = (1, 2, 4, 8, 16, 32)


def main() -> None:
    """Run the study."""
    study = study_from_arguments("hit_curves", __doc__ or "")
    wanted = [
        setting(Mode.SSD, fan_out=per_position(size), fallback=fallback, temperature=t)
        for t in TEMPERATURES
        for size in FAN_OUTS
        for fallback in (FallbackKind.JIT, FallbackKind.NONE)
    ]
    runs = study.run(wanted)
    rows: list[Row] = []
    for temperature in TEMPERATURES:
        chosen = [Run.of(run.records, run.name) for run in runs if run.setting.temperature == temperature]
        rows += [row for place in POSITIONS if (row := _row(chosen, place, temperature)) is not None]
    refuted = [f"{row['position']} at T={row['T']:g}" for row in rows if row["law"] == "refuted"]
    study.save(rows, not_a_power_law=", ".join(refuted) or "nowhere")


def _row(runs: list[Run], place: tuple[str, str], temperature: float) -> Row | None:
    counts = count_guesses(runs, place)
    fit = fit_hit_curve(counts)
    if fit is None:
        return None
    shares = counts.misses.sum(axis=0) / np.maximum(counts.trials.sum(axis=0), 1)
    counted = dict(zip(counts.fan_outs.tolist(), shares.tolist(), strict=True))
    law: dict[str, object] = {"prefactor": None, "+-": None, "exponent": None, "+-r": None}
    if isinstance(fit.curve, PowerLawCurve):
        errors = 1.96 * np.sqrt(np.diagonal(fit.covariance))
        law = {"prefactor": fit.curve.miss_prefactor, "+-": float(errors[0])}
        law |= {"exponent": fit.curve.miss_exponent, "+-r": float(errors[1])}
    return {
        "position": " ".join(place),
        "T": temperature,
        "tokens": fit.num_trials,
        **{f"miss F={size}": counted.get(size) for size in SHOWN},
        **law,
        "p": fit.p_value,
        "law": "fits" if isinstance(fit.curve, PowerLawCurve) else "refuted",
    }


if __name__ == "__main__":
    start(main)
