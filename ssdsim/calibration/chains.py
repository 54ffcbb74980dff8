"""Work of equal steps one after the other: what a step takes, and what a chain takes beyond its steps.

Drafting K tokens or growing a tree K deep takes start + K step, both over the same rows or branches. Several K tell
the two apart; with a single one the steps are charged with everything. Used by `latency`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.terms import FloatArray, Observations, TermFit, fit_of, fit_term, independent, joined, regress
from ssdsim.costs.terms import LinearTerm

_CERTAIN = 2.0
"""Standard errors by which a start must stand out."""
_LEAST_SHARE = 0.05
"""Of its time, at least this part of a chain went into its steps."""


class Chains(NamedTuple):
    """Durations of whole chains."""

    seen: Observations
    num_steps: NDArray[np.int64]
    """[observations]"""


def joined_chains(parts: Sequence[Chains]) -> Chains:
    """All observations of several runs."""
    return Chains(joined([part.seen for part in parts]), np.concatenate([part.num_steps for part in parts]))


def fit_chains(chains: Chains) -> tuple[TermFit | None, TermFit]:
    """(start, step); no start where none stands out."""
    seen, num_steps = chains
    start = _fit_start(seen, num_steps)
    if start is None:
        return None, fit_term(seen._replace(seconds=seen.seconds / num_steps))
    start_s = start.term(seen.sequences, seen.query_tokens, seen.context_tokens)
    stepping_s = np.maximum(seen.seconds - start_s, _LEAST_SHARE * seen.seconds)
    return start, fit_term(seen._replace(seconds=stepping_s / num_steps))


def _fit_start(seen: Observations, num_steps: NDArray[np.int64]) -> TermFit | None:
    """From one regression over starts and steps, both linear in what they run over."""
    steps = {
        "step": num_steps.astype(np.float64),
        "step per row": num_steps * seen.sequences,
        "step per context": num_steps * seen.sequences * seen.context_tokens,
    }
    starts = {"base_s": np.ones(seen.size), "per_sequence_s": seen.sequences}
    columns: dict[str, FloatArray] = steps | starts
    names = independent(columns)
    values, covariance = regress(np.stack([columns[name] for name in names], axis=1), seen)
    kept = [i for i, name in enumerate(names) if name in starts]
    if not kept:
        return None
    mean = np.array([float(columns[names[i]].mean()) for i in kept])
    part, errors = np.array(values)[kept], covariance[np.ix_(kept, kept)]
    if part @ mean <= _CERTAIN * float(np.sqrt(max(mean @ errors @ mean, 0.0))):
        return None
    paths = tuple(names[i] for i in kept)
    term = LinearTerm.model_validate(dict(zip(paths, part.tolist(), strict=True)))
    return fit_of(term, paths, errors, seen)
