"""The validation itself: make the runs, calibrate on some, predict the others, and gather what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from ssdsim.calibration.profile_from_records import Calibration, calibrate
from ssdsim.calibration.runs import Run
from ssdsim.distributions import Constant
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.measurement import (
    FinishedRun,
    MeasurementPlan,
    ModelSource,
    PlannedRun,
    Reporter,
    Texts,
    read_run,
    schedule,
)
from ssdsim.profile import Behaviour, PairProfile
from ssdsim.rank_trace import rank_trace_of
from ssdsim.records import Records
from ssdsim.scenario import Mode, Scenario
from ssdsim.validation.errors import Choice, Drift, Point, choices, drift_of, log_rate_at
from ssdsim.validation.grid import ValidationGrid
from ssdsim.validation.latency import known_law, latency_plan, law_in
from ssdsim.validation.predictions import (
    METHODS,
    Metrics,
    measured_metrics,
    predicted_metrics,
    sampling_errors,
    scenario_of,
    swapped_profiles,
)
from ssdsim.validation.simulated import Execute
from ssdsim.validation.transfer import Transfer, transfers

PROFILE_FILE = "profile.json"
ANCHOR_EVERY = 5
"""Runs between two anchors; one more ends the measurement."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All that a validation found."""

    calibration: Calibration
    points: tuple[Point, ...]
    """Held out: the profile has not seen them."""
    grid_points: tuple[Point, ...]
    """All points with the exact prediction only, for the question which one is the best."""
    replayed: tuple[Point, ...]
    """Greedy held-out SSD points, their tokens replayed from one calibration run's rank trace."""
    latency: tuple[Point, ...]
    """Points whose acceptance and hits were drawn from a known law."""
    repeats: int
    """Runs of each point, whose means are its measured numbers."""
    drift: Drift | None
    choices: tuple[Choice, ...]
    transfers: tuple[Transfer, ...]
    about: dict[str, object]
    """What was run: models, machine, prompts, versions."""


def plan_of(
    grid: ValidationGrid, models: ModelSource, texts: Texts, out: Path, *, num_threads: int = 1, repeats: int = 1
) -> MeasurementPlan:
    """The runs of a validation in shuffled order, anchors between and around; those in `out` are not made again.

    `repeats`: runs of every point, pass after pass. A point's measured numbers are their means, which the machine's
    pace scatters less.
    """
    runs = schedule(grid.settings, repeats=repeats, interleave=True, anchor_every=ANCHOR_EVERY, seed=texts.seed)
    last = PlannedRun(setting=grid.anchor, repeat=sum(run.is_anchor for run in runs), is_anchor=True)
    resume = (out / "measurement.json").is_file()
    return MeasurementPlan(
        models=models, texts=texts, runs=(*runs, last), out=out, num_threads=num_threads, resume=resume
    )


def run_study(
    grid: ValidationGrid,
    plan: MeasurementPlan,
    execute: Execute,
    reporter: Reporter,
    on_point: Callable[[int, int], None] = lambda done, total: None,
) -> Study:
    """Make the runs that are missing with `execute`, then calibrate and predict.

    `on_point` hears how many of how many held-out points have been predicted.
    """
    execute(plan, reporter)
    finished = [(run, read_run(plan.folder(run))) for run in plan.runs]
    members = _members(grid, finished)
    found = calibrate([_run_of(run) for run in members.calibration], name=_name(plan.models))
    found.write(plan.out / PROFILE_FILE)
    law = law_in(plan.out) or known_law(found.profile)
    timed = latency_plan(grid, plan, law)
    execute(timed, reporter)
    anchors = [(_started(run.records), measured_metrics(run.records)) for run in members.anchors]
    offset = _mean_log_rate(members.calibration, anchors)
    points, held_out = [], _by_setting(members.held_out)
    for number, runs in enumerate(held_out, 1):
        points.append(_point(runs, found.profile, fmean(_drift_at(run, anchors, offset) for run in runs)))
        on_point(number, len(held_out))
    everything = [_exact_point(runs, found.profile) for runs in (*_by_setting(members.calibration), *held_out)]
    return Study(
        calibration=found,
        points=tuple(points),
        grid_points=tuple(everything),
        replayed=tuple(_replayed(members, found.profile)),
        latency=tuple(_timed_point([read_run(timed.folder(run))], found.profile, law) for run in timed.runs),
        repeats=max(map(len, held_out), default=0),
        drift=drift_of(anchors),
        choices=tuple(choices(everything, Method.EXACT)),
        transfers=tuple(transfers(found.profile, _runs(members.calibration), _runs(members.held_out))),
        about=_about(finished[0][1].records),
    )


@dataclass(frozen=True)
class _Members:
    anchors: list[FinishedRun]
    calibration: list[FinishedRun]
    held_out: list[FinishedRun]


def _members(grid: ValidationGrid, finished: Sequence[tuple[PlannedRun, FinishedRun]]) -> _Members:
    """Who plays which part; the anchor's ordinary run belongs to the calibration."""
    seen = {setting.name for setting in grid.calibration}
    ordinary = [(planned, run) for planned, run in finished if not planned.is_anchor]
    return _Members(
        anchors=[run for planned, run in finished if planned.is_anchor],
        calibration=[run for planned, run in ordinary if planned.setting.name in seen],
        held_out=[run for planned, run in ordinary if planned.setting.name not in seen],
    )


