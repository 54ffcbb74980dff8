"""`calibrate`: from run folders to a PairProfile, every number with what it rests on and how surely it is known.

Used by `ssdsim calibrate` and by validation. Conditions that were run (temperature, Saguaro constant, kind of prompt)
become behaviours; all runs together give the costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssdsim.calibration.behaviours import BehaviourFit, fit_behaviour
from ssdsim.calibration.estimates import Estimates, rounded
from ssdsim.calibration.latency import CostsFit, fit_costs_by_sampling
from ssdsim.calibration.runs import Run, by_condition
from ssdsim.errors import InputError
from ssdsim.profile import PROFILE_SCHEMA, PairProfile
from ssdsim.schema import validate

DEFAULT_NAME = "calibrated"
_STANDS_IN = {
    "draft_step": "tree_step",
    "tree_step": "draft_step",
    "draft_start": "tree_start",
    "tree_start": "draft_start",
}
"""Work of the draft that takes each other's place where one of them was not seen."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A profile and what a user should know of it."""

    profile: PairProfile
    warnings: tuple[str, ...]
    costs: CostsFit
    costs_when_sampled: CostsFit | None
    num_runs: int

    def write(self, path: Path) -> None:
        """Write the profile as JSON with sorted keys."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(profile_text(self.profile))


def profile_text(profile: PairProfile) -> str:
    """A profile as it is written: sorted keys, one field or list of numbers a line, so that differences are short."""
    return _written(_pruned(profile.model_dump(mode="json", exclude_none=True)), 0) + "\n"


def calibrate(
    runs: Sequence[Run], *, name: str | None = None, by_prompt_kind: bool = False, with_trace: bool = False
) -> Calibration:
    """The profile that `runs` show.

    `by_prompt_kind` adds a behaviour for each kind of prompt in mixed runs. `with_trace` adds the rank trace of
    greedy runs, which the simulator replays and the other methods refuse. Raises `InputError` where no run drafted.
    """
    groups = by_condition([*runs, *(_runs_of_kinds(runs) if by_prompt_kind else ())])
    if not groups:
        raise InputError("calibrate: none of these runs drafted anything; give runs in mode sd or ssd")
    behaviours = [fit_behaviour(when, members, with_trace=with_trace) for when, members in groups.items()]
    costs, when_sampled = fit_costs_by_sampling(runs)
    fitted = {"costs": costs, **({} if when_sampled is None else {"costs_when_sampled": when_sampled})}
    estimates = [e.below(f"behaviours.{i}") for i, fit in enumerate(behaviours) for e in fit.estimates]
    data = {
        "schema_version": PROFILE_SCHEMA,
        "name": name or DEFAULT_NAME,
        "summary": f"Calibrated from {len(runs)} runs.",
        **_identity(runs),
        "behaviours": [fit.data for fit in behaviours],
        **{path: _whole(costs_data(fit)) for path, fit in fitted.items()},
        "limits": _limits(runs),
        "uncertainties": _uncertainties([*estimates, *_cost_estimates(fitted)]),
        "provenance": _provenance(runs, behaviours, fitted),
    }
    return Calibration(
        profile=validate(PairProfile, data),
        warnings=tuple(_warnings(behaviours, costs)),
        costs=costs,
        costs_when_sampled=when_sampled,
        num_runs=len(runs),
    )


def _runs_of_kinds(runs: Sequence[Run]) -> list[Run]:
    """Each run of mixed prompts once per kind, with that kind's requests only."""
    return [part for run in runs if run.workload.prompt_kind is None for part in run.by_prompt_kind()]


def _identity(runs: Sequence[Run]) -> dict[str, Any]:
    """Models and hardware as the runs name them."""
    about = runs[0].records.about
    pair = about.get("scenario", {}).get("pair")
    if isinstance(pair, Mapping):
        return {key: pair[key] for key in ("target", "draft", "hardware")}
    models, machine = about.get("models", {}), about.get("machine", {})
    device = next(iter(machine.get("accelerators") or ()), machine.get("cpu") or "unknown")
    return {
        "target": models.get("target") or "unknown",
        "draft": next((d for run in runs if (d := run.records.about.get("models", {}).get("draft"))), "unknown"),
        "hardware": {"target_device": device, "draft_device": device},
    }


def _whole(costs: dict[str, Any]) -> dict[str, Any]:
    """The costs with steps that were not seen taken from those that were."""
    stand_ins = {
        missing: dict(costs[other])
        for missing, other in _STANDS_IN.items()
        if missing not in costs and other in costs
    }
    return {**costs, **stand_ins}


