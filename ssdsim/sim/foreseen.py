"""Token process of rows that do not look at each other: whole stretches of requests ahead of the clock.

Where the answer to a miss depends on nothing but the row itself, a row moves between two states, answered from the
cache or missed, on numbers that are already known: for every round one knows what either state would do, and the path
through them is a prefix composition of two-state maps. So a stretch of rounds costs a few array operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ssdsim.records import Fallback, Lookup, Source
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim.requests import Requests, slots_of
from ssdsim.sim.rounds import (
    BoolArray,
    FloatArray,
    IntArray,
    RoundBlock,
    RowCounts,
    RowHistory,
    SpeculativeBlock,
    concatenate,
    count_rows,
)
from ssdsim.sim.rows import DRAFTED, KIND_AFTER, SOURCE_AFTER, RowLaws
from ssdsim.sim.streams import ROUNDS_PER_TILE, Stream, Streams

_ENTRIES_AT_ONCE = 1 << 16
_ROUNDS_AT_ONCE = 1 << 12


class Foreseen:
    """Rounds of independent rows; `answer` is what every miss gets."""

    def __init__(
        self, scenario: Scenario, laws: RowLaws, requests: Requests, streams: Streams, answer: Fallback
    ) -> None:
        self._workload, self._run = scenario.workload, scenario.run
        self._laws, self._requests, self._streams = laws, requests, streams
        self._starts_missed = laws.looks_up and scenario.drafting.first_round == "miss"
        self._answer = answer

    def blocks(self) -> Iterator[RoundBlock]:
        return self._endless_blocks() if self._requests.endless else self._finite_blocks()

    def _endless_blocks(self) -> Iterator[RoundBlock]:
        """Every slot keeps its request, whose context is taken at its prompt: it would grow without end."""
        batch_size = self._workload.batch_size
        end = self._run.warmup_rounds + self._run.num_rounds
        width = max(ROUNDS_PER_TILE, min(_ROUNDS_AT_ONCE, _ENTRIES_AT_ONCE // batch_size))
        rows, prompt_tokens = self._rows(0, batch_size), self._requests.prompt_tokens(0, batch_size)
        for first_round in range(0, end, width):
            num_rounds = min(width, end - first_round)
            history = rows.play(num_rounds)
            slot = history.request_id
            history = history._replace(round=history.age, slot=slot, context_tokens=prompt_tokens[slot])
            counts = count_rows(history, self._laws, first_round, num_rounds, ordered=True)
            yield self._block(first_round, np.ones(num_rounds, dtype=bool), counts, history)

    def _finite_blocks(self) -> Iterator[RoundBlock]:
        """Requests are followed to their end, then placed; rounds that nothing can be added to leave as a block."""
        num_requests, at_once = self._requests.total, self._requests.num_at_once
        slots = slots_of(self._workload)
        pending: list[RowHistory] = []
        done = 0
        for first in range(0, num_requests, at_once):
            count = min(at_once, num_requests - first)
            history = self._rows(first, count).play_to_the_end()
            index = history.request_id - first
            starts, slot = slots.place(np.bincount(index, minlength=count))
            pending.append(history._replace(round=starts[index] + history.age, slot=slot[index]))
            is_last = first + count == num_requests
            settled = slots.end if is_last else slots.settled
            if settled > done:
                everything = concatenate(pending)
                settles = everything.round < settled
                pending = [everything.where(~settles)]
                history = everything.where(settles)
                counts = count_rows(history, self._laws, done, settled - done)
                yield self._block(done, self._goes_on(counts, is_last), counts, history)
                done = settled

    def _block(self, first_round: int, goes_on: BoolArray, counts: RowCounts, history: RowHistory) -> RoundBlock:
        fallback = np.where(counts.num_misses > 0, self._answer, Fallback.NOT_NEEDED).astype(np.int8)
        endless = self._requests.endless
        return SpeculativeBlock(first_round, counts, fallback, goes_on, history, self._laws, endless)

    def _goes_on(self, counts: RowCounts, is_last: bool) -> BoolArray:
        """A static batch ends when all its rows end; a closed one with its last request."""
        if self._workload.arrivals == "static":
            return counts.num_final < counts.batch_size
        goes_on = np.ones(len(counts.batch_size), dtype=bool)
        goes_on[-1] = not is_last
        return goes_on

    def _rows(self, first: int, count: int) -> _Rows:
        return _Rows(
            laws=self._laws,
            streams=self._streams,
            answer=self._answer,
            starts_missed=self._starts_missed,
            ids=np.arange(first, first + count),
            prompt_tokens=self._requests.prompt_tokens(first, count),
            output_tokens=self._requests.output_tokens(first, count),
            luck=self._requests.luck(first, count),
        )


class _Rows:
    """Requests that are followed round by round of their own, side by side."""

    def __init__(
        self,
        *,
        laws: RowLaws,
        streams: Streams,
        answer: Fallback,
        starts_missed: bool,
        ids: IntArray,
        prompt_tokens: IntArray,
        output_tokens: IntArray,
        luck: FloatArray,
    ) -> None:
        self._laws, self._streams = laws, streams
        self._kinds = (DRAFTED, KIND_AFTER[answer]) if laws.looks_up else (DRAFTED, DRAFTED)
        self._sources = _sources(laws.mode, answer)
        self._age = 0
        self._ids, self._luck = ids, luck
        self._context, self._left = prompt_tokens, output_tokens
        self._missed = np.full(len(ids), starts_missed)
        """Whether the row's next round answers a miss."""

    def play_to_the_end(self) -> RowHistory:
        """All rounds of all requests."""
        parts = []
        while len(self._ids):
            parts.append(self.play(ROUNDS_PER_TILE))
        return concatenate(parts)

    def play(self, num_rounds: int) -> RowHistory:
        """The next `num_rounds` rounds of every request that has not ended; `round` and `slot` are to fill in."""
        accepted_if, misses_if = self._outcomes(num_rounds)  # by state, [2][requests, rounds]
        missed_after = compose(self._missed, *misses_if)
        missed = np.concatenate([self._missed[:, None], missed_after[:, :-1]], axis=1)
        accepted = np.where(missed, accepted_if[1], accepted_if[0])
        produced = np.cumsum(accepted + 1, axis=1, dtype=np.int64)
        row, column, place = self._played(accepted, produced)
        history = self._history(
            row,
            self._age + column,
            missed.ravel()[place],
            missed_after.ravel()[place],
            accepted.ravel()[place],
            produced.ravel()[place],
        )
        self._go_on(produced[:, -1], missed_after[:, -1], num_rounds)
        return history

    def _played(self, accepted: NDArray[np.int16], produced: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(row, column, flat index) of the rounds that are played, first all first rounds, then all second ones."""
        if np.all(produced[:, -1] - accepted[:, -1] <= self._left):
            return _all_by_age(*accepted.shape)
        column, row = np.nonzero((produced - accepted <= self._left[:, None]).T)
        return row, column, row * accepted.shape[1] + column

    def _history(
        self,
        row: IntArray,
        age: IntArray,
        missed: BoolArray,
        missed_after: BoolArray,
        accepted: NDArray[np.int16],
        produced: IntArray,
    ) -> RowHistory:
        """One entry per round played; the last round of a request emits what is left of it."""
        emitted = accepted + 1
        source, lookup = self._source(missed, age), self._lookup(missed_after)
        context_tokens = self._context[row] + produced - emitted
        if len(produced) and produced.max() >= self._left.min():
            beyond = produced - self._left[row]
            lookup[beyond >= 0] = Lookup.FINAL
            emitted = emitted - np.maximum(beyond, 0).astype(np.int16)
        return RowHistory(
            round=age,
            request_id=self._ids[row],
            slot=row,
            age=age,
            kind=_choose(missed, self._kinds),
            source=source,
            lookup=lookup,
            num_accepted=accepted,
            num_emitted=emitted,
            context_tokens=context_tokens,
            bonus_rank=np.full(len(age), -1, np.int32),
        )

    def _outcomes(self, num_rounds: int) -> tuple[list[NDArray[np.int16]], list[BoolArray]]:
        """What every round would bring in either state: tokens accepted, and whether the look-up misses."""
        place = (self._ids, self._age, num_rounds)
        luck = self._streams.per_round(Stream.ACCEPTANCE, *place)
        lookup_luck = self._streams.per_round(Stream.LOOKUP, *place) if self._laws.looks_up else luck
        accepted_if: list[NDArray[np.int16]] = []
        misses_if: list[BoolArray] = []
        for kind in self._kinds:
            accepted = num_accepted(luck, self._laws.survival(kind, self._luck))
            accepted_if.append(accepted)
            misses_if.append(lookup_luck >= self._laws.hit_probs[kind][accepted])
            if self._laws.kinds[self._kinds[1]] == self._laws.kinds[DRAFTED]:
                return accepted_if * 2, misses_if * 2
        return accepted_if, misses_if

    def _source(self, missed: BoolArray, ages: IntArray) -> NDArray[np.int8]:
        source = _choose(missed, self._sources)
        if self._laws.looks_up and self._age == 0:
            source[(ages == 0) & ~missed] = Source.FIRST
        return source

    def _lookup(self, missed_after: BoolArray) -> NDArray[np.int8]:
        if self._laws.looks_up:
            return _choose(missed_after, (Lookup.HIT, Lookup.MISS))
        return np.full(len(missed_after), Lookup.NOT_MADE, np.int8)

    def _go_on(self, produced: IntArray, missed: BoolArray, num_rounds: int) -> None:
        going = produced < self._left
        self._age += num_rounds
        self._ids, self._luck, self._missed = self._ids[going], self._luck[going], missed[going]
        self._context, self._left = (self._context + produced)[going], (self._left - produced)[going]


def _choose(mask: BoolArray, values: tuple[int, int]) -> NDArray[np.int8]:
    """The second value where the mask holds, else the first."""
    return np.where(mask, np.int8(values[1]), np.int8(values[0]))


@lru_cache(maxsize=4)
def _all_by_age(num_rows: int, num_columns: int) -> tuple[IntArray, IntArray, IntArray]:
    column, row = np.divmod(np.arange(num_rows * num_columns), num_rows)
    return row, column, row * num_columns + column


def num_accepted(luck: FloatArray, survival: FloatArray) -> NDArray[np.int16]:
    """Tokens accepted with uniforms `luck` [requests, rounds]: i are, at least, where luck < survival[:, i-1]."""
    accepted = np.zeros(luck.shape, dtype=np.int16)
    for i in range(survival.shape[1]):
        accepted += luck < survival[:, i : i + 1]
    return accepted


def compose(initial: BoolArray, if_false: BoolArray, if_true: BoolArray) -> BoolArray:
    """State after every round of chains with two states, [chains, rounds].

    Round t maps state False to if_false[:, t] and True to if_true[:, t]. A map forgets (both the same), keeps or
    swaps: relative to the parity of the swaps so far, the state changes only where something is forgotten.
    """
    if if_false is if_true:
        return if_false
    parity = np.logical_xor.accumulate(if_false & ~if_true, axis=1)
    index = np.arange(1, parity.shape[1] + 1, dtype=np.int32)
    last_forgetting = np.maximum.accumulate(np.where(if_false == if_true, index, 0), axis=1)
    relative = np.concatenate([initial[:, None], if_false ^ parity], axis=1)
    state: BoolArray = np.take_along_axis(relative, last_forgetting, axis=1) ^ parity
    return state


def _sources(mode: Mode, answer: Fallback) -> tuple[Source, Source]:
    """Source of a row by state: answered from the cache, or missed."""
    if mode is Mode.SSD:
        return Source.HIT, SOURCE_AFTER[answer]
    only = Source.SD if mode is Mode.SD else Source.AR
    return only, only
