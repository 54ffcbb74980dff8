"""Which rounds of a run speak of which phase, and in what shape: the input of every cost term's fit.

Each function returns the observations of one phase in one run, or nothing where the run does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.runs import Run
from ssdsim.calibration.terms import Observations, TermFit, observations
from ssdsim.records import Fallback
from ssdsim.scenario import Mode

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_ROUNDS_PER_CLUSTER = 25
"""Rounds in a row that share what disturbs the machine."""
_LEAST_CLEAN = 30
"""So many rounds without an admission suffice to leave those with one out."""


def verify(run: Run, *, padded: bool) -> Observations:
    """Verification; `padded` counts every row as wide as the widest one of its round."""
    query_tokens = run.widest_query_tokens if padded else run.query_tokens
    return _seen(run, "verify_s", _all(run), query_tokens=query_tokens)


def draft_step(run: Run) -> Observations | None:
    """One step of SD's drafter."""
    if run.mode is not Mode.SD or not run.lookahead:
        return None
    steps = run.lookahead + run.drafting.sd_extra_step
    return _seen(run, "fallback_s", _without_admissions(run, _all(run)), divided_by=steps)


def jit_step(run: Run) -> Observations | None:
    """One step of a chain that is drafted just in time, by SSD's speculator."""
    if run.mode is not Mode.SSD or not run.lookahead:
        return None
    # A first round is drafted as well, but behind the draft's own prefill.
    chosen = (run.rounds["fallback"] == Fallback.JIT) & (run.rounds["num_first"] == 0)
    return _seen(run, "fallback_s", chosen, sequences=jit_rows(run), divided_by=run.lookahead)


def glue(run: Run) -> Observations | None:
    """The glue forward."""
    if run.mode is not Mode.SSD:
        return None
    return _seen(run, "glue_s", _built(run), query_tokens=run.rounds["num_query_tokens"])


