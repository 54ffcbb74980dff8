"""Mean duration of a round of a lock-stepped batch whose slots are independent (THEORY 2).

One round of b slots: verification runs over n drafted rows and the others, next to it the build of the next
cache; then every slot looks up, misses are answered by the fallback, and the batch starts its next round when
its slowest slot is ready:

    D = overhead + window(n) + late(n) [some slot waits] + gap       on_late = wait
    D = overhead + window(n) + max( late(n) [some slot hits], gap )  on_late = abort

    late(n) = max(0, build(n) - window(n)),   gap = fallback(misses), 0 without a miss

which is the `max(L_hit, L_miss)` of THEORY 2 written as what each cause adds. The means of `window` and `gap`
need one binomial law each. Only an aborted late build couples hits with misses; it adds E[(late - gap)+; a
hit]: a few powers where the gap does not depend on how many miss, a joint law otherwise. Where slots are refilled,
the verifier reads the new prompts beside all that: the round waits for it as well, which adds E[(prefill - what it
waits for anyway)+] by a joint law. Used by `renewal`
(endless), `closed` (refilled slots) and `finite` (static batches); `sim` plays the same round event by event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory.domain import BoolArray, FloatArray, Real, as_real, non_negative, positive, refuse_where
from ssdsim.theory.joint_law import batch_slots, binomial_terms, joint_counts

OnLate = Literal["wait", "abort"]

_BLOCK_BYTES = 1 << 24
"""Joint laws are taken for as many points at a time as fit here."""


class Source(IntEnum):
    """Who wrote the speculation that a slot has verified in this round."""

    DRAFTED = 0
    FALLBACK = 1


class End(IntEnum):
    """How a slot ends a round."""

    HIT = 0
    MISS = 1
    FINISHED = 2


ALL_ENDS = tuple(End)


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Times of one batch's rounds. Leading axes (design points) broadcast; b is read off `fallback_s`.

    Lists are taken for arrays.

    Raises DomainError for times that are negative or not finite, a window of 0, wrong lengths.
    """

    window_s: FloatArray
    """[..., b+1]: verify, accept, reply and outcome with n = 0..b drafted rows; [..., 1]: whatever n is."""
    build_s: FloatArray
    """[..., b+1] or [..., 1]: building the whole next cache in a round with n drafted rows."""
    fallback_s: FloatArray
    """[..., b+1]: the fallback for m = 0..b misses; nothing at m = 0."""
    overhead_s: Real = 0.0
    """[...]: serial time of every round (look-up, host)."""
    on_late: OnLate = "wait"
    """Whether a miss waits for a build that outlives the window, or aborts it."""

    def __post_init__(self) -> None:
        fallback_s = by_count("fallback_s", self.fallback_s)
        size = fallback_s.shape[-1]
        if self.on_late not in ("wait", "abort"):
            raise DomainError("on_late", "must be 'wait' or 'abort' (truncate: pass the K ready)", self.on_late)
        object.__setattr__(self, "window_s", _by_drafted("window_s", positive("window_s", self.window_s), size))
        object.__setattr__(self, "build_s", _by_drafted("build_s", non_negative("build_s", self.build_s), size))
        object.__setattr__(self, "fallback_s", fallback_s)
        object.__setattr__(self, "overhead_s", non_negative("overhead_s", self.overhead_s))

    @property
    def batch_size(self) -> int:
        return int(self.fallback_s.shape[-1]) - 1

    @property
    def points_shape(self) -> tuple[int, ...]:
        """The common leading shape."""
        tables = (self.window_s, self.build_s, self.fallback_s)
        return np.broadcast_shapes(np.shape(self.overhead_s), *(table.shape[:-1] for table in tables))


@dataclass(frozen=True, kw_only=True)
class RoundMean:
    """Mean duration of a round by cause, each [...]; the causes add up."""

    window_s: Real
    build_wait_s: Real
    """Time by which the build outlives the window and nothing hides it."""
    fallback_s: Real
    """Answering misses and, under refill, first drafting."""
    overhead_s: Real
    prefill_s: Real = 0.0
    """Time by which reading prompts outlives the late build and the gaps."""

    @property
    def round_s(self) -> Real:
        return self.window_s + self.build_wait_s + self.fallback_s + self.overhead_s + self.prefill_s


