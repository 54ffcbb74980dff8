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
    num_emitted: NDArray[np.integer]
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

    def admissions(self) -> tuple[IntArray, IntArray]:
        """(round, counted from the block's first; prompt tokens) of every admitted request."""

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
    """In any order; by round and slot where requests never end."""
    laws: RowLaws
    endless: bool = False
    """Whether requests never end, so that nothing about them needs to be kept."""

    runs = None

    def __len__(self) -> int:
        return len(self.goes_on)

    def history(self) -> RowHistory:
        entries = self.entries
        if self.endless:
            return entries
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

    def admissions(self) -> tuple[IntArray, IntArray]:
        first = np.flatnonzero(self.entries.age == 0)
        return self.entries.round[first] - self.first_round, self.entries.context_tokens[first]

    def requests(self) -> RequestEvents:
        if self.endless:
            nobody = np.zeros(0, np.int64)
            return RequestEvents(nobody, nobody, nobody, nobody, nobody, nobody, {})
        entries, index = self.entries, self.entries.round - self.first_round
        first = np.flatnonzero(entries.age == 0)
        final = np.flatnonzero(entries.lookup == Lookup.FINAL)
        lowest = int(entries.request_id.min())
        place = entries.request_id - lowest
        size = int(place.max()) + 1

        def total(amounts: NDArray[Any]) -> IntArray:
            return np.bincount(place, amounts, size).astype(np.int64)

        counts = {
            "output_tokens": total(entries.num_emitted),
            "num_rounds": np.bincount(place, minlength=size),
            "num_hits": total(entries.source == Source.HIT),
            "num_misses": total(missed(entries.source)),
            "num_proposed": total(self.laws.num_proposed[entries.kind]),
            "num_accepted": total(entries.num_accepted),
        }
        return RequestEvents(
            admitted=entries.request_id[first],
            admitted_round=index[first],
            prompt_tokens=entries.context_tokens[first],
            ended=entries.request_id[final],
            ended_round=index[final],
            seen=lowest + np.arange(size),
            counts=counts,
        )


class Rounds(Protocol):
    """Where rounds come from."""

    def blocks(self) -> Iterator[RoundBlock]:
        """The run, block by block."""


def count_rows(
    history: RowHistory, laws: RowLaws, first_round: int, num_rounds: int, *, ordered: bool = False
) -> RowCounts:
    """Sum the entries of rounds first_round .. first_round + num_rounds - 1; `ordered`: they come by round."""
    index = history.round - first_round
    starts = np.searchsorted(index, np.arange(num_rounds)) if ordered else None

    def total(amounts: NDArray[Any]) -> IntArray:
        if starts is None:
            return np.bincount(index, amounts, num_rounds).astype(np.int64)
        sums: IntArray = np.add.reduceat(amounts, starts, dtype=np.int64)
        return sums

    batch_size = total(np.ones(len(index), dtype=bool))
    of_kind = np.stack([total(history.kind == kind) for kind in range(len(laws.kinds))], axis=1)
    return RowCounts(
        batch_size=batch_size,
        num_hits=total(history.source == Source.HIT),
        num_misses=total(missed(history.source)),
        num_first=total(history.source == Source.FIRST),
        num_final=total(history.lookup == Lookup.FINAL),
        num_proposed=of_kind @ laws.num_proposed,
        num_emitted=total(history.num_emitted),
        num_branches=of_kind @ laws.num_branches,
        context_tokens=total(history.context_tokens) / batch_size,
    )


def missed(source: NDArray[np.int8]) -> BoolArray:
    """Rows whose look-up had missed."""
    return (source >= Source.JIT) & (source <= Source.RANDOM)


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