def tree_step(run: Run) -> Observations | None:
    """One step over all branches of one draft device; builds that may have been cut short say nothing."""
    if run.mode is not Mode.SSD or not run.lookahead or run.drafting.on_late != "wait":
        return None
    branches = -(-run.rounds["num_branches"] // run.placement.num_draft_devices)
    return _seen(run, "tree_s", _built(run), sequences=branches, divided_by=run.lookahead)


def store(run: Run) -> Observations | None:
    """Storing the branches."""
    if run.mode is not Mode.SSD or run.drafting.on_late != "wait":
        return None
    return _seen(run, "store_s", _built(run), sequences=run.rounds["num_branches"])


def lookup(run: Run) -> Observations | None:
    """Looking outcomes up."""
    return _seen(run, "lookup_s", _all(run)) if run.mode is Mode.SSD else None


def ngram(run: Run) -> Observations | None:
    """Proposing by n-gram look-up."""
    if run.mode is not Mode.SSD:
        return None
    chosen = (run.rounds["fallback"] == Fallback.NGRAM) & (run.rounds["num_first"] == 0)
    return _seen(run, "fallback_s", chosen, sequences=run.rounds["num_misses"]) if chosen.any() else None


def accept(run: Run) -> Observations | None:
    """Deciding what is accepted."""
    return None if run.mode is Mode.AR else _seen(run, "accept_s", _all(run), query_tokens=run.query_tokens)


def sample(run: Run) -> Observations | None:
    """AR's choice of the next token."""
    return _seen(run, "accept_s", _all(run)) if run.mode is Mode.AR else None


def reply(run: Run) -> Observations | None:
    """The speculations' way to the verifier."""
    return _seen(run, "reply_s", _all(run), query_tokens=run.query_tokens) if run.mode is Mode.SSD else None


def outcome(run: Run) -> Observations | None:
    """The outcomes' way back, where the speculator was waiting before they left: else they wait for its build."""
    if run.mode is not Mode.SSD:
        return None
    return _seen(run, "outcome_s", run.rounds["speculator_wait_s"] >= run.rounds["outcome_s"])


def host(run: Run) -> Observations | None:
    """What a round lasts beyond its phases, admissions aside."""
    chosen = _without_admissions(run, _all(run))
    rest = np.maximum(beyond_phases(run), 0.0)
    return _observed(run, rest, chosen)


OBSERVED: Mapping[str, Callable[[Run], Observations | None]] = {
    "draft_step": draft_step,
    "jit_step": jit_step,
    "glue": glue,
    "tree_step": tree_step,
    "store": store,
    "lookup": lookup,
    "ngram": ngram,
    "accept": accept,
    "sample": sample,
    "reply": reply,
    "outcome": outcome,
    "host": host,
}
"""The phases by the name of their field in `ComponentCosts`; verification is treated on its own."""


def prefill(run: Run, terms: Mapping[str, TermFit]) -> Observations | None:
    """The mean time per admitted request that a run spent beyond its phases, host time and drafting; one observation.

    A request's prefill may fall into its first round or end the round before, so all rounds are summed.
    """
    num_admitted = int(run.admitted.sum())
    if not num_admitted:
        return None
    batch = run.rounds["batch_size"]
    rest = beyond_phases(run) - terms["host"].term(batch, batch, 0)
    rest = rest + _drafting_beyond_steps(run, terms)
    prompts = run.records.requests.columns()["prompt_tokens"]
    seconds = max(float(rest.sum()) / num_admitted, -1.0)
    return observations(1, float(prompts.mean()) if len(prompts) else 1.0, 0, [seconds], 0)


def beyond_phases(run: Run) -> FloatArray:
    """[rounds] what each round lasts beyond drafting, verification and messages, a late build included in these.

    Where a late build may be cut or left waiting for, the phases overlap in other ways, and the recorded host time is
    taken.
    """
    rounds = run.rounds
    if run.mode is Mode.AR:
        rest = rounds["round_s"] - rounds["verify_s"] - rounds["accept_s"]
    elif run.mode is Mode.SD:
        rest = rounds["round_s"] - rounds["fallback_s"] - rounds["verify_s"] - rounds["accept_s"]
    elif run.drafting.on_late == "wait":
        window = rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"] + rounds["outcome_s"]
        build = rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"]
        rest = rounds["round_s"] - rounds["lookup_s"] - rounds["fallback_s"] - np.maximum(window, build)
    else:
        rest = rounds["host_s"]
    return np.asarray(rest, dtype=np.float64)


def jit_rows(run: Run) -> NDArray[np.int64]:
    """[rounds] rows that were drafted before verification could start."""
    rounds = run.rounds
    misses = rounds["num_misses"]
    rows = rounds["num_first"] + np.where(rounds["fallback"] == Fallback.JIT, misses, 0)
    if run.drafting.redraft_hits:
        rows = np.where(misses > 0, rounds["batch_size"], rows)
    return np.asarray(rows, dtype=np.int64)


def _drafting_beyond_steps(run: Run, terms: Mapping[str, TermFit]) -> FloatArray:
    """[rounds] what drafting took beyond its steps in rounds with admissions: the draft's own prefill."""
    rounds = run.rounds
    nothing = np.zeros(len(rounds["round"]))
    if run.mode is Mode.AR or not run.lookahead:
        return nothing
    name, rows = ("draft_step", rounds["batch_size"]) if run.mode is Mode.SD else ("jit_step", jit_rows(run))
    if name not in terms:
        return nothing
    steps = run.lookahead + (run.drafting.sd_extra_step if run.mode is Mode.SD else 0)
    expected = steps * terms[name].term(rows, rows, rounds["context_tokens"])
    return np.where(run.admitted > 0, rounds["fallback_s"] - expected, nothing)


def _all(run: Run) -> BoolArray:
    return np.ones(len(run.rounds["round"]), dtype=bool)


def _built(run: Run) -> BoolArray:
    """Rounds in which something was built."""
    built: BoolArray = run.rounds["glue_s"] + run.rounds["tree_s"] > 0
    return built & (run.rounds["num_branches"] > 0)


def _without_admissions(run: Run, chosen: BoolArray) -> BoolArray:
    """The chosen rounds that neither admit a request nor precede one that does, if there are enough."""
    admits = run.admitted > 0
    clean = chosen & ~admits & ~np.append(admits[1:], False)
    return clean if clean.sum() >= min(_LEAST_CLEAN, max(chosen.sum() // 4, 1)) else chosen


def _seen(
    run: Run,
    column: str,
    chosen: BoolArray,
    *,
    sequences: NDArray[np.integer] | None = None,
    query_tokens: NDArray[np.integer] | None = None,
    divided_by: int = 1,
) -> Observations:
    """Column `column` at the chosen rounds, of the whole batch with one query token each unless told otherwise."""
    seconds = np.asarray(run.rounds[column], dtype=np.float64) / divided_by
    return _observed(run, seconds, chosen, sequences, query_tokens)


def _observed(
    run: Run,
    seconds: FloatArray,
    chosen: BoolArray,
    sequences: NDArray[np.integer] | None = None,
    query_tokens: NDArray[np.integer] | None = None,
) -> Observations:
    rows = run.rounds["batch_size"] if sequences is None else sequences
    width = rows if query_tokens is None else query_tokens
    cluster = np.arange(len(seconds)) // _ROUNDS_PER_CLUSTER
    columns = (rows, width, run.rounds["context_tokens"], seconds, cluster)
    return observations(*(column[chosen] for column in columns))
