"""A block of consecutive rounds before the clock has run: who did what, and the widths that follow from it.

`foreseen`, `stepped` and `decoding` produce blocks, `round_times` turns them into seconds, the processes play them,
and the recorder writes them down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.metrics import outcome_histogram
from ssdsim.policies import choose_fallback
from ssdsim.records import Fallback, Lookup, Source
from ssdsim.scenario import FallbackKind
from ssdsim.sim.rows import RowLaws

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

MISSED = np.isin(np.arange(len(Source)), (Source.JIT, Source.NGRAM, Source.NONE, Source.RANDOM))
"""Whether a row of this source had missed."""


class RowHistory(NamedTuple):
    """One entry per row and round, in any order."""

    round: IntArray
    request_id: IntArray
    slot: IntArray
    age: IntArray
    """Rounds of the request before this one."""
    kind: NDArray[np.int8]
    source: NDArray[np.int8]
    lookup: NDArray[np.int8]
    num_accepted: NDArray[np.int16]
    num_emitted: IntArray
    context_tokens: IntArray
    """Prompt and output before the round."""
    bonus_rank: NDArray[np.int32]

    def where(self, chosen: NDArray[Any]) -> RowHistory:
        """The entries at a mask or at indices."""
        return RowHistory(*(column[chosen] for column in self))


def concatenate(parts: list[RowHistory]) -> RowHistory:
    """All entries of `parts`."""
    if len(parts) == 1:
        return parts[0]
    return RowHistory(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class RowCounts(NamedTuple):
    """What the rows of each round add up to: [rounds] each."""

    batch_size: IntArray
    num_hits: IntArray
    num_misses: IntArray
    num_first: IntArray
    """Rows drafted in the first round of their request, neither hit nor miss."""
    num_final: IntArray
    """Rows whose request ends."""
    num_proposed: IntArray
    num_emitted: IntArray
    num_branches: IntArray
    context_tokens: FloatArray
    """Mean context of a row when the reply leaves."""


class RequestEvents(NamedTuple):
    """What a block of rounds brings to requests; `*_round` counts from the block's first round."""

    admitted: IntArray
    admitted_round: IntArray
    prompt_tokens: IntArray
    """Of the admitted ones."""
    ended: IntArray
    ended_round: IntArray
    seen: IntArray
    """Requests to whose counts something is added."""
    counts: Mapping[str, IntArray]
    """Columns of the request table: what is added."""


class RoundBlock(Protocol):
    """Consecutive rounds, complete with all their rows."""

    @property
    def first_round(self) -> int: ...

    @property
    def rows(self) -> RowCounts: ...

    @property
    def fallback(self) -> NDArray[np.int8]:
        """`records.Fallback` of each round."""

    @property
    def goes_on(self) -> BoolArray:
        """Whether any row of the batch uses the cache after the round."""

    @property
    def runs(self) -> IntArray | None:
        """Where runs of rounds begin that the clock may play as one; absent: it plays every round."""

    def history(self) -> RowHistory:
        """All rows of all rounds, by round and slot."""

    def outcomes(self, measured: BoolArray) -> IntArray:
        """Rows of the rounds in the mask by [source, look-up, num_proposed, num_accepted]."""

    def requests(self) -> RequestEvents: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class SpeculativeBlock:
    """Rounds given by their rows."""

    first_round: int
    rows: RowCounts
    fallback: NDArray[np.int8]
    goes_on: BoolArray
    entries: RowHistory
    """In any order."""
    laws: RowLaws
    runs: IntArray | None = None

    def __len__(self) -> int:
        return len(self.goes_on)

    def history(self) -> RowHistory:
        entries = self.entries
        key = entries.round * (int(entries.slot.max()) + 1) + entries.slot
        if np.all(np.diff(key) > 0):
            return entries
        return entries.where(np.argsort(key, kind="stable"))

    def outcomes(self, measured: BoolArray) -> IntArray:
        entries = self.entries
        if not measured.all():
            entries = entries.where(measured[entries.round - self.first_round])
        proposed = self.laws.num_proposed[entries.kind]
        return outcome_histogram(entries.source, entries.lookup, proposed, entries.num_accepted)

    def requests(self) -> RequestEvents:
        entries, index = self.entries, self.entries.round - self.first_round
        first = np.flatnonzero(entries.age == 0)
        final = np.flatnonzero(entries.lookup == Lookup.FINAL)
        lowest = int(entries.request_id.min())
        place = entries.request_id - lowest
        amounts: dict[str, NDArray[Any] | None] = {
            "output_tokens": entries.num_emitted,
            "num_rounds": None,
            "num_hits": entries.source == Source.HIT,
            "num_misses": MISSED[entries.source],
            "num_proposed": self.laws.num_proposed[entries.kind],
            "num_accepted": entries.num_accepted,
        }
        counts = {name: np.bincount(place, weights).astype(np.int64) for name, weights in amounts.items()}
        return RequestEvents(
            admitted=entries.request_id[first],
            admitted_round=index[first],
            prompt_tokens=entries.context_tokens[first],
            ended=entries.request_id[final],
            ended_round=index[final],
            seen=lowest + np.arange(len(counts["num_rounds"])),
            counts=counts,
        )


class Rounds(Protocol):
    """Where rounds come from."""

    def blocks(self) -> Iterator[RoundBlock]:
        """The run, block by block."""


def count_rows(history: RowHistory, laws: RowLaws, first_round: int, num_rounds: int) -> RowCounts:
    """Sum the entries of rounds first_round .. first_round + num_rounds - 1."""
    index = history.round - first_round

    def total(weights: NDArray[Any] | None = None) -> IntArray:
        return np.bincount(index, weights, num_rounds).astype(np.int64)

    def count(chosen: BoolArray) -> IntArray:
        return np.bincount(index[chosen], minlength=num_rounds)

    batch_size = total()
    return RowCounts(
        batch_size=batch_size,
        num_hits=count(history.source == Source.HIT),
        num_misses=count(MISSED[history.source]),
        num_first=count(history.source == Source.FIRST),
        num_final=count(history.lookup == Lookup.FINAL),
        num_proposed=total(laws.num_proposed[history.kind]),
        num_emitted=total(history.num_emitted),
        num_branches=total(laws.num_branches[history.kind]),
        context_tokens=np.bincount(index, history.context_tokens, num_rounds) / batch_size,
    )


class Answer:
    """What the misses of a round get: the drafting's fallback with `auto` and an absent threshold resolved."""

    def __init__(self, kind: FallbackKind, threshold: int | None, batch_size: int) -> None:
        if kind is FallbackKind.THRESHOLD and threshold is not None and not 1 < threshold <= batch_size:
            kind = FallbackKind.JIT if threshold <= 1 else FallbackKind.NONE
        self.looks_at_batch = kind is FallbackKind.THRESHOLD
        """Whether the answer depends on how many rows miss."""
        actions = [
            choose_fallback(kind.value, misses, batch_size, threshold=threshold)
            for misses in range(1, batch_size + 1)
        ]
        self.to_misses = np.array([Fallback.NOT_NEEDED, *(Fallback[action.upper()] for action in actions)], np.int8)
        """The action by number of misses, 0 .. batch_size."""
