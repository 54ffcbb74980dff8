"""Token process of rows that look at each other or at the clock, one round at a time.

Needed where the answer to a miss depends on how many rows miss (`threshold`), where one miss re-drafts the whole
batch (`redraft_hits`), where a late build shortens the next round's chains (`on_late: truncate`), and to replay rank
traces. Where `foreseen` applies as well, both give the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from ssdsim.profile import RankTrace
from ssdsim.records import Fallback, Lookup, Source
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim.requests import Requests
from ssdsim.sim.round_times import RoundTimes
from ssdsim.sim.rounds import (
    Answer,
    BoolArray,
    IntArray,
    RoundBlock,
    RowHistory,
    SpeculativeBlock,
    concatenate,
    count_rows,
)
from ssdsim.sim.rows import DRAFTED, KIND_AFTER, REDRAFTED, SOURCE_AFTER, TRUNCATED, UNDRAFTED, RowLaws
from ssdsim.sim.streams import ROUNDS_PER_TILE, Stream, Streams

_ROUNDS_AT_ONCE = 256


class Outcomes(NamedTuple):
    """How the rows of one round fare, [rows] each."""

    num_accepted: IntArray
    hits: BoolArray
    bonus_rank: IntArray


class OutcomeSource(Protocol):
    """Where outcomes come from."""

    def admit(self, slots: IntArray, requests: IntArray) -> None:
        """New requests sit in `slots`."""

    def draw(self, slots: IntArray, kinds: IntArray, ages: IntArray, produced: IntArray) -> Outcomes:
        """The next round of the rows in `slots`, `ages` rounds and `produced` tokens into their requests."""


class RandomOutcomes:
    """Acceptance and look-ups by chance, with the uniforms that belong to each request and round."""

    def __init__(self, laws: RowLaws, requests: Requests, streams: Streams, batch_size: int) -> None:
        self._laws, self._requests, self._streams = laws, requests, streams
        self._ids = np.zeros(batch_size, np.int64)
        self._survival = laws.survival_of_kinds(np.zeros(batch_size))
        self._luck = {
            stream: np.zeros((batch_size, ROUNDS_PER_TILE)) for stream in (Stream.ACCEPTANCE, Stream.LOOKUP)
        }

    def admit(self, slots: IntArray, requests: IntArray) -> None:
        self._ids[slots] = requests
        luck = np.concatenate([self._requests.luck(int(request), 1) for request in requests])
        self._survival[slots] = self._laws.survival_of_kinds(luck)

    def draw(self, slots: IntArray, kinds: IntArray, ages: IntArray, produced: IntArray) -> Outcomes:
        columns = ages % ROUNDS_PER_TILE
        for i in np.flatnonzero(columns == 0).tolist():
            self._refill(int(slots[i]), int(ages[i]))
        luck = self._luck[Stream.ACCEPTANCE][slots, columns]
        accepted = (luck[:, None] < self._survival[slots, kinds]).sum(axis=1)
        hits = self._luck[Stream.LOOKUP][slots, columns] < self._laws.hit_probs[kinds, accepted]
        return Outcomes(accepted, hits, np.full(len(slots), -1))

    def _refill(self, slot: int, age: int) -> None:
        for stream, luck in self._luck.items():
            luck[slot] = self._streams.per_round(stream, self._ids[slot : slot + 1], age, ROUNDS_PER_TILE)[0]


class ReplayedOutcomes:
    """Rank traces replayed: request i follows trace i modulo their number, exactly as greedy decoding would.

    At output position p the run of ranks 0 from p on is accepted, as far as it was proposed; the token after it is
    the bonus token, whose rank decides the look-up.
    """

    def __init__(self, laws: RowLaws, trace: RankTrace, batch_size: int) -> None:
        self._laws = laws
        self._can_accept = laws.num_proposed.copy()
        self._can_accept[UNDRAFTED : UNDRAFTED + 1] = 0  # random tokens are never what a greedy target says
        lengths = np.array([len(ranks) for ranks in trace.requests])
        self._starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        self._ranks = np.concatenate([[*ranks, 1] for ranks in trace.requests])  # one guard after each trace
        self._agreements = _zeros_ahead(self._ranks)
        self._offset = np.zeros(batch_size, np.int64)

    def admit(self, slots: IntArray, requests: IntArray) -> None:
        self._offset[slots] = self._starts[requests % len(self._starts)]

    def draw(self, slots: IntArray, kinds: IntArray, ages: IntArray, produced: IntArray) -> Outcomes:
        place = self._offset[slots] + produced
        can_accept = self._can_accept[kinds]
        accepted = np.minimum(self._agreements[place], can_accept)
        rejected = accepted < can_accept
        rank = self._ranks[place + accepted] + 1 - rejected  # the rejected token is no candidate
        return Outcomes(accepted, rank <= self._laws.fan_out[kinds, accepted], rank)


def _zeros_ahead(ranks: IntArray) -> IntArray:
    """Length of the run of zeros that starts at each place; the last entry must not be zero."""
    places = np.arange(len(ranks))
    next_other = np.minimum.accumulate(np.where(ranks != 0, places, len(ranks))[::-1])[::-1]
    return next_other - places


class Stepped:
    """Rounds of a batch whose rows are kept in arrays over its slots."""

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
        self._hit_kind = DRAFTED
        """Kind of a row that hits: what the last build left."""
        size = scenario.workload.batch_size
        self._busy = np.zeros(size, dtype=bool)
        self._missed = np.zeros(size, dtype=bool)
        self._ids, self._age, self._produced, self._left, self._prompt = np.zeros((5, size), np.int64)
        self._admit()

    def blocks(self) -> Iterator[RoundBlock]:
        while self._goes_on():
            parts: list[RowHistory] = []
            goes_on: list[bool] = []
            first_round = self._round
            while self._goes_on() and len(parts) < _ROUNDS_AT_ONCE:
                parts.append(self._step())
                goes_on.append(self._batch_goes_on())
                if self._truncates:
                    self._truncate(parts[-1], goes_on[-1])
                self._admit()
                self._round += 1
            yield self._block(concatenate(parts), goes_on, first_round)

    def _step(self) -> RowHistory:
        """One round of the rows in busy slots."""
        slots = np.flatnonzero(self._busy)
        ages, produced = self._age[slots], self._produced[slots]
        kinds, sources = self._speculations(self._missed[slots], ages == 0)
        outcomes = self._outcomes.draw(slots, kinds, ages, produced)
        emitted = np.minimum(outcomes.num_accepted + 1, self._left[slots])
        ends = emitted == self._left[slots]
        found = np.where(outcomes.hits, Lookup.HIT, Lookup.MISS) if self._laws.looks_up else Lookup.NOT_MADE
        history = RowHistory(
            round=np.full(len(slots), self._round),
            request_id=self._ids[slots],
            slot=slots,
            age=ages,
            kind=kinds.astype(np.int8),
            source=sources.astype(np.int8),
            lookup=np.where(ends, Lookup.FINAL, found).astype(np.int8),
            num_accepted=outcomes.num_accepted.astype(np.int16),
            num_emitted=emitted,
            context_tokens=self._prompt[slots] + produced,
            bonus_rank=outcomes.bonus_rank.astype(np.int32),
        )
        self._missed[slots] = ~outcomes.hits
        self._age[slots] += 1
        self._produced[slots] += emitted
        self._left[slots] -= emitted
        self._busy[slots] = ~ends
        return history

    def _speculations(self, missed: BoolArray, first: BoolArray) -> tuple[IntArray, IntArray]:
        """(kind, source) of every row's speculation."""
        if not self._laws.looks_up:
            only = Source.SD if self._laws.mode is Mode.SD else Source.AR
            return np.full(len(missed), DRAFTED), np.full(len(missed), only)
        num_misses = int(missed.sum())
        hit_kind = REDRAFTED if self._drafting.redraft_hits and num_misses else self._hit_kind
        kinds = np.where(first, DRAFTED, hit_kind)
        sources = np.where(first, Source.FIRST, Source.HIT)
        if num_misses:
            action = Fallback(self._answer.to_misses[num_misses])
            kinds, sources = (
                np.where(missed, KIND_AFTER[action], kinds),
                np.where(missed, SOURCE_AFTER[action], sources),
            )
        return kinds, sources

    def _truncate(self, history: RowHistory, goes_on: bool) -> None:
        """Find out what is ready for the next round's hits."""
        ready = int(self._times.of(self._block(history, [goes_on], self._round)).num_ready[0])
        self._hit_kind = DRAFTED if ready == self._laws.num_proposed[DRAFTED] else TRUNCATED + ready

    def _goes_on(self) -> bool:
        limit = self._requests.num_rounds
        return bool(self._busy.any()) and (limit is None or self._round < limit)

    def _batch_goes_on(self) -> bool:
        """Whether the round that has just been played is followed by one of the same batch."""
        refills = self._workload.arrivals == "closed" and self._num_waiting() > 0
        return bool(self._busy.any()) or refills

    def _num_waiting(self) -> int:
        return self._requests.total - self._next_request

    def _admit(self) -> None:
        """Fill free slots from the requests that wait; a static batch only when all its slots are free."""
        free = np.flatnonzero(~self._busy)
        if self._workload.arrivals == "static" and len(free) < len(self._busy):
            return
        slots = free[: self._num_waiting()]
        if not len(slots):
            return
        first, count = self._next_request, len(slots)
        self._ids[slots] = np.arange(first, first + count)
        self._prompt[slots] = self._requests.prompt_tokens(first, count)
        self._left[slots] = self._requests.output_tokens(first, count)
        self._age[slots] = self._produced[slots] = 0
        self._missed[slots] = self._starts_missed
        self._busy[slots] = True
        self._outcomes.admit(slots, self._ids[slots])
        self._next_request += count

    def _block(self, history: RowHistory, goes_on: list[bool], first_round: int) -> RoundBlock:
        rows = count_rows(history, self._laws, first_round, len(goes_on))
        fallback = self._answer.to_misses[rows.num_misses]
        return SpeculativeBlock(
            first_round, rows, fallback, np.array(goes_on), history, self._laws, self._requests.endless
        )
