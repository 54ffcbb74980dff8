"""AR decoding of finite requests: between an admission and a finish nothing happens, so a run of rounds is one event.

A block is known from when its requests start and end alone; its rows are spelled out only where someone wants them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.records import Fallback, Lookup, Source
from ssdsim.scenario import Workload
from ssdsim.sim.requests import Requests, slots_of
from ssdsim.sim.rounds import BoolArray, IntArray, RequestEvents, RoundBlock, RowCounts, RowHistory

_ROUNDS_AT_ONCE = 4096


class Stays(NamedTuple):
    """Requests in the batch, from round `start` up to, not including, round `end`: [requests] each."""

    request_id: IntArray
    slot: IntArray
    start: IntArray
    end: IntArray
    prompt_tokens: IntArray

    def where(self, chosen: NDArray[np.bool_]) -> Stays:
        return Stays(*(column[chosen] for column in self))


class Decoding:
    """Rounds of AR batches; `longest_run` limits how many rounds one event may stand for."""

    def __init__(self, workload: Workload, requests: Requests, longest_run: int = _ROUNDS_AT_ONCE) -> None:
        self._workload, self._requests, self._longest_run = workload, requests, longest_run

    def blocks(self) -> Iterator[RoundBlock]:
        num_requests, at_once = self._requests.total, self._requests.num_at_once
        slots = slots_of(self._workload)
        stays = Stays(*np.zeros((len(Stays._fields), 0), np.int64))
        done = 0
        for first in range(0, num_requests, at_once):
            count = min(at_once, num_requests - first)
            num_rounds = self._requests.output_tokens(first, count)
            start, slot = slots.place(num_rounds)
            ids, prompts = np.arange(first, first + count), self._requests.prompt_tokens(first, count)
            new = Stays(ids, slot, start, start + num_rounds, prompts)
            stays = Stays(*map(np.concatenate, zip(stays, new, strict=True)))
            settled = slots.end if first + count == num_requests else slots.settled
            for begin in range(done, settled, _ROUNDS_AT_ONCE):
                end = min(begin + _ROUNDS_AT_ONCE, settled)
                present = (stays.start < end) & (stays.end > begin)
                yield DecodingBlock(begin, end, stays.where(present), self._longest_run)
            stays = stays.where(stays.end > settled)
            done = max(done, settled)


class DecodingBlock:
    """Rounds first_round .. end - 1 of the requests in `stays`."""

    def __init__(self, first_round: int, end: int, stays: Stays, longest_run: int) -> None:
        self.first_round = first_round
        self._num_rounds, self._stays, self._longest_run = end - first_round, stays, longest_run
        self._from = np.maximum(stays.start - first_round, 0)
        self._to = np.minimum(stays.end, end) - first_round
        self._admitted = stays.start >= first_round
        self._ended = stays.end <= end

    def __len__(self) -> int:
        return self._num_rounds

    @cached_property
    def rows(self) -> RowCounts:
        batch_size = self._sum_over_stays(np.ones(len(self._from)))
        begun = self._stays.prompt_tokens - (self._stays.start - self.first_round)  # context at the block's start
        context = self._sum_over_stays(begun) + batch_size * np.arange(len(self))
        nothing = np.zeros(len(self), np.int64)
        return RowCounts(
            batch_size=batch_size,
            num_hits=nothing,
            num_misses=nothing,
            num_first=nothing,
            num_final=np.bincount(self._to[self._ended] - 1, minlength=len(self)),
            num_proposed=nothing,
            num_emitted=batch_size,
            num_branches=nothing,
            context_tokens=context / batch_size,
        )

    @property
    def fallback(self) -> NDArray[np.int8]:
        return np.full(len(self), Fallback.NOT_NEEDED, np.int8)

    @property
    def goes_on(self) -> BoolArray:
        return np.ones(len(self), dtype=bool)

    @property
    def runs(self) -> IntArray:
        """A run ends where a request starts or ends."""
        changes = np.concatenate(
            [self._from, self._to[self._to < len(self)], np.arange(0, len(self), self._longest_run)]
        )
        return np.unique(changes)

    def history(self) -> RowHistory:
        stays, lengths = self._stays, self._to - self._from
        index = np.repeat(np.arange(len(lengths)), lengths)
        offset = np.arange(len(index)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        round_ = self.first_round + self._from[index] + offset
        order = np.lexsort((stays.slot[index], round_))
        index, round_ = index[order], round_[order]
        age, one = round_ - stays.start[index], np.ones(len(index), np.int64)
        final = round_ == stays.end[index] - 1
        return RowHistory(
            round=round_,
            request_id=stays.request_id[index],
            slot=stays.slot[index],
            age=age,
            kind=np.zeros(len(index), np.int8),
            source=np.full(len(index), Source.AR, np.int8),
            lookup=np.where(final, Lookup.FINAL, Lookup.NOT_MADE).astype(np.int8),
            num_accepted=np.zeros(len(index), np.int16),
            num_emitted=one,
            context_tokens=stays.prompt_tokens[index] + age,
            bonus_rank=np.full(len(index), -1, np.int32),
        )

    def outcomes(self, measured: BoolArray) -> IntArray:
        final = int(self.rows.num_final[measured].sum())
        histogram = np.zeros((len(Source), len(Lookup), 1, 1), np.int64)
        histogram[Source.AR, Lookup.FINAL] = final
        histogram[Source.AR, Lookup.NOT_MADE] = int(self.rows.batch_size[measured].sum()) - final
        return histogram

    def admissions(self) -> tuple[IntArray, IntArray]:
        return self._from[self._admitted], self._stays.prompt_tokens[self._admitted]

    def requests(self) -> RequestEvents:
        stays, lengths = self._stays, self._to - self._from
        nothing = np.zeros_like(lengths)
        emptied = dict.fromkeys(("num_hits", "num_misses", "num_proposed", "num_accepted"), nothing)
        return RequestEvents(
            admitted=stays.request_id[self._admitted],
            admitted_round=self._from[self._admitted],
            prompt_tokens=stays.prompt_tokens[self._admitted],
            ended=stays.request_id[self._ended],
            ended_round=self._to[self._ended] - 1,
            seen=stays.request_id,
            counts={"output_tokens": lengths, "num_rounds": lengths, **emptied},
        )

    def _sum_over_stays(self, weights: NDArray[np.number]) -> IntArray:
        """Per round, the sum of `weights` over the requests that are present."""
        entering = np.bincount(self._from, weights, len(self) + 1)
        leaving = np.bincount(self._to, weights, len(self) + 1)
        return np.cumsum(entering - leaving)[:-1].astype(np.int64)
