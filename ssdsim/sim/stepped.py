"""Token process of rows that look at each other or at the clock, one round at a time.

Needed where the answer to a miss depends on how many rows miss (`threshold`), where one miss re-drafts the whole
batch (`redraft_hits`), where a late build shortens the next round's chains (`on_late: truncate`), and to replay rank
traces. Where `foreseen` applies as well, both give the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ssdsim.records import Fallback, Lookup, Source
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim.outcomes import OutcomeSource
from ssdsim.sim.requests import Requests
from ssdsim.sim.round_times import RoundTimes
from ssdsim.sim.rounds import (
    Answer,
    BoolArray,
    IntArray,
    RoundBlock,
    RowCounts,
    RowHistory,
    SpeculativeBlock,
    count_rows,
)
from ssdsim.sim.rows import DRAFTED, KIND_AFTER, REDRAFTED, SOURCE_AFTER, TRUNCATED, RowLaws

_ROUNDS_AT_ONCE = 512


class Rows(NamedTuple):
    """Requests in the batch, in the order of their slots: [rows] each."""

    slots: IntArray
    ids: IntArray
    ages: IntArray
    """Rounds played."""
    produced: IntArray
    """Tokens emitted."""
    left: IntArray
    """Tokens to emit."""
    prompt_tokens: IntArray
    missed: BoolArray
    """Whether the last look-up missed."""

    def where(self, chosen: BoolArray | IntArray) -> Rows:
        return Rows._make(column[chosen] for column in self)


class Step(NamedTuple):
    """What the rows did in one round: [rows] each, `rows` as they were before it."""

    rows: Rows
    kinds: IntArray
    sources: IntArray
    num_accepted: IntArray
    num_emitted: IntArray
    hits: BoolArray
    bonus_rank: IntArray


class Stepped:
    """Rounds of a batch, each from the one before."""

    def __init__(
        self,
        scenario: Scenario,
        laws: RowLaws,
        requests: Requests,
        outcomes: OutcomeSource,
        answer: Answer,
        times: RoundTimes,
    ) -> None:
        self._workload, self._drafting = scenario.workload, scenario.drafting
        self._laws, self._requests, self._outcomes = laws, requests, outcomes
        self._answer, self._times = answer, times
        self._starts_missed = laws.looks_up and scenario.drafting.first_round == "miss"
        self._truncates = laws.looks_up and scenario.drafting.on_late == "truncate"
        self._round, self._next_request = 0, 0
        self._kept = 0 if requests.endless else 1
        """Whether emitted tokens lengthen the context: an endless request's is taken at its prompt."""
        self._hit_kind = DRAFTED
        """Kind of a row that hits: what the last build left."""
        nobody = np.zeros(0, np.int64)
        self._rows = self._refilled(Rows(*(nobody,) * 6, nobody.astype(bool)))

    def blocks(self) -> Iterator[RoundBlock]:
        while self._has_rounds():
            steps: list[Step] = []
            goes_on: list[bool] = []
            first_round = self._round
            while self._has_rounds() and len(steps) < _ROUNDS_AT_ONCE:
                steps.append(self._step())
                goes_on.append(self._batch_goes_on())
                if self._truncates:
                    self._hit_kind = self._kind_left_by(steps[-1], goes_on[-1])
                if len(self._rows.ids) < self._workload.batch_size:
                    self._rows = self._refilled(self._rows)
                self._round += 1
            yield self._block(_history(steps, first_round, self._laws.looks_up), goes_on, first_round)

    def _step(self) -> Step:
        """One round of the rows in the batch; those that end leave it."""
        rows = self._rows
        kinds, sources = self._speculations(rows.missed, rows.ages == 0)
        outcomes = self._outcomes.draw(rows.slots, kinds, rows.ages, rows.produced)
        emitted = np.minimum(outcomes.num_accepted + 1, rows.left)
        left = rows.left - emitted
        after = rows._replace(
            ages=rows.ages + 1, produced=rows.produced + self._kept * emitted, left=left, missed=~outcomes.hits
        )
        self._rows = after if left.all() else after.where(left > 0)
        return Step(rows, kinds, sources, outcomes.num_accepted, emitted, outcomes.hits, outcomes.bonus_rank)

    def _speculations(self, missed: BoolArray, first: BoolArray) -> tuple[IntArray, IntArray]:
        """(kind, source) of every row's speculation."""
        if not self._laws.looks_up:
            only = Source.SD if self._laws.mode is Mode.SD else Source.AR
            return np.full(len(missed), DRAFTED), np.full(len(missed), only)
        num_misses, some_first = int(np.count_nonzero(missed)), bool(first.any())
        redrafts = self._drafting.redraft_hits and (num_misses or some_first)
        kinds = np.full(len(missed), REDRAFTED if redrafts else self._hit_kind)
        sources = np.full(len(missed), int(Source.HIT))
        if some_first:
            kinds[first], sources[first] = DRAFTED, Source.FIRST
        if num_misses:
            action = Fallback(self._answer.to_misses[num_misses])
            kinds[missed], sources[missed] = KIND_AFTER[action], SOURCE_AFTER[action]
        return kinds, sources

    def _kind_left_by(self, step: Step, goes_on: bool) -> int:
        """Kind of the rows that will hit what the round's build had ready."""
        laws, context = self._laws, step.rows.prompt_tokens + step.rows.produced
        misses, first = np.count_nonzero(step.rows.missed), np.count_nonzero(step.sources == Source.FIRST)
        size = len(step.kinds)
        counts = RowCounts(
            batch_size=np.array([size]),
            num_hits=np.array([size - misses - first]),
            num_misses=np.array([misses]),
            num_first=np.array([first]),
            num_final=np.array([size - len(self._rows.ids)]),
            num_proposed=laws.num_proposed[step.kinds].sum(keepdims=True),
            num_emitted=step.num_emitted.sum(keepdims=True),
            num_branches=laws.num_branches[step.kinds].sum(keepdims=True),
            context_tokens=np.array([context.mean()]),
        )
        ready = self._times.tokens_ready(self._round, counts, self._answer.to_misses[misses], goes_on)
        return DRAFTED if ready == laws.num_proposed[DRAFTED] else TRUNCATED + ready

    def _has_rounds(self) -> bool:
        limit = self._requests.num_rounds
        return len(self._rows.ids) > 0 and (limit is None or self._round < limit)

    def _batch_goes_on(self) -> bool:
        """Whether the round that has just been played is followed by one of the same batch."""
        refills = self._workload.arrivals == "closed" and self._next_request < self._requests.total
        return len(self._rows.ids) > 0 or refills

    def _refilled(self, rows: Rows) -> Rows:
        """Fill free slots from the requests that wait; a static batch only when all its slots are free."""
        free = np.setdiff1d(np.arange(self._workload.batch_size), rows.slots)
        slots = free[: self._requests.total - self._next_request]
        if not len(slots) or (self._workload.arrivals == "static" and len(rows.ids)):
            return rows
        first, count = self._next_request, len(slots)
        nothing = np.zeros(count, np.int64)
        new = Rows(
            slots=slots,
            ids=np.arange(first, first + count),
            ages=nothing,
            produced=nothing,
            left=self._requests.output_tokens(first, count),
            prompt_tokens=self._requests.prompt_tokens(first, count),
            missed=np.full(count, self._starts_missed),
        )
        self._outcomes.admit(slots, first)
        self._next_request += count
        together = Rows._make(map(np.concatenate, zip(rows, new, strict=True)))
        return together.where(np.argsort(together.slots))

    def _block(self, history: RowHistory, goes_on: list[bool], first_round: int) -> RoundBlock:
        counts = count_rows(history, self._laws, first_round, len(goes_on), ordered=True)
        fallback, endless = self._answer.to_misses[counts.num_misses], self._requests.endless
        return SpeculativeBlock(first_round, counts, fallback, np.array(goes_on), history, self._laws, endless)


def _history(steps: list[Step], first_round: int, looks_up: bool) -> RowHistory:
    """The steps' rows as one history."""
    rows = Rows._make(map(np.concatenate, zip(*(step.rows for step in steps), strict=True)))
    _, *columns = map(list, zip(*steps, strict=True))
    kinds, sources, accepted, emitted, hits, bonus_rank = map(np.concatenate, columns)
    found = np.where(hits, Lookup.HIT, Lookup.MISS) if looks_up else np.full(len(hits), Lookup.NOT_MADE)
    return RowHistory(
        round=first_round + np.repeat(np.arange(len(steps)), [len(step.kinds) for step in steps]),
        request_id=rows.ids,
        slot=rows.slots,
        age=rows.ages,
        kind=kinds.astype(np.int8),
        source=sources.astype(np.int8),
        lookup=np.where(emitted == rows.left, Lookup.FINAL, found).astype(np.int8),
        num_accepted=accepted.astype(np.int16),
        num_emitted=emitted,
        context_tokens=rows.prompt_tokens + rows.produced,
        bonus_rank=bonus_rank.astype(np.int32),
    )