def _by_setting(runs: Sequence[FinishedRun]) -> list[list[FinishedRun]]:
    """The repeats of each point."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(run.setting.name, []).append(run)
    return list(groups.values())


def _name(models: ModelSource) -> str:
    return models.pair or "calibrated"


def _runs(finished: Sequence[FinishedRun]) -> list[Run]:
    return [_run_of(run) for run in finished]


def _run_of(run: FinishedRun) -> Run:
    return Run.of(run.records, run.name)


def _started(records: Records) -> datetime:
    return datetime.fromisoformat(str(records.about.get("started_at", datetime.min.replace(tzinfo=UTC).isoformat())))


def _mean_log_rate(runs: Sequence[FinishedRun], anchors: Sequence[tuple[datetime, Metrics]]) -> float:
    """The anchor's mean rate at the times of the calibration runs."""
    if not anchors:
        return 0.0
    return sum(log_rate_at(_started(run.records), anchors) for run in runs) / len(runs)


def _drift_at(run: FinishedRun, anchors: Sequence[tuple[datetime, Metrics]], offset: float) -> float:
    return log_rate_at(_started(run.records), anchors) - offset if anchors else 0.0


def _point(runs: Sequence[FinishedRun], profile: PairProfile, drift: float) -> Point:
    """A point's repeats serve the same requests, so one scenario predicts them all."""
    scenario = scenario_of(runs[0].records, profile)
    predicted = {str(method): predicted_metrics(scenario, method) for method in METHODS}
    each = [_swapped(run, profile) for run in runs]
    swapped = {cause: fmean(rates[cause] for rates in each) for cause in each[0] if all(cause in r for r in each)}
    return _bare_point(runs, predicted, swapped, drift)


def _swapped(run: FinishedRun, profile: PairProfile) -> dict[str, float]:
    """Predicted rates with the run's own numbers in the place of calibrated ones, by cause."""
    found = {}
    for cause, changed in swapped_profiles(profile, run.records).items():
        rate = predicted_metrics(scenario_of(run.records, changed), Method.EXACT).get("tokens_per_s")
        if rate is not None:
            found[cause] = rate
    return found


def _exact_point(runs: Sequence[FinishedRun], profile: PairProfile) -> Point:
    scenario = scenario_of(runs[0].records, profile)
    return _bare_point(runs, {str(Method.EXACT): predicted_metrics(scenario, Method.EXACT)}, {}, 0.0)


def _timed_point(runs: Sequence[FinishedRun], profile: PairProfile, law: Behaviour) -> Point:
    scenario = scenario_of(runs[0].records, profile.model_copy(update={"behaviours": (law,)}))
    predicted = {str(method): predicted_metrics(scenario, method) for method in (Method.EXACT, Method.SIM)}
    return _bare_point(runs, predicted, {}, 0.0)


def _bare_point(
    runs: Sequence[FinishedRun], predicted: dict[str, Metrics], swapped: dict[str, float], drift: float
) -> Point:
    setting, each = runs[0].setting, [measured_metrics(run.records) for run in runs]
    return Point(
        name=setting.name,
        mode=setting.mode.value,
        batch_size=setting.batch_size,
        temperature=setting.temperature,
        measured={name: fmean(metrics[name] for metrics in each) for name in each[0]},
        predicted=predicted,
        sampling=sampling_errors(runs[0].records),
        swapped=swapped if {"acceptance", "hits", "latency", "all"} <= swapped.keys() else {},
        drift=drift,
    )


def _replayed(members: _Members, profile: PairProfile) -> list[Point]:
    """Acceptance alone: the ranks that one calibration run recorded, replayed at every held-out greedy SSD point."""
    traces = [
        trace
        for run in members.calibration
        if run.setting.mode is Mode.SSD and run.setting.temperature == 0
        if (trace := rank_trace_of(run.records.outcomes.columns()))
    ]
    if not traces:
        return []
    longest = max(traces, key=lambda trace: sum(map(len, trace)))
    points = []
    for runs in _by_setting(members.held_out):
        run = runs[0]
        if run.setting.mode is Mode.SSD and run.setting.temperature == 0:
            try:
                quantities = evaluate(_replaying(run.records, profile, longest), Method.SIM).quantities
            except InputError:
                continue  # n-gram proposals have no ranks
            metrics = {name: q.value for name, q in quantities.items() if name in measured_metrics(run.records)}
            points.append(_bare_point(runs, {"replay": metrics}, {}, 0.0))
    return points


def _replaying(records: Records, profile: PairProfile, trace: list[list[int]]) -> Scenario:
    """The run's scenario with greedy behaviours that replay `trace`; requests end where their traces do."""

    def replaying(behaviour: Behaviour) -> Behaviour:
        data = {**behaviour.model_dump(mode="json"), "rank_trace": {"requests": trace}}
        return Behaviour.model_validate(data)

    behaviours = tuple(replaying(b) if b.when.temperature == 0 else b for b in profile.behaviours)
    scenario = scenario_of(records, profile.model_copy(update={"behaviours": behaviours}))
    whole = scenario.workload.model_copy(update={"output_tokens": Constant(value=max(map(len, trace)))})
    return scenario.model_copy(update={"workload": whole})


def _about(records: Records) -> dict[str, object]:
    kept = ("models", "machine", "versions", "prompts", "max_tokens", "seed", "num_threads", "producer")
    return {key: records.about[key] for key in kept if key in records.about}
