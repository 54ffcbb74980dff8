"""The simulator in the place of the executor: the same runs on disk, made from a profile that is the truth.

What the loop then finds can be held against what it should have found. Used by `ssdsim validate --simulate`, by the
tests and by the study of the closed loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ssdsim.measurement import MeasurementPlan, PlannedRun, Reporter, check_same_measurement
from ssdsim.profile import PairProfile
from ssdsim.records import Records
from ssdsim.scenario import Scenario
from ssdsim.scenario_files import scenario_from
from ssdsim.sim import simulate

Execute = Callable[[MeasurementPlan, Reporter], None]
"""What makes the runs of a plan: the executor's `measure`, or the simulator."""

_SECONDS_PER_RUN = 10.0
_PROMPT_TOKENS = {"kind": "uniform", "low": 24, "high": 72}
_TIMES = ("_s",)


def simulated_measurement(truth: PairProfile, *, noise: float = 0.0, drift: float = 0.0) -> Execute:
    """Runs of a pair that is exactly `truth`, on a machine of which all times scale from run to run.

    `noise`: standard deviation of a run's scale; `drift`: relative slowing over the whole measurement.
    """

    def execute(plan: MeasurementPlan, reporter: Reporter) -> None:
        common = {"truth": truth.name, "seed": plan.texts.seed, "synthetic": plan.law}
        check_same_measurement(plan.out, common, resume=plan.resume)
        unfinished = {run.name for run in plan.unfinished()}
        scales = np.random.default_rng(plan.texts.seed).standard_normal(len(plan.runs))
        reporter.start(len(plan.runs), len(plan.runs) - len(unfinished))
        for number, run in enumerate(plan.runs):
            if run.name in unfinished:
                progress = number / max(len(plan.runs) - 1, 1)
                scale = math.exp(noise * float(scales[number]) + drift * progress)
                _simulated(run, number, plan, truth, scale).write(plan.folder(run))
                reporter.advance(1)

    return execute


def _simulated(run: PlannedRun, number: int, plan: MeasurementPlan, truth: PairProfile, scale: float) -> Records:
    scenario = _scenario(run, plan, truth)
    records = simulate(scenario).records
    for table in (records.rounds, records.requests):
        for name, column in table.columns().items():
            if name.endswith(_TIMES):
                column *= scale
    started = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=_SECONDS_PER_RUN * number)
    about = {
        "setting": run.setting.plain(),
        "run": {"name": run.name, "repeat": run.repeat, "is_anchor": run.is_anchor},
        "started_at": started.isoformat(),
    }
    return _with_about(records, about)


def _with_about(records: Records, about: dict[str, Any]) -> Records:
    records.about.update(about)
    return records


def _scenario(run: PlannedRun, plan: MeasurementPlan, truth: PairProfile) -> Scenario:
    setting, texts = run.setting, plan.texts
    if plan.synthetic is not None:
        truth = truth.model_copy(update={"behaviours": (plan.synthetic,)})
    return scenario_from(
        {
            "name": run.name,
            "mode": setting.mode.value,
            "pair": truth.model_dump(mode="json"),
            "drafting": setting.drafting.model_dump(mode="json"),
            "workload": {
                "arrivals": "closed",
                "batch_size": setting.batch_size,
                "prompt_tokens": _PROMPT_TOKENS,
                "output_tokens": {"kind": "constant", "value": texts.max_tokens},
                "num_requests": texts.num_prompts,
                "temperature": setting.temperature,
            },
            "run": {"seed": texts.seed, "warmup_rounds": 0, "warmup_requests": 0},
        }
    )
