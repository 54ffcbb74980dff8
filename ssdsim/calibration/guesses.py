"""How often the bonus token was, or would have been, among the first F guesses: counts by request and fan-out.

Where a run tells the bonus token's rank, every fan-out is answered at once; otherwise only the fan-out that was in
use, by whether the look-up hit. Positions differ (THEORY 4.3): at a rejection the draft's favourite is ruled out,
where everything was accepted it is not, and after a fallback that proposed nothing the draft was not rejected at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.runs import DRAFTED, Columns, Run
from ssdsim.records import Lookup, Source
from ssdsim.scenario import Mode

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

FAN_OUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Fan-outs at which ranks are counted: about evenly spaced in the logarithm, so that none rules a fit."""


class GuessCounts(NamedTuple):
    """Trials and misses by request and fan-out; what was never tried is left out."""

    fan_outs: NDArray[np.int64]
    """[fan-outs], increasing"""
    trials: FloatArray
    """[requests, fan-outs]"""
    misses: FloatArray
    """[requests, fan-outs]"""
    num_guesses: int
    """Bonus tokens behind the counts; one whose rank is known is a trial at every fan-out."""

    @property
    def num_requests(self) -> int:
        """Requests with a trial."""
        return len(self.trials)

    def resampled(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Trials and misses summed over requests, each taken `weights` [samples, requests] times."""
        return weights @ self.trials, weights @ self.misses


def _rejected(outcomes: Columns) -> BoolArray:
    rejected: BoolArray = outcomes["num_accepted"] < outcomes["num_proposed"]
    return rejected


def _after_draft_rejection(outcomes: Columns) -> BoolArray:
    return np.isin(outcomes["source"], DRAFTED) & _rejected(outcomes)


def _after_draft_all_accepted(outcomes: Columns) -> BoolArray:
    return np.isin(outcomes["source"], DRAFTED) & ~_rejected(outcomes)


def _after_hit_rejection(outcomes: Columns) -> BoolArray:
    return np.isin(outcomes["source"], (Source.FIRST, Source.HIT)) & _rejected(outcomes)


def _after_hit_all_accepted(outcomes: Columns) -> BoolArray:
    return np.isin(outcomes["source"], (Source.FIRST, Source.HIT)) & ~_rejected(outcomes)


def _after_redraft_rejection(outcomes: Columns) -> BoolArray:
    chosen: BoolArray = (outcomes["source"] == Source.JIT) & _rejected(outcomes)
    return chosen


def _after_redraft_all_accepted(outcomes: Columns) -> BoolArray:
    chosen: BoolArray = (outcomes["source"] == Source.JIT) & ~_rejected(outcomes)
    return chosen


def _after_fallback_rejection(outcomes: Columns) -> BoolArray:
    chosen: BoolArray = (outcomes["source"] == Source.NGRAM) & _rejected(outcomes)
    return chosen


def _after_fallback_all_accepted(outcomes: Columns) -> BoolArray:
    """Also random tokens: that the target rejects them says nothing of the draft's favourite."""
    ngram: BoolArray = (outcomes["source"] == Source.NGRAM) & ~_rejected(outcomes)
    return ngram | np.isin(outcomes["source"], (Source.NONE, Source.RANDOM))


POSITIONS: Mapping[tuple[str, str], Callable[[Columns], BoolArray]] = {
    ("after_draft", "rejection"): _after_draft_rejection,
    ("after_draft", "all_accepted"): _after_draft_all_accepted,
    ("after_fallback", "rejection"): _after_fallback_rejection,
    ("after_fallback", "all_accepted"): _after_fallback_all_accepted,
}
"""The curves by their place in `HitCurves`, and the rows of the outcome table that speak of each."""


APART: Mapping[tuple[str, str], Callable[[Columns], BoolArray]] = {
    ("after_hit", "rejection"): _after_hit_rejection,
    ("after_hit", "all_accepted"): _after_hit_all_accepted,
    ("after_redraft", "rejection"): _after_redraft_rejection,
    ("after_redraft", "all_accepted"): _after_redraft_all_accepted,
}
"""Drafted rounds by whether the request had just missed: misses come in stretches that are hard to guess."""


class _Guess(NamedTuple):
    """Bonus tokens, one entry each."""

    request: NDArray[np.int64]
    rank: NDArray[np.int64]
    """At least 1, or -1 where only the look-up is known."""
    fan_out: NDArray[np.int64]
    missed: BoolArray


def count_guesses(runs: Sequence[Run], position: tuple[str, str]) -> GuessCounts:
    """Counts of all SSD runs at one kind of position, a key of `POSITIONS` or `APART`."""
    rows = {**POSITIONS, **APART}[position]
    numbers: dict[tuple[str, int], int] = {}
    parts = [_guesses_of(run, rows, numbers) for run in runs if run.mode is Mode.SSD]
    if not parts:
        nothing = np.zeros((0, 0))
        return GuessCounts(np.zeros(0, np.int64), nothing, nothing, 0)
    guess = _Guess(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    ranked = guess.rank >= 1
    fan_outs = np.unique(np.append(guess.fan_out[~ranked], FAN_OUTS if ranked.any() else ()).astype(np.int64))
    trials, misses = np.zeros((2, len(numbers), len(fan_outs)))
    np.add.at(trials, guess.request[ranked], 1.0)
    np.add.at(misses, guess.request[ranked], fan_outs < guess.rank[ranked, None])
    place = (guess.request[~ranked], np.searchsorted(fan_outs, guess.fan_out[~ranked]))
    np.add.at(trials, place, 1.0)
    np.add.at(misses, place, guess.missed[~ranked].astype(np.float64))
    seen = trials.sum(axis=1) > 0
    return GuessCounts(fan_outs, trials[seen], misses[seen], len(guess.rank))


def _guesses_of(run: Run, chosen_rows: Callable[[Columns], BoolArray], numbers: dict[tuple[str, int], int]) -> _Guess:
    """The bonus tokens of a run that were emitted and of which something is known; `numbers` counts requests."""
    outcomes = run.outcomes
    emitted = outcomes["num_emitted"] > outcomes["num_accepted"]
    ranked = outcomes["bonus_rank"] >= 1
    looked_up = np.isin(outcomes["lookup"], (Lookup.HIT, Lookup.MISS)) & (outcomes["fan_out_here"] >= 1)
    chosen = chosen_rows(outcomes) & emitted & (ranked | looked_up)
    ids, row = np.unique(outcomes["request_id"][chosen], return_inverse=True)
    own = [numbers.setdefault((run.request_set, int(i)), len(numbers)) for i in ids]
    return _Guess(
        request=np.array(own, np.int64)[row],
        rank=outcomes["bonus_rank"][chosen].astype(np.int64),
        fan_out=outcomes["fan_out_here"][chosen].astype(np.int64),
        missed=outcomes["lookup"][chosen] == Lookup.MISS,
    )
