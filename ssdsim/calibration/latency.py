"""Seconds of every phase of a round, from the round tables of runs in all modes.

Every phase becomes a cost term of its own shape (see `terms`); `phases` says which rounds speak of which phase. What
a round lasts beyond its phases is host time. Reading prompts is seen where it stands alone (AR, SD); the draft's
own share is what drafting takes beyond its steps where requests enter. Verification beside a running build (SSD) may
be slower than alone (AR, SD): their ratio is the contention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration import phases
from ssdsim.calibration.chains import fit_chains, joined_chains
from ssdsim.calibration.runs import Run
from ssdsim.calibration.terms import Observations, TermFit, fit_term, joined
from ssdsim.scenario import Mode

FloatArray = NDArray[np.float64]

FEW_ROUNDS = 200
"""Fewer observations of a phase than this are few."""
_RUNS_FOR_CLUSTERS = 8
_NOTICEABLE = 0.005
"""A contention smaller than this is none."""
_CERTAIN = 2.0
"""Standard errors by which a contention must stand out."""


@dataclass(frozen=True, kw_only=True)
class CostsFit:
    """All that the runs say about times."""

    terms: dict[str, TermFit]
    """By the name of the field in `ComponentCosts`."""
    verify_contention: float
    verify_contention_error: float
    jitter: dict[str, float]
    pads_to_widest: bool
    """Whether verification takes as long as if every row were as wide as the widest one of its round."""
    warnings: tuple[str, ...]


def fit_costs(runs: Sequence[Run]) -> CostsFit:
    """Fit every phase that `runs` show; phases that they do not show are absent and named in the warnings."""
    return _fit(runs, *_fit_verify(runs))


def fit_costs_by_sampling(runs: Sequence[Run]) -> tuple[CostsFit, CostsFit | None]:
    """(costs, costs above temperature 0); the latter are absent where the runs are all greedy or all sampled.

    Forwards of the target take the same time in both, and are fitted together.
    """
    sampled = [run for run in runs if run.workload.temperature > 0]
    greedy = [run for run in runs if run.workload.temperature == 0]
    if not (sampled and greedy):
        return fit_costs(runs), None
    verify = _fit_verify(runs)
    everything = _fit(runs, *verify)
    cold, warm = (_fit(part, *verify) for part in (greedy, sampled))
    return (
        replace(cold, terms={**everything.terms, **cold.terms}),
        replace(warm, terms={**everything.terms, **warm.terms}, warnings=()),
    )


def _fit(runs: Sequence[Run], verify: TermFit, contention: float, error: float, pads: bool) -> CostsFit:
    terms = {"verify": verify}
    for name, observe in phases.OBSERVED.items():
        if (found := _fit_phase(runs, observe)) is not None:
            terms[name] = found
    # In one process with its drafter (SD), what is handed over counts with drafting where other modes tell it apart.
    apart = [run for run in runs if run.mode is not Mode.SD]
    if (host := _fit_phase(apart or runs, phases.host)) is not None:
        terms["host"] = host
    terms |= _fit_all_chains(runs, terms)
    terms |= _fit_prefills(runs, terms)
    return CostsFit(
        terms=terms,
        verify_contention=contention,
        verify_contention_error=error,
        jitter=_jitter(terms),
        pads_to_widest=pads,
        warnings=tuple(_warnings(runs, terms, pads)),
    )


def _fit_phase(runs: Sequence[Run], observe: Callable[[Run], Observations | None]) -> TermFit | None:
    parts = [part for run in runs if (part := observe(run)) is not None and part.size]
    return fit_term(joined(_by_run(parts))) if parts else None


def _by_run(parts: Sequence[Observations]) -> list[Observations]:
    """With enough runs, what a run has in common counts as one disturbance: machines drift from run to run."""
    if len(parts) < _RUNS_FOR_CLUSTERS:
        return list(parts)
    return [part._replace(cluster=np.zeros_like(part.cluster)) for part in parts]


def _fit_verify(runs: Sequence[Run]) -> tuple[TermFit, float, float, bool]:
    """The term, contention with its error, and whether rows are padded to the widest."""
    ragged = _fit_with_contention(runs, [phases.verify(run, padded=False) for run in runs])
    if not any(np.any(run.widest_query_tokens != run.query_tokens) for run in runs):
        return *ragged, False
    padded = _fit_with_contention(runs, [phases.verify(run, padded=True) for run in runs])
    pads = _total_error(padded[0]) < _total_error(ragged[0])
    return *(padded if pads else ragged), pads


def _total_error(fit: TermFit) -> float:
    return float(np.hypot(fit.noise, fit.misfit))


def _fit_with_contention(runs: Sequence[Run], seen: Sequence[Observations]) -> tuple[TermFit, float, float]:
    together = np.array([run.mode is Mode.SSD for run in runs])
    seen = _by_run(seen)
    fit = fit_term(joined(seen))
    if together.all() or not together.any():
        return fit, 1.0, 0.0
    factor, error = 1.0, 0.0
    for _ in range(4):
        ratios = np.array([_ratio(fit, part) for part in seen])
        factor = float(ratios[together].mean() / ratios[~together].mean())
        error = _error_of_ratio(ratios, together)
        scaled = [
            part._replace(seconds=part.seconds / (factor if beside else 1.0))
            for part, beside in zip(seen, together, strict=True)
        ]
        fit = fit_term(joined(scaled))
    if abs(factor - 1) < max(_NOTICEABLE, _CERTAIN * error):
        return fit_term(joined(seen)), 1.0, error
    return fit, factor, error


def _ratio(fit: TermFit, seen: Observations) -> float:
    """Observed over predicted time of one run."""
    return float(seen.seconds.sum() / fit.term(seen.sequences, seen.query_tokens, seen.context_tokens).sum())


def _error_of_ratio(ratios: FloatArray, together: NDArray[np.bool_]) -> float:
    """Standard error from the differences between runs; with a single run on either side it is not known."""
    groups = [ratios[together], ratios[~together]]
    freedom = len(ratios) - 2
    if freedom < 1:
        return float("inf")
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    return float(np.sqrt(variance * sum(1 / len(group) for group in groups)))


def _fit_all_chains(runs: Sequence[Run], terms: dict[str, TermFit]) -> dict[str, TermFit]:
    found: dict[str, TermFit] = {}
    for name, observe in phases.CHAINS.items():
        parts = [part for run in runs if (part := observe(run, terms)) is not None and part.seen.size]
        if not parts:
            continue
        seen = _by_run([part.seen for part in parts])
        start, step = fit_chains(joined_chains([part._replace(seen=s) for part, s in zip(parts, seen, strict=True)]))
        found[f"{name}_step"] = step
        if start is not None:
            found[f"{name}_start"] = start
    return found


def _fit_prefills(runs: Sequence[Run], terms: dict[str, TermFit]) -> dict[str, TermFit]:
    """Reading prompts on the target and on the draft, where they stand out from the noise."""
    alone = [part for run in runs if (part := phases.prefill(run)) is not None]
    outliving = [part for run in runs if (part := phases.outliving_prefill(run)) is not None]
    on_draft = [part for run in runs if (part := phases.draft_prefill(run, terms)) is not None]
    seen = {"prefill": alone or outliving, "draft_prefill": on_draft}
    return {name: fit_term(found) for name, parts in seen.items() if (found := _standing_out(parts)) is not None}


def _standing_out(parts: Sequence[Observations]) -> Observations | None:
    """The observations, none of them below zero; nothing where they are not surely above it."""
    if not parts:
        return None
    seen = joined(_by_run(parts))
    error = float(seen.seconds.std() / np.sqrt(seen.size)) if seen.size > 1 else 0.0
    if seen.seconds.mean() <= _CERTAIN * error:
        return None
    return seen._replace(seconds=np.maximum(seen.seconds, 0.0))


def _jitter(terms: dict[str, TermFit]) -> dict[str, float]:
    """Coefficients of variation; drafting's is that of its phases together, weighted by their observations."""
    drafting = [terms[name] for name in ("draft_step", "jit_step", "glue", "tree_step") if name in terms]
    found = {"verify": terms["verify"].noise}
    if drafting:
        weights = [fit.num_observations for fit in drafting]
        found["draft"] = float(np.sqrt(np.average([fit.noise**2 for fit in drafting], weights=weights)))
    if "host" in terms and any(terms["host"].paths):
        found["host"] = terms["host"].noise
    return found


