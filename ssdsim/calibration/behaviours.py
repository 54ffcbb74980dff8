"""How the pair behaves under one set of conditions: acceptance, hit curves, and what is said of them.

Used by `profile_from_records`. Acceptance at several lookaheads is taken as one list where the observations do not
tell them apart, and kept apart where they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.acceptance import FEW_REQUESTS, AcceptanceFit, fit_acceptance
from ssdsim.calibration.estimates import Estimates, rounded
from ssdsim.calibration.guesses import APART, POSITIONS, count_guesses
from ssdsim.calibration.miss_law import FEW_TRIALS, MissLawFit, fit_hit_curve
from ssdsim.calibration.runs import DRAFTED, Run
from ssdsim.calibration.trials import Trials, count_trials
from ssdsim.profile import When
from ssdsim.rank_trace import rank_trace_of
from ssdsim.records import Source

FloatArray = NDArray[np.float64]

_FEW_REACHED = 50
"""A position that was reached less often is little known."""
_WIDEST = 0.98
"""Share of the widest possible spread that a profile may hold."""
_TELLS_APART = 0.05
"""Probability of so large a difference between lookaheads by chance, below which they are kept apart."""
_APART_FROM = 100
"""Rejected guesses of either kind from which curves are kept apart."""
_UNKNOWN_CURVE = {"kind": "table", "hit_probs": [0.0, 0.0]}


@dataclass(frozen=True, kw_only=True)
class BehaviourFit:
    """One entry of a profile's `behaviours` in plain data."""

    data: dict[str, Any]
    estimates: list[Estimates]
    """Paths are relative to the behaviour."""
    sources: dict[str, str]
    """What a part rests on."""
    warnings: list[str] = field(default_factory=list)


def fit_behaviour(when: When, runs: Sequence[Run], *, with_trace: bool = False) -> BehaviourFit:
    """The behaviour that `runs`, all under the conditions `when`, show."""
    fit = BehaviourFit(data={"when": when.model_dump(exclude_none=True)}, estimates=[], sources={})
    _add_acceptance(fit, runs)
    _add_ngram_acceptance(fit, runs)
    _add_curves(fit, runs)
    if with_trace and when.temperature == 0 and (trace := _longest_trace(runs)):
        fit.data["rank_trace"] = {"requests": trace}
        fit.sources["rank_trace"] = f"{len(trace)} requests"
    return fit


def _add_acceptance(fit: BehaviourFit, runs: Sequence[Run]) -> None:
    trials = count_trials(runs, DRAFTED)
    apart = _fit_reached(trials)
    pooled = _fit_reached(trials.pooled()) if len(trials.lookaheads) > 1 else apart
    kept_apart = len(trials.lookaheads) > 1 and chance_of_difference(apart) < _TELLS_APART
    chosen, longest = (apart if kept_apart else pooled), trials.lookaheads[-1]
    spread = chosen.spread
    data: dict[str, Any] = {"per_position": _by_position(pooled, spread, longest), "spread": rounded(spread)}
    paths = [f"acceptance.per_position.{position}" for position in chosen.position]
    if kept_apart:
        data["by_lookahead"] = [_by_position(chosen, spread, k, chosen.of_lookahead(k)) for k in trials.lookaheads]
        rows = {k: row for row, k in enumerate(trials.lookaheads)}
        pairs = zip(chosen.lookahead.tolist(), chosen.position.tolist(), strict=True)
        paths = [f"acceptance.by_lookahead.{rows[k]}.{position}" for k, position in pairs]
    fit.data["acceptance"] = data
    fit.estimates.append(Estimates((*paths, "acceptance.spread"), chosen.covariance))
    count, requests = int(trials.reached.sum()), trials.num_requests
    fit.sources["acceptance"] = f"{count} drafted tokens of {requests} requests, lookahead {trials.lookaheads}"
    fit.warnings.extend(_acceptance_warnings(trials, chosen))


def _fit_reached(trials: Trials) -> AcceptanceFit:
    """The fit of the columns that were ever reached."""
    reached = np.flatnonzero(trials.reached.sum(axis=0) > 0)
    return fit_acceptance(
        Trials(
            trials.lookahead[reached],
            trials.position[reached],
            trials.reached[:, reached],
            trials.accepted[:, reached],
        )
    )


def _by_position(
    fit: AcceptanceFit, spread: float, length: int, columns: NDArray[np.intp] | None = None
) -> list[float]:
    """Means at positions 0 .. length - 1; the last known one stands for positions that were never reached.

    A mean so close to 0 or 1 that requests cannot differ by `spread` around it is moved to where they can.
    """
    chosen = np.arange(len(fit.mean)) if columns is None else columns
    edge = (1 - np.sqrt(max(1 - 4 * (spread / _WIDEST) ** 2, 0.0))) / 2
    means = np.clip(fit.mean[chosen], edge, 1 - edge)
    known = dict(zip(fit.position[chosen].tolist(), means.tolist(), strict=True))
    values: list[float] = []
    for position in range(length):
        values.append(rounded(known.get(position, values[-1] if values else 0.0)))
    return values


def chance_of_difference(fit: AcceptanceFit) -> float:
    """Probability that equal acceptance at all lookaheads brings about differences as large as these.

    A Wald test on the robust covariance, with Hotelling's correction for few requests; 1 where nothing can be said.
    """
    from scipy.special import fdtrc

    contrasts = []
    for position in np.unique(fit.position):
        columns = np.flatnonzero(fit.position == position)
        for other in columns[1:]:
            contrast = np.zeros(len(fit.mean))
            contrast[columns[0]], contrast[other] = 1.0, -1.0
            contrasts.append(contrast)
    freedom = fit.num_requests - len(contrasts)
    if not contrasts or freedom < 2:
        return 1.0
    matrix = np.array(contrasts)
    difference = matrix @ fit.mean
    covariance = matrix @ fit.covariance[:-1, :-1] @ matrix.T
    statistic = float(difference @ np.linalg.pinv(covariance) @ difference)
    scaled = statistic * freedom / (len(contrasts) * max(fit.num_requests - 1, 1))
    return float(fdtrc(len(contrasts), freedom, scaled))