@dataclass(frozen=True)
class Gap:
    """Work between look-up and next verification: `time_s[..., m]` when m slots end a round in `ends`."""

    ends: tuple[End, ...]
    time_s: FloatArray


def by_count(name: str, time_s: npt.ArrayLike) -> FloatArray:
    """`time_s` [..., b+1] of work for 0..b slots, checked: no negative time, nothing to do for no slot."""
    table = np.atleast_1d(non_negative(name, time_s))
    batch_slots(table.shape[-1] - 1)
    refuse_where(table[..., 0] != 0.0, name, "must be 0 at a count of 0", table[..., 0])
    return table


def mean_round(
    law: FloatArray, times: RoundTimes, gaps: Sequence[Gap] | None = None, prefill: Gap | None = None
) -> RoundMean:
    """Mean round of `times.batch_size` independent slots, each following `law`.

    `law` [..., 2, 3]: probability of (Source, End) in a round. A sum below 1 means a slot may be idle: then
    `window_s` and `build_s` must not depend on n, and a round without an active slot takes no time. `gaps`:
    the fallback of the misses where absent. `prefill`: the verifier's own work beside late build and gaps, as far as
    it outlives the overhead; its ends must be among those of the gaps. Leading axes of `law`, `times`, `gaps` and
    `prefill` broadcast.
    """
    if gaps is None:
        gaps = (Gap((End.MISS,), times.fallback_s),)
    tables = [gap.time_s for gap in (*gaps, *(() if prefill is None else (prefill,)))]
    shape = np.broadcast_shapes(law.shape[:-2], times.points_shape, *(table.shape[:-1] for table in tables))
    batch = _flatten(law, times, gaps, shape)
    overhead_s = _flat(np.asarray(times.overhead_s), shape, 0) * (1.0 - batch.idle**batch.slots)
    unhidden_s = np.zeros(len(batch.law))
    if prefill is not None:
        unhidden_s = batch.mean_prefill(Gap(prefill.ends, _flat(prefill.time_s, shape, 1)))
    return RoundMean(
        window_s=as_real(batch.mean_window().reshape(shape)),
        build_wait_s=as_real(batch.mean_build_wait().reshape(shape)),
        fallback_s=as_real(batch.mean_gap().reshape(shape)),
        overhead_s=as_real(overhead_s.reshape(shape)),
        prefill_s=as_real(unhidden_s.reshape(shape)),
    )


