"""From what the rows of a round do to how long each phase of the round takes.

The counts of a block of rounds are known before the clock runs, so the cost model is asked once per block and phase,
with arrays. The processes then only play the times against each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.costs.models import ComponentCosts, RatioCosts
from ssdsim.costs.terms import LinearTerm, SumTerm, TableTerm
from ssdsim.records import Fallback
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim.late_builds import RoundTerms, settle_late_builds
from ssdsim.sim.rounds import FloatArray, IntArray, RoundBlock, RowCounts
from ssdsim.sim.streams import Stream, Streams


class TimedRounds(NamedTuple):
    """A block's rounds in seconds."""

    query_tokens: IntArray
    """Of each verification."""
    terms: RoundTerms
    unbuilt_s: FloatArray
    """Part of the build that is left when the outcomes interrupt it."""
    num_ready: IntArray
    """Tokens per chain that the next round's hits find: the lookahead, or less where a late build was truncated."""


class RoundTimes:
    """The phases of a scenario's rounds."""

    def __init__(self, scenario: Scenario, streams: Streams) -> None:
        self._mode, self._drafting = scenario.mode, scenario.drafting
        self._lookahead = 0 if scenario.mode is Mode.AR else scenario.drafting.num_speculative_tokens
        self._costs = scenario.costs
        self._num_draft_devices = scenario.placement.num_draft_devices
        self._streams = streams
        jitter = self._costs.jitter
        self._repeats = not (reads_context(self._costs) or jitter.verify or jitter.draft)
        """Whether rounds with the same counts last the same."""
        self._known_ready: dict[tuple[int, ...], int] = {}

    def of(self, block: RoundBlock) -> TimedRounds:
        """Every phase of the block's rounds."""
        query_tokens = self._query_tokens(block.rows)
        terms = self._mean_terms(block.rows, block.fallback, query_tokens)
        terms = self._with_prefills(self._jittered(terms, block.first_round), block)
        return TimedRounds(query_tokens, *settle_late_builds(terms, block.goes_on, self._drafting))

    def tokens_ready(self, round_: int, rows: RowCounts, fallback: int, goes_on: bool) -> int:
        """Tokens per chain that the hits after a single round find (`rows` has one entry)."""
        counts = (fallback, goes_on, *(int(count[0]) for count in rows[:-1]))
        ready = self._known_ready.get(counts)
        if ready is None:
            terms = self._mean_terms(rows, np.array([fallback], np.int8), self._query_tokens(rows))
            builds = settle_late_builds(self._jittered(terms, round_), np.array([goes_on]), self._drafting)
            ready = int(builds.num_ready[0])
            if self._repeats:
                self._known_ready[counts] = ready
        return ready

    def _with_prefills(self, terms: RoundTerms, block: RoundBlock) -> RoundTerms:
        """One admission after the other, on the target and, where its first chain is drafted at once, on the draft.

        Where a first round counts as a miss and is not drafted, the draft reads the prompt beside verification, which
        is not charged.
        """
        rounds, prompt_tokens = block.admissions()
        if not len(rounds):
            return terms

        def of_rounds(seconds: FloatArray) -> FloatArray:
            return np.bincount(rounds, seconds, len(block)).astype(np.float64)

        one = np.ones(len(rounds))
        prefill_s = of_rounds(self._costs.prefill_s(one, prompt_tokens))
        if self._lookahead == 0:
            return terms._replace(prefill_s=prefill_s)
        draft_s = of_rounds(self._costs.draft_prefill_s(one, prompt_tokens))
        if self._mode is Mode.SSD and self._drafting.first_round == "miss":
            draft_s = np.where(block.fallback == Fallback.JIT, draft_s, 0.0)
        return terms._replace(prefill_s=prefill_s, fallback_s=terms.fallback_s + draft_s)

    def _query_tokens(self, rows: RowCounts) -> IntArray:
        if self._mode is Mode.SSD and self._drafting.padded_verify:
            return rows.batch_size * (self._lookahead + 1)
        return rows.num_proposed + rows.batch_size

    def _mean_terms(self, rows: RowCounts, fallback: NDArray[np.int8], query_tokens: IntArray) -> RoundTerms:
        costs, batch = self._costs, rows.batch_size
        nothing = np.zeros(len(batch))
        terms = RoundTerms(*(nothing,) * len(RoundTerms._fields))._replace(
            verify_s=costs.verify_s(batch, query_tokens, rows.context_tokens),
            host_s=costs.host_s(batch),
        )
        if self._mode is Mode.AR:
            return terms._replace(accept_s=costs.sample_s(batch))
        terms = terms._replace(accept_s=costs.accept_s(batch, query_tokens))
        if self._mode is Mode.SD:
            return terms._replace(fallback_s=self._sd_draft_s(rows))
        glue_s, tree_s, store_s = self._build_s(rows)
        beside_s = costs.verify_beside_build_s(batch, query_tokens, rows.context_tokens)
        return terms._replace(
            verify_s=np.where(glue_s + tree_s + store_s > 0, beside_s, terms.verify_s),
            lookup_s=costs.lookup_s(batch),
            fallback_s=self._fallback_s(rows, fallback),
            reply_s=costs.reply_s(batch, query_tokens),
            outcome_s=costs.outcome_s(batch),
            glue_s=glue_s,
            tree_s=tree_s,
            store_s=store_s,
        )

    def _sd_draft_s(self, rows: RowCounts) -> FloatArray:
        drafting = rows.batch_size if self._lookahead else np.zeros_like(rows.batch_size)
        steps = self._lookahead + self._drafting.sd_extra_step
        return self._costs.sd_draft_s(drafting, steps, rows.context_tokens)

    def _fallback_s(self, rows: RowCounts, fallback: NDArray[np.int8]) -> FloatArray:
        """One chain for all rows drafted now (misses under `jit`, and first rounds), and n-gram proposals."""
        missing = rows.num_misses
        drafted = rows.num_first + np.where(fallback == Fallback.JIT, missing, 0)
        if self._drafting.redraft_hits:
            drafted = np.where(drafted > 0, rows.batch_size, drafted)
        if self._lookahead == 0:
            drafted = np.zeros_like(drafted)
        jit_s = self._costs.jit_s(drafted, self._lookahead, rows.context_tokens)
        return jit_s + self._costs.ngram_s(np.where(fallback == Fallback.NGRAM, missing, 0))

    def _build_s(self, rows: RowCounts) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Glue, tree and store; nothing is built where there is no branch or nothing to look ahead."""
        branches = rows.num_branches if self._lookahead else np.zeros_like(rows.num_branches)
        builders = np.where(branches > 0, rows.batch_size, 0)
        widest = -(-branches // self._num_draft_devices)
        return (
            self._costs.glue_s(builders, rows.num_proposed + rows.batch_size, rows.context_tokens),
            self._costs.tree_s(widest, self._lookahead, rows.context_tokens),
            self._costs.store_s(branches),
        )

    def _jittered(self, terms: RoundTerms, first_round: int) -> RoundTerms:
        jitter = self._costs.jitter
        noise = {
            "verify_s": (Stream.VERIFY_JITTER, jitter.verify),
            "fallback_s": (Stream.JIT_JITTER, jitter.draft),
            "glue_s": (Stream.GLUE_JITTER, jitter.draft),
            "tree_s": (Stream.TREE_JITTER, jitter.draft),
            "host_s": (Stream.HOST_JITTER, jitter.host),
        }
        count = len(terms.verify_s)
        noisy = {
            name: getattr(terms, name) * self._streams.jitter(stream, cv, first_round, count)
            for name, (stream, cv) in noise.items()
            if cv
        }
        return terms._replace(**noisy)


def reads_context(costs: ComponentCosts | RatioCosts) -> bool:
    """Whether any phase depends on how long the contexts are."""
    if isinstance(costs, RatioCosts):
        return False
    terms = (getattr(costs, name) for name in type(costs).model_fields)
    return any(_term_reads_context(term) for term in terms)


def _term_reads_context(term: object) -> bool:
    if isinstance(term, SumTerm):
        return any(map(_term_reads_context, term.terms))
    if isinstance(term, TableTerm):
        return "context_tokens" in term.axes
    return isinstance(term, LinearTerm) and term.per_context_token_s > 0
