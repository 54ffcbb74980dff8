"""Hit curves: how the miss probability falls with the fan-out, by temperature and by position.

One run per temperature tells the whole curve where the executor ranks every bonus token; further fan-outs serve the
simulator, which only knows hits and misses. Shown: counted shares of misses, the law c F^-r closest to them with its
95 % interval, the test whether they follow it, and how far the farthest share lies from it.
"""

from __future__ import annotations

from experiments.common import Row, per_position, setting, start, study_from_arguments
from ssdsim.calibration.guesses import count_guesses
from ssdsim.calibration.hit_curves import CurveEstimate, hit_curves_of
from ssdsim.calibration.runs import Run
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
        rows += [
            {"position": " ".join(place), "T": temperature, "tokens": count_guesses(chosen, place).num_guesses}
            | _shown(curve)
            for place, curve in hit_curves_of(chosen).items()
        ]
    refuted = [f"{row['position']} at T={row['T']:g}" for row in rows if row["law"] == "refuted"]
    study.save(rows, not_a_power_law=", ".join(refuted) or "nowhere")


def _shown(curve: CurveEstimate) -> Row:
    """What is shown of one curve."""
    misses = {f"miss F={size}": 1 - hit.value if (hit := curve.at(size)) else None for size in SHOWN}
    law = curve.law
    if law is None:
        return {**misses, "prefactor": None, "exponent": None, "p": None, "farthest": None, "law": "no misses"}
    return {
        **misses,
        "prefactor": law.miss_prefactor.text(2),
        "exponent": law.miss_exponent.text(2),
        "p": law.p_value,
        "farthest": law.largest_deviation,
        "law": "refuted" if law.is_refuted else "fits",
    }


if __name__ == "__main__":
    start(main)
