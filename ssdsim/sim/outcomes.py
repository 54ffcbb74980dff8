"""How the rows of one round fare, drawn by chance or read off a rank trace; used by `stepped`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from ssdsim.profile import RankTrace
from ssdsim.sim.requests import Requests
from ssdsim.sim.rounds import BoolArray, IntArray
from ssdsim.sim.rows import UNDRAFTED, RowLaws
from ssdsim.sim.streams import ROUNDS_PER_TILE, Stream, Streams


class Outcomes(NamedTuple):
    """The outcomes of one round, [rows] each."""

    num_accepted: IntArray
    hits: BoolArray
    bonus_rank: IntArray


class OutcomeSource(Protocol):
    """Where outcomes come from."""

    def admit(self, slots: IntArray, first_request: int) -> None:
        """The next requests, from `first_request` on, sit in `slots`."""

    def draw(self, slots: IntArray, kinds: IntArray, ages: IntArray, produced: IntArray) -> Outcomes:
        """The next round of the rows in `slots`, `ages` rounds and `produced` tokens into their requests."""


class RandomOutcomes:
    """Acceptance and look-ups by chance, with the uniforms that belong to each request and round.

    What every kind of row would do with them is worked out for a stretch of rounds, so that a round only looks it up.
    """

    def __init__(self, laws: RowLaws, requests: Requests, streams: Streams, batch_size: int) -> None:
        self._laws, self._requests, self._streams = laws, requests, streams
        self._ids = np.zeros(batch_size, np.int64)
        self._survival = laws.survival_of_kinds(np.zeros(batch_size))
        shape = (batch_size, len(laws.kinds), ROUNDS_PER_TILE)
        self._accepted = np.zeros(shape, np.int64)
        self._hits = np.zeros(shape, bool)
        self._unknown = np.full(batch_size, -1)

    def admit(self, slots: IntArray, first_request: int) -> None:
        self._ids[slots] = first_request + np.arange(len(slots))
        self._survival[slots] = self._laws.survival_of_kinds(self._requests.luck(first_request, len(slots)))

    def draw(self, slots: IntArray, kinds: IntArray, ages: IntArray, produced: IntArray) -> Outcomes:
        columns = ages % ROUNDS_PER_TILE
        for i in np.flatnonzero(columns == 0).tolist():
            self._look_ahead(int(slots[i]), int(ages[i]))
        place = (slots, kinds, columns)
        return Outcomes(self._accepted[place], self._hits[place], self._unknown[: len(slots)])

    def _look_ahead(self, slot: int, age: int) -> None:
        """Outcomes of the next stretch for every kind: [kinds, rounds]."""
        request = self._ids[slot : slot + 1]
        luck = self._streams.per_round(Stream.ACCEPTANCE, request, age, ROUNDS_PER_TILE)
        accepted = (luck < self._survival[slot][:, :, None]).sum(axis=1)
        hit_probs = np.take_along_axis(self._laws.hit_probs, accepted, axis=1)
        self._accepted[slot] = accepted
        self._hits[slot] = self._streams.per_round(Stream.LOOKUP, request, age, ROUNDS_PER_TILE) < hit_probs


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

    def admit(self, slots: IntArray, first_request: int) -> None:
        self._offset[slots] = self._starts[(first_request + np.arange(len(slots))) % len(self._starts)]

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