@dataclass(frozen=True)
class _Batch:
    """The operands of `mean_round` over one flat axis of points."""

    slots: int
    on_late: OnLate
    law: FloatArray
    """[points, 2, 3]"""
    idle: FloatArray
    """[points]: probability that a slot is idle."""
    window_s: FloatArray
    """[points, b+1 or 1]"""
    late_s: FloatArray
    """[points, b+1 or 1]: by how much the build outlives the window."""
    gaps: tuple[Gap, ...]

    def mean_window(self) -> FloatArray:
        nobody = self.idle**self.slots
        return _mean(self._drafted_law(self.window_s, ALL_ENDS), self.window_s) - nobody * self.window_s[:, 0]

    def mean_gap(self) -> FloatArray:
        total = np.zeros(len(self.law))
        for gap in self.gaps:
            share = self.law[:, :, gap.ends].sum(axis=(1, 2))
            if _is_constant(gap).all():
                total += gap.time_s[:, 1] * (1.0 - (1.0 - share) ** self.slots)
            else:
                total += _mean(binomial_terms(self.slots, share, 1.0 - share), gap.time_s)
        return total

    def mean_build_wait(self) -> FloatArray:
        total = np.zeros(len(self.law))
        late: BoolArray = np.asarray(self.late_s.any(axis=1))
        if not late.any():
            return total
        if self.on_late == "wait":
            total[late] = self._at(late)._waited()
            return total
        busy = replace(self, gaps=tuple(gap for gap in self.gaps if gap.time_s.any()) or self.gaps[:1])
        simple = late & _is_constant(busy.gaps[0]) if len(busy.gaps) == 1 else np.zeros_like(late)
        if simple.any():
            total[simple] = busy._at(simple)._unhidden_by_one_gap()
        for rows in _in_blocks(np.flatnonzero(late & ~simple), self.slots, 1 + len(busy.gaps)):
            total[rows] = busy._at(rows)._unhidden_by_joint_law()
        return total

    def mean_prefill(self, prefill: Gap) -> FloatArray:
        """By how much `prefill` outlives the late build and the gaps that the next round waits for anyway."""
        total = np.zeros(len(self.law))
        busy = replace(self, gaps=tuple(gap for gap in self.gaps if gap.time_s.any()))
        rows = np.flatnonzero(prefill.time_s.any(axis=1))
        for part in _in_blocks(rows, self.slots, 2 + len(busy.gaps)):
            total[part] = busy._at(part)._unhidden_prefill(Gap(prefill.ends, prefill.time_s[part]))
        return total

    def _unhidden_prefill(self, prefill: Gap) -> FloatArray:
        ends = tuple(dict.fromkeys(gap.ends for gap in (*self.gaps, prefill)))
        late_s, prefill_s = self._along_drafted(ends), _along(prefill, ends)
        gap_s = sum((_along(gap, ends) for gap in self.gaps), start=np.zeros_like(prefill_s))
        law = self._joint_law(ends)
        if self.on_late == "wait" or not late_s.any():
            return _total(law, np.maximum(prefill_s - late_s - gap_s, 0.0))
        no_hit = self._joint_law(ends, without=End.HIT)
        hidden_from_hits = np.maximum(prefill_s - np.maximum(late_s, gap_s), 0.0)
        return _total(law - no_hit, hidden_from_hits) + _total(no_hit, np.maximum(prefill_s - gap_s, 0.0))

    def _waited(self) -> FloatArray:
        """Everyone who looks up or is refilled waits for the build."""
        waiting = {End.HIT, *(end for gap in self.gaps for end in gap.ends)}
        leaving = _without(ALL_ENDS, *waiting)
        someone = self._drafted_law(self.late_s, ALL_ENDS) - self._drafted_law(self.late_s, leaving)
        return _mean(someone, self.late_s)

    def _unhidden_by_one_gap(self) -> FloatArray:
        """E[(late - gap)+; a hit] where the gap is 0 or one constant, by inclusion and exclusion."""
        gap = self.gaps[0]
        no_gap = _without(ALL_ENDS, *gap.ends)
        everything = self._drafted_law(self.late_s, ALL_ENDS)
        without_hit = self._drafted_law(self.late_s, _without(ALL_ENDS, End.HIT))
        without_gap = self._drafted_law(self.late_s, no_gap)
        without_both = self._drafted_law(self.late_s, _without(no_gap, End.HIT))
        beyond_gap_s = np.maximum(self.late_s - gap.time_s[:, 1:2], 0.0)
        only_hits = _mean(without_gap - without_both, self.late_s)
        return only_hits + _mean(everything - without_hit - without_gap + without_both, beyond_gap_s)

    def _unhidden_by_joint_law(self) -> FloatArray:
        """E[(late - gap)+; a hit] in general: over the law of everything less the law without a hit."""
        ends = tuple(dict.fromkeys(gap.ends for gap in self.gaps))
        excess_s = self._along_drafted(ends) - sum(_along(gap, ends) for gap in self.gaps)
        law = self._joint_law(ends) - self._joint_law(ends, without=End.HIT)
        return _total(law, np.maximum(excess_s, 0.0))

    def _joint_law(self, ends: Sequence[tuple[End, ...]], without: End | None = None) -> FloatArray:
        """Law of the drafted rows (one column where nothing depends on them) and of the slots that end in each of
        `ends`: [points, b+1 or 1, b+1, ...]; only the part of it in which no slot ends `without`."""
        classes = np.concatenate([self.law.reshape(-1, 6), self.idle[:, None]], axis=1)
        if without is not None:
            classes[:, _classes(tuple(Source), (without,))] = 0.0
        counted = [_classes(tuple(Source), members) for members in ends]
        if self.late_s.shape[1] == 1:
            return joint_counts(self.slots, classes, counted)[:, None]
        return joint_counts(self.slots, classes, [_classes((Source.DRAFTED,), ALL_ENDS), *counted])

    def _along_drafted(self, ends: Sequence[tuple[End, ...]]) -> FloatArray:
        """`late_s` along the first axis of `_joint_law`."""
        return self.late_s.reshape(*self.late_s.shape, *(1,) * len(ends))

    def _drafted_law(self, table: FloatArray, ends: tuple[End, ...]) -> FloatArray:
        """P(n drafted rows, every active slot ends in one of `ends`), n along the columns of `table`."""
        drafted = self.law[:, Source.DRAFTED, ends].sum(axis=1)
        fallback = self.law[:, Source.FALLBACK, ends].sum(axis=1)
        if table.shape[1] == 1:
            return np.asarray((drafted + fallback + self.idle) ** self.slots)[:, None]
        return binomial_terms(self.slots, drafted, fallback)

    def _at(self, rows: npt.NDArray[np.intp] | BoolArray) -> _Batch:
        return replace(
            self,
            law=self.law[rows],
            idle=self.idle[rows],
            window_s=self.window_s[rows],
            late_s=self.late_s[rows],
            gaps=tuple(Gap(gap.ends, gap.time_s[rows]) for gap in self.gaps),
        )


