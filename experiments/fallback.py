"""Fallback against batch size: drafting just in time or proposing nothing, and where the second overtakes the first.

Runs at the smallest and the largest batch calibrate the profile; the crossing b* follows from it as the paper prints
it (Theorem 17), consistently, and by scanning the exact model, and stands beside the observed one.
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
from ssdsim.design_point import resolve
from ssdsim.exact import critical_batch_sizes
from ssdsim.measurement import FinishedRun
from ssdsim.profile import PairProfile
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.validation.predictions import scenario_of

BATCH_SIZES = (1, 2, 4, 8)
FAN_OUT = 3


def main() -> None:
    """Run the study."""
    study = study_from_arguments("fallback", __doc__ or "", num_prompts=24, max_tokens=48)
    wanted = {
        (b, kind): setting(Mode.SSD, fan_out=per_position(FAN_OUT), fallback=kind, batch_size=b)
        for b in BATCH_SIZES
        for kind in (FallbackKind.JIT, FallbackKind.NONE)
    }
    others = [setting(Mode.AR), *(setting(Mode.SD, batch_size=b) for b in (BATCH_SIZES[0], BATCH_SIZES[-1]))]
    runs = {run.setting.name: run for run in study.run([*wanted.values(), *others])}
    edges = [runs[s.name] for (b, _), s in wanted.items() if b in (BATCH_SIZES[0], BATCH_SIZES[-1])]
    profile = calibrated([*edges, *(runs[s.name] for s in others)])
    rows: list[Row] = []
    for b in BATCH_SIZES:
        jit, none = (runs[wanted[b, kind].name] for kind in (FallbackKind.JIT, FallbackKind.NONE))
        rows.append({"batch": b, **_rates("jit", jit, profile), **_rates("none", none, profile)})
    crossing = next((row["batch"] for row in rows if row["none tokens/s"] > row["jit tokens/s"]), None)
    found = critical_batch_sizes(resolve(scenario_of(runs[wanted[1, FallbackKind.NONE].name].records, profile)))
    study.save(
        rows,
        observed_crossing=crossing if crossing is not None else f"beyond {BATCH_SIZES[-1]}",
        printed_b_star=_described(found.printed),
        consistent_b_star=_described(found.consistent),
        scanned_b_star=found.scanned if found.scanned is not None else "none",
    )


def _rates(name: str, run: FinishedRun, profile: PairProfile) -> Row:
    rate, expected = observed(run)["tokens_per_s"].value, predicted(run, profile)["tokens_per_s"].value
    return {f"{name} tokens/s": rate, f"{name} predicted": expected}


def _described(found: object) -> str:
    """The verdict of a b* formula with its number where there is one."""
    values = [
        str(getattr(found, name)) for name in ("verdict", "batch_size") if getattr(found, name, None) is not None
    ]
    return " ".join(values) or str(found)


if __name__ == "__main__":
    start(main)
