"""How far acceptance travels: the behaviour seen on one kind of prompt, or on some of them, predicting others.

Runs mix kinds in one batch, so rates cannot be told apart by kind; acceptance lengths and hit rates can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
HALVES = ("one half of the prompts", "the other half")

Part = Callable[[Run], Run | None]
"""What of a run belongs to one group of prompts."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One group of prompts predicting another, over the held-out runs."""

    calibrated_on: str
    predicted: str
    acceptance_length_error: float
    """Mean absolute relative error of the mean acceptance length."""
    hit_rate_error: float | None
    """Mean absolute difference of the cache hit rate; None without SSD runs."""
    num_runs: int


def transfers(profile: PairProfile, calibration: Sequence[Run], held_out: Sequence[Run]) -> list[Transfer]:
    """Every kind, and all of them together, predicting every kind; and either half of the prompts the other.

    The halves tell what texts that were never seen cost beyond the difference between kinds. Kinds are left out where
    the prompts are of one kind.
    """
    kinds = sorted({str(part.workload.prompt_kind) for run in calibration for part in run.by_prompt_kind()})
    found: list[Transfer] = []
    if len(kinds) > 1:
        parts = {kind: _of_kind(kind) for kind in kinds}
        sources = {kind: _behaviours_on(part, calibration) for kind, part in parts.items()}
        found += _between({**sources, ALL_KINDS: profile.behaviours}, parts, profile, held_out)
    halves: dict[str, Part] = {name: _half(number) for number, name in enumerate(HALVES)}
    found += _between({h: _behaviours_on(part, calibration) for h, part in halves.items()}, halves, profile, held_out)
    return found


def _between(
    sources: Mapping[str, tuple[Behaviour, ...]], parts: Mapping[str, Part], profile: PairProfile, runs: Sequence[Run]
) -> Iterator[Transfer]:
    """Every source's behaviours predicting every part of the runs."""
    for source, behaviours in sources.items():
        asked = profile.model_copy(update={"behaviours": behaviours})
        predicted = [(run, answer) for run in runs if (answer := _predicted(run, asked)) is not None]
        each = (_transfer(predicted, source, target, part) for target, part in parts.items())
        yield from (transfer for transfer in each if transfer is not None)


def _of_kind(kind: str) -> Part:
    return lambda run: next((p for p in run.by_prompt_kind() if p.workload.prompt_kind == kind), None)


def _half(number: int) -> Part:
    return lambda run: run.by_half()[number]


def _behaviours_on(part: Part, runs: Sequence[Run]) -> tuple[Behaviour, ...]:
    """What the runs show on one part of the prompts, for whatever is asked."""
    parts = [found for run in runs if (found := part(run)) is not None and len(found.outcomes["round"])]
    behaviours = []
    for when, members in by_condition(parts).items():
        data = fit_behaviour(when.model_copy(update={"prompt_kind": None}), members).data
        behaviours.append(validate(Behaviour, data))
    return tuple(behaviours)


def _predicted(run: Run, profile: PairProfile) -> tuple[float, float] | None:
    """Acceptance length and hit rate of a run's scenario; None for AR and what the exact model refuses."""
    if run.mode is Mode.AR:
        return None
    try:
        found = evaluate(scenario_of(run.records, profile), Method.EXACT).quantities
    except InputError:
        return None
    return found["mean_acceptance_length"].value, found["cache_hit_rate"].value


def _transfer(
    predicted: Sequence[tuple[Run, tuple[float, float]]], source: str, target: str, part_of: Part
) -> Transfer | None:
    lengths, rates = [], []
    for run, (length, hit_rate) in predicted:
        part = part_of(run)
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
