"""Which rounds of a run speak of which phase, and in what shape: the input of every cost term's fit.

Each function returns the observations of one phase in one run, or nothing where the run does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.chains import Chains
from ssdsim.calibration.runs import Run
from ssdsim.calibration.terms import Observations, TermFit, observations
from ssdsim.records import Fallback
from ssdsim.scenario import Mode

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Terms = Mapping[str, TermFit]
"""Phases that have been fitted, by the name of their field."""

_ROUNDS_PER_CLUSTER = 25
"""Rounds in a row that share what disturbs the machine."""
_LEAST_CLEAN = 30
"""So many rounds without an admission suffice to leave those with one out."""


def verify(run: Run, *, padded: bool) -> Observations:
    """Verification; `padded` counts every row as wide as the widest one of its round."""
    query_tokens = run.widest_query_tokens if padded else run.query_tokens
    return _seen(run, "verify_s", _all(run), query_tokens=query_tokens)


def draft_chain(run: Run, terms: Terms) -> Chains | None:
    """A chain of SD's drafter."""
    if run.mode is not Mode.SD or not run.lookahead:
        return None
    steps = run.lookahead + run.drafting.sd_extra_step
    return _chains(_observed(run, sd_drafting_s(run, terms), _without_admissions(run, _all(run))), steps)


def jit_chain(run: Run, terms: Terms) -> Chains | None:
    """A chain that is drafted just in time, by SSD's speculator."""
    if run.mode is not Mode.SSD or not run.lookahead:
        return None
    # A first round is drafted as well, but behind the draft's own prefill.
    chosen = (run.rounds["fallback"] == Fallback.JIT) & (run.rounds["num_first"] == 0)
    return _chains(_seen(run, "fallback_s", chosen, sequences=jit_rows(run)), run.lookahead)


def glue(run: Run) -> Observations | None:
    """The glue forward."""
    if run.mode is not Mode.SSD:
        return None
    return _seen(run, "glue_s", _built(run), query_tokens=run.rounds["num_query_tokens"])


def tree_chain(run: Run, terms: Terms) -> Chains | None:
    """A tree over all branches of one draft device; builds that may have been cut short say nothing."""
    if run.mode is not Mode.SSD or not run.lookahead or run.drafting.on_late != "wait":
        return None
    branches = -(-run.rounds["num_branches"] // run.placement.num_draft_devices)
    return _chains(_seen(run, "tree_s", _built(run), sequences=branches), run.lookahead)


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
    "glue": glue,
    "store": store,
    "lookup": lookup,
    "ngram": ngram,
    "accept": accept,
    "sample": sample,
    "reply": reply,
    "outcome": outcome,
}
"""The phases by the name of their field in `ComponentCosts`; verification and host time are treated on their own."""

CHAINS: Mapping[str, Callable[[Run, Terms], Chains | None]] = {
    "draft": draft_chain,
    "jit": jit_chain,
    "tree": tree_chain,
}
"""Work of several steps: `NAME_start` and `NAME_step` in `ComponentCosts`."""


def prefill(run: Run) -> Observations | None:
    """Reading one request's prompt on the target, where nothing else goes on (AR, SD)."""
    return None if run.mode is Mode.SSD else _per_admission(run, run.rounds["prefill_s"], _all(run))


def outliving_prefill(run: Run) -> Observations | None:
    """The same beside SSD's speculator, in the rounds that had to wait for it: what stands in without AR and SD."""
    if run.mode is not Mode.SSD or run.drafting.on_late != "wait":
        return None
    rounds = run.rounds
    late = np.append(0.0, np.maximum(build_s(run) - window_s(run), 0.0)[:-1])
    read_s = rounds["prefill_s"] + rounds["lookup_s"] + rounds["fallback_s"] + late
    return _per_admission(run, read_s, rounds["prefill_s"] > 0)


