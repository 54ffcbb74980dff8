"""How far acceptance travels: the behaviour seen on one kind of prompt predicting another.

Runs mix kinds in one batch, so rates cannot be told apart by kind; acceptance lengths and hit rates can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ssdsim.calibration.behaviours import fit_behaviour
from ssdsim.calibration.runs import Run, by_condition
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.profile import Behaviour, PairProfile
from ssdsim.records import Lookup
from ssdsim.scenario import Mode
from ssdsim.schema import validate
from ssdsim.validation.predictions import scenario_of

ALL_KINDS = "all kinds"


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One kind predicting another, over the held-out runs."""

    calibrated_on: str
    predicted: str
    acceptance_length_error: float
    """Mean absolute relative error of the mean acceptance length."""
    hit_rate_error: float | None
    """Mean absolute difference of the cache hit rate; None without SSD runs."""
    num_runs: int


def transfers(profile: PairProfile, calibration: Sequence[Run], held_out: Sequence[Run]) -> list[Transfer]:
    """Every kind, and all of them together, predicting every kind; empty where the prompts are of one kind."""
    kinds = sorted({str(part.workload.prompt_kind) for run in calibration for part in run.by_prompt_kind()})
    found: list[Transfer] = []
    for source in (*kinds, ALL_KINDS) if len(kinds) > 1 else ():
        behaviours = profile.behaviours if source == ALL_KINDS else _behaviours_on(source, calibration)
        asked = profile.model_copy(update={"behaviours": tuple(behaviours)})
        predicted = [(run, answer) for run in held_out if (answer := _predicted(run, asked)) is not None]
        each = (_transfer(predicted, source, target) for target in kinds)
        found.extend(transfer for transfer in each if transfer is not None)
    return found


def _behaviours_on(kind: str, runs: Sequence[Run]) -> tuple[Behaviour, ...]:
    """What the runs show on one kind of prompt, for whatever kind is asked."""
    parts = [part for run in runs for part in run.by_prompt_kind() if part.workload.prompt_kind == kind]
    found = []
    for when, members in by_condition(parts).items():
        data = fit_behaviour(when.model_copy(update={"prompt_kind": None}), members).data
        found.append(validate(Behaviour, data))
    return tuple(found)


def _predicted(run: Run, profile: PairProfile) -> tuple[float, float] | None:
    """Acceptance length and hit rate of a run's scenario; None for AR and what the exact model refuses."""
    if run.mode is Mode.AR:
        return None
    try:
        found = evaluate(scenario_of(run.records, profile), Method.EXACT).quantities
    except InputError:
        return None
    return found["mean_acceptance_length"].value, found["cache_hit_rate"].value


def _transfer(predicted: Sequence[tuple[Run, tuple[float, float]]], source: str, target: str) -> Transfer | None:
    lengths, rates = [], []
    for run, (length, hit_rate) in predicted:
        part = next((p for p in run.by_prompt_kind() if p.workload.prompt_kind == target), None)
        if part is None or not len(part.outcomes["round"]):
            continue
        lengths.append(abs(length / _acceptance_length(part) - 1))
        if run.mode is Mode.SSD and (seen := _hit_rate(part)) is not None:
            rates.append(abs(hit_rate - seen))
    if not lengths:
        return None
    return Transfer(
        calibrated_on=source,
        predicted=target,
        acceptance_length_error=fmean(lengths),
        hit_rate_error=fmean(rates) if rates else None,
        num_runs=len(lengths),
    )


def _acceptance_length(run: Run) -> float:
    return float(run.outcomes["num_emitted"].mean())


def _hit_rate(run: Run) -> float | None:
    looked_up = run.outcomes["lookup"][np.isin(run.outcomes["lookup"], (Lookup.HIT, Lookup.MISS))]
    return float((looked_up == Lookup.HIT).mean()) if len(looked_up) else None
