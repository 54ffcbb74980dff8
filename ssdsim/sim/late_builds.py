"""What becomes of a build that outlives verification: one small function per `drafting.on_late`.

Each takes the phases of a block's rounds and says how much of a late build is made at all, how much of it is left
when the outcomes arrive, and how long the chains are that the next round finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ssdsim.scenario import Drafting
from ssdsim.sim.rounds import BoolArray, FloatArray, IntArray


class RoundTerms(NamedTuple):
    """Seconds of each phase, [rounds]; the names are those of the round table."""

    prefill_s: FloatArray
    """Reading the prompts of the requests that enter with this round, on the target."""
    lookup_s: FloatArray
    fallback_s: FloatArray
    """Drafting that the verifier waits for: SSD's misses and first rounds, all of SD's drafting; with the draft's own
    reading of new prompts."""
    reply_s: FloatArray
    verify_s: FloatArray
    accept_s: FloatArray
    outcome_s: FloatArray
    glue_s: FloatArray
    tree_s: FloatArray
    store_s: FloatArray
    host_s: FloatArray

    @property
    def window_s(self) -> FloatArray:
        """From the reply's leaving to the outcomes' arrival."""
        return self.reply_s + self.verify_s + self.accept_s + self.outcome_s

    @property
    def alone_s(self) -> FloatArray:
        """A round in which the verifier has nobody to wait for."""
        return self.prefill_s + self.window_s + self.host_s

    @property
    def build_s(self) -> FloatArray:
        """Building the next cache."""
        return self.glue_s + self.tree_s + self.store_s


class Builds(NamedTuple):
    """The builds of a block's rounds, [rounds]."""

    terms: RoundTerms
    """The phases with what is really built."""
    unbuilt_s: FloatArray
    """Part of the build that is left when the outcomes interrupt it; the next round's hits wait for it."""
    num_ready: IntArray
    """Tokens per chain that the next round's hits find."""


def settle_late_builds(terms: RoundTerms, goes_on: BoolArray, drafting: Drafting) -> Builds:
    """Builds that fit in their window as they are, late ones as `on_late` says; one that nobody needs is given up."""
    late = terms.build_s > terms.window_s
    unbuilt_s, num_ready = np.zeros(len(late)), np.full(len(late), drafting.num_speculative_tokens)
    if not late.any():
        return Builds(terms, unbuilt_s, num_ready)
    needed = Builds(_cut_at_window(terms, late & ~goes_on), unbuilt_s, num_ready)
    return _LATE_BUILDS[drafting.on_late](needed, late & goes_on)


def _wait(builds: Builds, late: BoolArray) -> Builds:
    """Everyone waits for the whole build."""
    return builds


def _abort(builds: Builds, late: BoolArray) -> Builds:
    """Outcomes interrupt it: misses are answered at once, hits wait for the rest."""
    terms = builds.terms
    return builds._replace(unbuilt_s=np.where(late, terms.build_s - terms.window_s, 0.0))


def _truncate(builds: Builds, late: BoolArray) -> Builds:
    """It ends with the window; the chains are as long as the steps that were done."""
    ready = np.where(late, _steps_done(builds.terms, builds.num_ready), builds.num_ready)
    return builds._replace(terms=_cut_at_window(builds.terms, late), num_ready=ready)


_LATE_BUILDS: dict[str, Callable[[Builds, BoolArray], Builds]] = {
    "wait": _wait,
    "abort": _abort,
    "truncate": _truncate,
}


def _steps_done(terms: RoundTerms, lookahead: IntArray) -> IntArray:
    """Tree steps that are done when the outcomes arrive, at most the lookahead."""
    step_s = terms.tree_s / np.maximum(lookahead, 1)
    steps = lookahead.astype(np.float64)
    np.divide(terms.window_s - terms.glue_s, step_s, out=steps, where=step_s > 0)
    done: IntArray = np.clip(np.floor(steps), 0, lookahead).astype(np.int64)
    return done


def _cut_at_window(terms: RoundTerms, cut: BoolArray) -> RoundTerms:
    """Builds at `cut` stop when the outcomes arrive; nothing of them is stored."""
    glue_s = np.where(cut, np.minimum(terms.glue_s, terms.window_s), terms.glue_s)
    tree_s = np.where(cut, np.minimum(terms.tree_s, terms.window_s - glue_s), terms.tree_s)
    return terms._replace(glue_s=glue_s, tree_s=tree_s, store_s=np.where(cut, 0.0, terms.store_s))
