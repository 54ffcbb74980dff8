"""The requests of a run and the slots of the batch that they pass through, in round index.

A lock-stepped batch admits in rounds, so who sits in which slot when follows from the requests' numbers of rounds
alone, whatever the clock says.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.distributions import mean_length, sample_lengths
from ssdsim.profile import RankTrace
from ssdsim.scenario import Scenario, Workload
from ssdsim.sim.streams import Stream, Streams

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ENDLESS = np.iinfo(np.int64).max // 4
"""Output tokens of a request that never ends."""
_TOKENS_AT_ONCE = 1 << 18


class Requests:
    """What is known of request i before it starts."""

    def __init__(self, scenario: Scenario, trace: RankTrace | None, streams: Streams) -> None:
        self._workload, self._streams = scenario.workload, streams
        self._trace_lengths = None if trace is None else np.array([len(ranks) for ranks in trace.requests])
        self.endless = scenario.workload.output_tokens is None
        """Whether requests never finish."""
        self.num_rounds = scenario.run.warmup_rounds + scenario.run.num_rounds if self.endless else None
        """Rounds after which an endless run stops."""
        self.total = scenario.workload.batch_size if self.endless else scenario.workload.num_requests
        """Requests after which no slot is refilled."""

    @property
    def num_at_once(self) -> int:
        """How many requests are followed side by side: many for speed, not so many that they fill the memory."""
        output_tokens = self._workload.output_tokens
        mean = mean_length(output_tokens) if output_tokens is not None else 1.0
        return min(max(round(_TOKENS_AT_ONCE / mean), 16), 512)

    def prompt_tokens(self, first: int, count: int) -> IntArray:
        luck = self._streams.per_request(Stream.PROMPT_TOKENS, first, count)
        lengths: IntArray = sample_lengths(self._workload.prompt_tokens, luck)
        return lengths

    def output_tokens(self, first: int, count: int) -> IntArray:
        """A request ends at its drawn length, or with the trace that it replays."""
        lengths = np.full(count, ENDLESS)
        if self._workload.output_tokens is not None:
            luck = self._streams.per_request(Stream.OUTPUT_TOKENS, first, count)
            lengths = sample_lengths(self._workload.output_tokens, luck)
        if self._trace_lengths is None:
            return lengths
        traces = np.arange(first, first + count) % len(self._trace_lengths)
        shorter: IntArray = np.minimum(lengths, self._trace_lengths[traces])
        return shorter

    def luck(self, first: int, count: int) -> FloatArray:
        """Place of each request in the spread of acceptance, in (0, 1)."""
        return self._streams.per_request(Stream.SPREAD, first, count)


class Slots(Protocol):
    """Places requests of known numbers of rounds, in order of arrival."""

    def place(self, num_rounds: IntArray) -> tuple[IntArray, IntArray]:
        """(first round, slot) of the next requests."""

    @property
    def settled(self) -> int:
        """Rounds before this one get no further request."""

    @property
    def end(self) -> int:
        """The first round after everything placed so far."""


class ClosedSlots:
    """A finished slot is refilled in the next round."""

    def __init__(self, batch_size: int) -> None:
        self._free = [(0, slot) for slot in range(batch_size)]

    def place(self, num_rounds: IntArray) -> tuple[IntArray, IntArray]:
        starts, slots = np.empty((2, len(num_rounds)), dtype=np.int64)
        free = self._free
        for i, rounds in enumerate(num_rounds.tolist()):
            start, slot = free[0]
            starts[i], slots[i] = start, slot
            heapq.heapreplace(free, (start + rounds, slot))
        return starts, slots

    @property
    def settled(self) -> int:
        return self._free[0][0]

    @property
    def end(self) -> int:
        return max(round_ for round_, _ in self._free)


class StaticSlots:
    """The next batch starts when the last request of this one has finished."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._num_placed = 0
        self._start = 0
        self._end = 0

    def place(self, num_rounds: IntArray) -> tuple[IntArray, IntArray]:
        starts, slots = np.empty((2, len(num_rounds)), dtype=np.int64)
        for i, rounds in enumerate(num_rounds.tolist()):
            slot = self._num_placed % self._batch_size
            if slot == 0:
                self._start = self._end
            starts[i], slots[i] = self._start, slot
            self._end = max(self._end, self._start + rounds)
            self._num_placed += 1
        return starts, slots

    @property
    def settled(self) -> int:
        return self._end if self._num_placed % self._batch_size == 0 else self._start

    @property
    def end(self) -> int:
        return self._end


def slots_of(workload: Workload) -> Slots:
    """The slots that the workload's arrivals ask for."""
    kind = StaticSlots if workload.arrivals == "static" else ClosedSlots
    return kind(workload.batch_size)
