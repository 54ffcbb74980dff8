"""Latency alone: runs whose acceptance and hits are drawn from a known law, so that only their times can surprise.

The law is what the calibrated profile says of greedy drafting, all requests alike. Used by `validation.study`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from ssdsim.measurement import MeasurementPlan, PlannedRun
from ssdsim.profile import Acceptance, Behaviour, HitCurves, PairProfile, When
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.schema import validate
from ssdsim.validation.grid import ValidationGrid

FOLDER = "latency"
"""Of the runs, within the validation's."""
MOST_POINTS = 12


def known_law(profile: PairProfile) -> Behaviour:
    """Greedy drafting as the profile has it, without spread between requests and without what follows a fallback."""
    greedy = profile.behaviour(temperature=0.0, saguaro_downweight=1.0, prompt_kind=None, drafter="model")
    acceptance = greedy.acceptance
    return Behaviour(
        when=When(),
        acceptance=Acceptance(per_position=acceptance.per_position, by_lookahead=acceptance.by_lookahead),
        hit_curves=HitCurves(after_draft=greedy.hit_curves.after_draft),
    )


def law_in(out: Path) -> Behaviour | None:
    """The law of the runs that a validation in `out` has made or begun: any law will do, and theirs cannot change."""
    file = out / FOLDER / "measurement.json"
    law = json.loads(file.read_text()).get("synthetic") if file.is_file() else None
    return validate(Behaviour, law, source=str(file)) if law else None


def latency_plan(grid: ValidationGrid, plan: MeasurementPlan, law: Behaviour) -> MeasurementPlan:
    """Greedy held-out points with a draft, outcomes drawn from `law`; n-gram proposals have no law."""
    chosen = [
        setting
        for setting in grid.held_out
        if setting.mode is not Mode.AR
        and setting.temperature == 0
        and setting.drafting.fallback.kind is not FallbackKind.NGRAM
    ]
    runs = tuple(PlannedRun(setting=setting, repeat=0) for setting in chosen[:: -(-len(chosen) // MOST_POINTS)])
    out = plan.out / FOLDER
    return replace(plan, runs=runs, out=out, resume=(out / "measurement.json").is_file(), synthetic=law)