def _warnings(runs: Sequence[Run], terms: dict[str, TermFit], pads: bool) -> list[str]:
    modes = {run.mode for run in runs}
    found = [
        f"costs.{name}: rests on {fit.num_observations} observations only"
        for name, fit in terms.items()
        if fit.num_observations < FEW_ROUNDS and name not in ("prefill", "draft_prefill")
    ]
    if Mode.AR not in modes:
        found.append("costs.verify: no AR run among these, so the width of one token per row is extrapolated")
    if Mode.SD not in modes:
        found.append("costs.draft_step: no SD run among these; the speculator's own steps stand in")
    if modes == {Mode.SSD} and "prefill" in terms:
        found.append(
            "costs.prefill: no AR or SD run among these; seen only where it outlived the speculator's first drafting"
        )
    if Mode.SSD not in modes:
        found.append(
            "costs.tree_step: no SSD run among these; SD's draft step stands in, and nothing is known of overlap"
        )
    elif "jit_step" not in terms:
        found.append("costs.jit_step: nothing was drafted just in time; the tree step at that width stands in")
    if pads:
        found.append(
            "costs.verify: verification takes as long as its widest row; set drafting.padded_verify=true for batches"
        )
    found += [
        f"costs.{name}: its shape leaves {100 * fit.misfit:.1f} % unexplained"
        for name, fit in terms.items()
        if fit.misfit > 0.05 and name in {"verify", "draft_step", "glue", "tree_step", "jit_step"}
    ]
    return found