def costs_data(fit: CostsFit) -> dict[str, Any]:
    """The costs that were seen, in plain data."""
    return {
        "kind": "components",
        **{name: _rounded(found.term.model_dump(mode="json")) for name, found in fit.terms.items()},
        "verify_contention": rounded(fit.verify_contention),
        "jitter": {name: rounded(cv, 3) for name, cv in fit.jitter.items()},
    }


def _cost_estimates(fitted: Mapping[str, CostsFit]) -> list[Estimates]:
    found = []
    for path, fit in fitted.items():
        terms = ((f"{path}.{name}", term) for name, term in fit.terms.items() if term.paths)
        found += [Estimates(term.paths, term.covariance).below(prefix) for prefix, term in terms]
        if fit.verify_contention != 1.0 and np.isfinite(fit.verify_contention_error):
            error = np.array([[fit.verify_contention_error**2]])
            found.append(Estimates((f"{path}.verify_contention",), error))
    return found


def _uncertainties(estimates: Sequence[Estimates]) -> list[dict[str, Any]]:
    return [found.model_dump(mode="json") for e in estimates if (found := e.uncertainty()) is not None]


def _limits(runs: Sequence[Run]) -> dict[str, Any]:
    """How far the runs reached."""
    contexts = []
    for run in runs:
        requests = run.records.requests.columns()
        contexts.append(int((requests["prompt_tokens"] + requests["output_tokens"]).max(initial=0)))
    fan_outs = [int(run.outcomes["fan_out_here"].max(initial=0)) for run in runs]
    reached = {
        "max_batch_size": max(int(run.rounds["batch_size"].max(initial=0)) for run in runs),
        "max_speculative_tokens": max(run.lookahead for run in runs),
        "max_fan_out": max(fan_outs),
        "max_context_tokens": max(contexts),
    }
    return {name: value for name, value in reached.items() if value > 0}


def _provenance(
    runs: Sequence[Run], behaviours: Sequence[BehaviourFit], fitted: Mapping[str, CostsFit]
) -> dict[str, Any]:
    when = sorted({str(about["started_at"])[:10] for run in runs if "started_at" in (about := run.records.about)})
    version = runs[0].records.about.get("version") or runs[0].records.about.get("versions", {}).get(
        "ssdsim", "unknown"
    )
    producer = runs[0].records.about.get("producer", "unknown producer")
    how = f"ssdsim calibrate on {len(runs)} runs of {producer} (ssdsim {version}){', ' + when[0] if when else ''}"
    found = {path: {"kind": "fitted", "source": how} for path in fitted}
    for path, name, term in ((path, *item) for path, fit in fitted.items() for item in fit.terms.items()):
        scatter, misfit = (f"{100 * share:.1f} %" for share in (term.noise, term.misfit))
        source = f"{term.num_observations} observations, scatter {scatter}, misfit {misfit}"
        found[f"{path}.{name}"] = {"kind": "fitted", "source": source}
    for i, fit in enumerate(behaviours):
        for path, source in fit.sources.items():
            found[f"behaviours.{i}.{path}"] = {"kind": "fitted", "source": source}
    return found


def _warnings(behaviours: Sequence[BehaviourFit], costs: CostsFit) -> list[str]:
    several = len(behaviours) > 1
    found = list(costs.warnings)
    for fit in behaviours:
        where = ", ".join(f"{key}={value}" for key, value in fit.data["when"].items())
        found += [f"{warning} [{where}]" if several else warning for warning in fit.warnings]
    return list(dict.fromkeys(found))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return rounded(value)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _pruned(value: Any) -> Any:
    """Without parts that are empty."""
    if isinstance(value, Mapping):
        pruned = {key: _pruned(item) for key, item in value.items()}
        return {key: item for key, item in pruned.items() if item not in ([], {}, "")}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


def _written(value: Any, depth: int) -> str:
    """JSON with sorted keys; a list of plain values stays on one line."""
    pad = " " * (depth + 1)
    if isinstance(value, Mapping) and value:
        items = (f"{pad}{json.dumps(str(key))}: {_written(value[key], depth + 1)}" for key in sorted(value))
        return "{\n" + ",\n".join(items) + f"\n{' ' * depth}}}"
    if isinstance(value, list | tuple) and any(isinstance(item, list | tuple | Mapping) for item in value):
        return "[\n" + ",\n".join(f"{pad}{_written(item, depth + 1)}" for item in value) + f"\n{' ' * depth}]"
    return json.dumps(value)
