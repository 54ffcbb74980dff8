"""One measured run, predicted: by every method, and with measured inputs in the place of calibrated ones.

The metrics are read off the run's own records by the same code that reads the simulator's.
"""

from __future__ import annotations

import math
from statistics import fmean

from ssdsim.calibration.behaviours import fit_behaviour
from ssdsim.calibration.latency import fit_costs
from ssdsim.calibration.phases import CHAINS
from ssdsim.calibration.profile_from_records import costs_data
from ssdsim.calibration.runs import Run
from ssdsim.costs.models import ComponentCosts, Costs
from ssdsim.errors import DomainError
from ssdsim.evaluate import Method, evaluate
from ssdsim.metrics import summarise
from ssdsim.profile import Behaviour, PairProfile
from ssdsim.records import Records
from ssdsim.scenario import Mode, Scenario
from ssdsim.schema import validate

METRICS = (
    "tokens_per_s",
    "mean_acceptance_length",
    "cache_hit_rate",
    "hit_rate_after_draft",
    "hit_rate_after_fallback",
    "round_s",
    "tpot_p50_s",
    "tpot_p99_s",
)
"""What is compared; shares are compared by difference, everything else by ratio."""
SHARES = frozenset({"cache_hit_rate", "hit_rate_after_draft", "hit_rate_after_fallback"})
METHODS = (Method.PAPER, Method.EXACT, Method.SIM)
SIMULATED_REQUESTS = 1000
"""Requests of the simulations whose mean is the prediction: each has as few as the measured run."""
_FEWEST, _MOST = 4, 64
"""Simulations."""

Metrics = dict[str, float]


def measured_metrics(records: Records) -> Metrics:
    """The metrics of a run's records; those that the mode does not have are absent."""
    found = summarise(records)
    return {name: found[name].value for name in METRICS if name in found and math.isfinite(found[name].value)}


def sampling_errors(records: Records) -> Metrics:
    """Half widths of the metrics' 95 % bounds, which few requests make wide: relative, for shares as they are.

    A percentile too high for so few requests has no upper bound, and is left out.
    """
    found = summarise(records)
    errors = {}
    for name in METRICS:
        quantity = found.get(name)
        if quantity is None or quantity.low is None or quantity.high is None or not quantity.value:
            continue
        half = (quantity.high - quantity.low) / 2
        errors[name] = half if name in SHARES else half / quantity.value
    return errors


def scenario_of(records: Records, profile: PairProfile) -> Scenario:
    """The run's own scenario, asked of `profile`."""
    return validate(Scenario, {**records.about["scenario"], "pair": profile})


def predicted_metrics(scenario: Scenario, method: Method) -> Metrics:
    """What `method` says; empty where it does not cover the scenario."""
    try:
        if method is Method.SIM:
            return _simulated_metrics(scenario)
        found = evaluate(scenario, method).quantities
    except DomainError:
        return {}
    values = {name: found[name].value for name in METRICS if name in found}
    ssd = scenario.mode is Mode.SSD
    return {name: value for name, value in values.items() if ssd or name not in SHARES}


def _simulated_metrics(scenario: Scenario) -> Metrics:
    """Means over simulations of as many requests as were measured: percentiles depend on how many there are."""
    each = []
    wanted = -(-SIMULATED_REQUESTS // scenario.workload.num_requests)
    for number in range(min(max(wanted, _FEWEST), _MOST)):
        run = scenario.run.model_copy(update={"seed": scenario.run.seed + 1 + number})
        each.append(evaluate(scenario.model_copy(update={"run": run}), Method.SIM).quantities)
    names = [name for name in METRICS if all(name in found for found in each)]
    return {name: fmean(found[name].value for found in each) for name in names}


def swapped_profiles(profile: PairProfile, records: Records) -> dict[str, PairProfile]:
    """The profile with the run's own acceptance, its own hit curves, its own times, and several of them.

    Keys are `acceptance`, `hits`, `latency`, `tokens` (acceptance and hits) and `all`; what the run does not show
    keeps its calibrated value.
    """
    run = Run.of(records, "run")
    accepted = hit = behaviours = profile.behaviours
    if run.mode is not Mode.AR:
        own = validate(Behaviour, fit_behaviour(run.when, [run]).data)
        accepted = _replaced(profile, run, own, acceptance=True, hits=False)
        hit = _replaced(profile, run, own, acceptance=False, hits=run.mode is Mode.SSD)
        behaviours = _replaced(profile, run, own, acceptance=True, hits=run.mode is Mode.SSD)
    costs = validate(ComponentCosts, _replaced_costs(profile.costs_at(run.workload.temperature), run))
    times = {"costs": costs, "costs_when_sampled": None}  # the run's own hold at its temperature
    return {
        "acceptance": profile.model_copy(update={"behaviours": accepted}),
        "hits": profile.model_copy(update={"behaviours": hit}),
        "latency": profile.model_copy(update=times),
        "tokens": profile.model_copy(update={"behaviours": behaviours}),
        "all": profile.model_copy(update={"behaviours": behaviours, **times}),
    }


def _replaced_costs(known: Costs, run: Run) -> dict[str, object]:
    """The costs with the run's own where it shows them; steps of one lookahead hold their start as well."""
    own = costs_data(fit_costs([run]))
    starts = {f"{name}_start" for name in CHAINS if f"{name}_step" in own}
    return {name: cost for name, cost in known.model_dump(mode="json").items() if name not in starts} | own


def _replaced(
    profile: PairProfile, run: Run, own: Behaviour, *, acceptance: bool, hits: bool
) -> tuple[Behaviour, ...]:
    """The behaviours, with the one that applies to the run taking over the run's own numbers."""
    applies = profile.behaviour(
        temperature=run.workload.temperature,
        saguaro_downweight=run.drafting.saguaro_downweight,
        prompt_kind=run.workload.prompt_kind,
        drafter=run.drafting.drafter,
    )
    update: dict[str, object] = {}
    if acceptance:
        update["acceptance"] = own.acceptance
        if own.ngram_acceptance is not None:
            update["ngram_acceptance"] = own.ngram_acceptance
    if hits:
        update["hit_curves"] = own.hit_curves
    changed = applies.model_copy(update={**update, "rank_trace": None})
    return tuple(changed if behaviour is applies else behaviour for behaviour in profile.behaviours)