def draft_prefill(run: Run, terms: Terms) -> Observations | None:
    """Reading one request's prompt on the draft: what a chain takes beyond what is known of it where requests enter.

    The mean of the run, as one observation: drafting varies by more than a short prompt takes.
    """
    name, drafted = "draft" if run.mode is Mode.SD else "jit", run.admitted > 0
    if run.mode is Mode.SSD and run.drafting.first_round == "miss":
        drafted = drafted & (run.rounds["fallback"] == Fallback.JIT)
    if run.mode is Mode.AR or not run.lookahead or f"{name}_step" not in terms or not drafted.any():
        return None
    if run.mode is Mode.SD:
        rows, steps = run.rounds["batch_size"], run.lookahead + run.drafting.sd_extra_step
        drafting_s = sd_drafting_s(run, terms)
    else:
        rows, steps, drafting_s = jit_rows(run), run.lookahead, run.rounds["fallback_s"]
    chain_s = steps * _time_of(terms, f"{name}_step", run, rows) + _time_of(terms, f"{name}_start", run, rows)
    admitted, prompt_tokens = run.admissions
    seconds = float((drafting_s - chain_s)[drafted].sum() / admitted[drafted].sum())
    return observations(1, float(np.average(prompt_tokens, weights=admitted)), 0, [seconds], 0)


def sd_drafting_s(run: Run, terms: Terms) -> FloatArray:
    """[rounds] SD's drafting as its verifier sees it: all that is neither verification nor host time.

    What handing the tokens over takes is so charged to drafting, not to the host time of all modes.
    """
    host_s = _time_of(terms, "host", run, run.rounds["batch_size"])
    drafting_s: FloatArray = run.rounds["fallback_s"] + beyond_phases(run) - host_s
    return drafting_s


def _time_of(terms: Terms, name: str, run: Run, rows: NDArray[np.integer]) -> FloatArray:
    """[rounds] what is known of a phase over `rows`; nothing where it has not been fitted."""
    if name not in terms:
        return np.zeros(len(rows))
    return np.asarray(terms[name].term(rows, rows, run.rounds["context_tokens"]))


def window_s(run: Run) -> FloatArray:
    """[rounds] from the reply's leaving to the outcomes' arrival."""
    rounds = run.rounds
    window: FloatArray = rounds["reply_s"] + rounds["verify_s"] + rounds["accept_s"] + rounds["outcome_s"]
    return window


def build_s(run: Run) -> FloatArray:
    """[rounds] building the next cache."""
    build: FloatArray = run.rounds["glue_s"] + run.rounds["tree_s"] + run.rounds["store_s"]
    return build


def beyond_phases(run: Run) -> FloatArray:
    """[rounds] what each round lasts beyond prefill, drafting, verification and messages, a late build included.

    Where a late build may be cut or left waiting for, the phases overlap in other ways, and the recorded host time is
    taken.
    """
    rounds = run.rounds
    others = rounds["round_s"] - rounds["prefill_s"]
    if run.mode is Mode.AR:
        rest = others - rounds["verify_s"] - rounds["accept_s"]
    elif run.mode is Mode.SD:
        rest = others - rounds["fallback_s"] - rounds["verify_s"] - rounds["accept_s"]
    elif run.drafting.on_late == "wait":
        rest = others - rounds["lookup_s"] - rounds["fallback_s"] - np.maximum(window_s(run), build_s(run))
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


def _per_admission(run: Run, seconds: FloatArray, chosen: BoolArray) -> Observations | None:
    """`seconds` [rounds] per request that enters, by the length of their prompts, at the chosen rounds."""
    admitted, prompt_tokens = run.admissions
    chosen = chosen & (admitted > 0)
    if not chosen.any():
        return None
    cluster = np.arange(len(seconds)) // _ROUNDS_PER_CLUSTER
    return observations(1, prompt_tokens[chosen], 0, (seconds / np.maximum(admitted, 1))[chosen], cluster[chosen])


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
) -> Observations:
    """Column `column` at the chosen rounds, of the whole batch with one query token each unless told otherwise."""
    seconds = np.asarray(run.rounds[column], dtype=np.float64)
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


def _chains(seen: Observations, num_steps: int) -> Chains:
    return Chains(seen, np.full(seen.size, num_steps))