def _acceptance_warnings(trials: Trials, fit: AcceptanceFit) -> Iterator[str]:
    if trials.num_requests < FEW_REQUESTS:
        yield f"acceptance: {trials.num_requests} requests only, so they are taken as alike"
    columns = zip(trials.lookahead, trials.position, trials.reached.sum(axis=0), strict=True)
    few = [f"{i + 1} at lookahead {k} ({int(n)} times)" for k, i, n in columns if n < _FEW_REACHED]
    if few:
        yield f"acceptance: positions that were hardly reached: {', '.join(few)}"
    if len(trials.lookaheads) == 1:
        yield (
            f"acceptance: seen at lookahead {trials.lookaheads[0]} only; it may differ at others where difficulty "
            "persists along the text: calibrate at several, or from a rank trace"
        )


def _add_ngram_acceptance(fit: BehaviourFit, runs: Sequence[Run]) -> None:
    lengths = [
        int(run.outcomes["num_proposed"][run.outcomes["source"] == Source.NGRAM].max(initial=0)) for run in runs
    ]
    if not any(lengths):
        return
    trials = count_trials(runs, (Source.NGRAM,), max(lengths)).pooled()
    found = _fit_reached(trials)
    fit.data["ngram_acceptance"] = {
        "per_position": _by_position(found, found.spread, max(lengths)),
        "spread": rounded(found.spread),
    }
    paths = (*(f"ngram_acceptance.per_position.{i}" for i in found.position), "ngram_acceptance.spread")
    fit.estimates.append(Estimates(paths, found.covariance))
    fit.sources["ngram_acceptance"] = f"{int(trials.reached.sum())} tokens of {trials.num_requests} requests"


def _add_curves(fit: BehaviourFit, runs: Sequence[Run]) -> None:
    found = _fitted_curves(runs)
    curves: dict[str, dict[str, Any]] = {"after_draft": {"rejection": dict(_UNKNOWN_CURVE)}}
    for (after, position), curve in found.items():
        plain = curve.curve.model_dump(mode="json", exclude_none=True)
        curves.setdefault(after, {})[position] = _rounded_curve(plain)
        prefix = f"hit_curves.{after}.{position}"
        fit.estimates.append(Estimates(tuple(f"{prefix}.{path}" for path in curve.paths), curve.covariance))
        fit.sources[prefix] = f"{curve.num_trials} bonus tokens of {curve.num_requests} requests{_verdict(curve)}"
    fallback = curves.get("after_fallback")
    if fallback is not None and "rejection" not in fallback:
        fallback["rejection"] = {key: v for key, v in fallback["all_accepted"].items() if key != "counted"}
    fit.data["hit_curves"] = curves
    fit.warnings.extend(_curve_warnings(found))


def _fitted_curves(runs: Sequence[Run]) -> dict[tuple[str, str], MissLawFit]:
    """Curves by their place in `HitCurves`; drafted rounds after a miss apart where both kinds are known well."""
    counted = {place: count_guesses(runs, place) for place in (*POSITIONS, *APART)}
    known = (counted[after, "rejection"].num_guesses for after in ("after_hit", "after_redraft"))
    apart = min(known) >= _APART_FROM
    for position in ("rejection", "all_accepted"):
        after_hit = counted.pop(("after_hit", position))
        if apart and after_hit.num_guesses:
            counted["after_draft", position] = after_hit
        elif not apart:
            del counted["after_redraft", position]
    return {place: curve for place, counts in counted.items() if (curve := fit_hit_curve(counts))}


def _verdict(curve: MissLawFit) -> str:
    if curve.curve.kind == "power":
        return "" if np.isnan(curve.p_value) else f"; a power law fits (p = {curve.p_value:.2g})"
    if np.isnan(curve.p_value):
        return "; too few fan-outs for a law, hence the table"
    return f"; not a power law (p = {curve.p_value:.2g}, off by up to {curve.largest_deviation:.3f}), hence the table"


def _curve_warnings(found: Mapping[tuple[str, str], MissLawFit]) -> Iterator[str]:
    if ("after_draft", "rejection") not in found:
        yield "hit_curves: no SSD run under these conditions, so nothing is known of the cache: hit rates are zero"
    for (after, position), curve in found.items():
        if curve.num_trials < FEW_TRIALS and (after, position) != ("after_fallback", "rejection"):
            yield f"hit_curves.{after}.{position}: rests on {curve.num_trials} bonus tokens only"
        if curve.curve.kind == "table" and len(curve.curve.counted.fan_outs if curve.curve.counted else ()) == 1:
            yield f"hit_curves.{after}.{position}: seen at one fan-out only; others are interpolated"


def _rounded_curve(data: dict[str, Any]) -> dict[str, Any]:
    for key in ("miss_prefactor", "miss_exponent"):
        if key in data:
            data[key] = rounded(data[key])
    if "hit_probs" in data:
        data["hit_probs"] = np.maximum.accumulate([rounded(p) for p in data["hit_probs"]]).tolist()
    return data


def _longest_trace(runs: Sequence[Run]) -> list[list[int]]:
    traces = [trace for run in runs if (trace := rank_trace_of(run.outcomes))]
    return max(traces, key=lambda trace: sum(map(len, trace)), default=[])