def _flatten(law: FloatArray, times: RoundTimes, gaps: Sequence[Gap], shape: tuple[int, ...]) -> _Batch:
    flat_law = _flat(law, shape, 2)
    window_s = _flat(times.window_s, shape, 1)
    late_s = np.maximum(_flat(times.build_s, shape, 1) - window_s, 0.0)
    idle = np.maximum(1.0 - flat_law.sum(axis=(1, 2)), 0.0)
    if late_s.shape[1] > 1 and np.any(idle > 1e-9):
        requirement = (
            "must leave no slot idle where window_s or build_s depend on the drafted rows: give them by active row"
        )
        raise DomainError("law", requirement, f"idle with probability {idle.max():.3g}")
    flat_gaps = tuple(Gap(gap.ends, _flat(gap.time_s, shape, 1)) for gap in gaps)
    return _Batch(times.batch_size, times.on_late, flat_law, idle, window_s, late_s, flat_gaps)


def _flat(table: FloatArray, shape: tuple[int, ...], inner: int) -> FloatArray:
    """`table` broadcast over the points' `shape`, which becomes one axis; the last `inner` axes stay."""
    own = table.shape[table.ndim - inner :]
    return np.broadcast_to(table, (*shape, *own)).reshape(-1, *own)


def _mean(law: FloatArray, values: FloatArray) -> FloatArray:
    mean: FloatArray = np.einsum("pn,pn->p", law, values)
    return mean


def _total(law: FloatArray, values: FloatArray) -> FloatArray:
    """Mean of `values` over a joint law, [points]."""
    return np.asarray((law * values).sum(axis=tuple(range(1, law.ndim))))


def _along(gap: Gap, ends: Sequence[tuple[End, ...]]) -> FloatArray:
    """The gap's times along its own axis of a joint law over `ends`."""
    axes = [1] * len(ends)
    axes[ends.index(gap.ends)] = gap.time_s.shape[1]
    return gap.time_s.reshape(len(gap.time_s), 1, *axes)


def _in_blocks(rows: npt.NDArray[np.intp], slots: int, num_counts: int) -> Iterator[npt.NDArray[np.intp]]:
    """`rows`, as many at a time as have their joint law of `num_counts` counts in `_BLOCK_BYTES`."""
    size = max(1, _BLOCK_BYTES // (16 * (slots + 1) ** num_counts))
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _is_constant(gap: Gap) -> BoolArray:
    """Whether the gap lasts the same for one slot as for all."""
    return np.asarray((gap.time_s[:, 1:] == gap.time_s[:, 1:2]).all(axis=1))


def _without(ends: tuple[End, ...], *left_out: End) -> tuple[End, ...]:
    return tuple(end for end in ends if end not in left_out)


def _classes(sources: tuple[Source, ...], ends: tuple[End, ...]) -> list[int]:
    return [len(End) * source + end for source in sources for end in ends]


def _by_drafted(name: str, time_s: Real, size: int) -> FloatArray:
    table = np.atleast_1d(time_s)
    if table.shape[-1] not in (1, size):
        raise DomainError(name, f"must have 1 or b+1 = {size} entries on its last axis", table.shape)
    return table
