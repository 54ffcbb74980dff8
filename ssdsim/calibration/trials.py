"""How often each position of a draft was reached and accepted, request by request.

Acceptance of a position is conditional: the trial at position i takes place where everything before it was accepted.
A request's last round is cut at its length, so only what it emitted counts: that way the count is right also for
runs that replay traces, which end with their last token.

Runs that serve the same requests tell the same story again (greedy decoding word for word), so their counts are
averaged, not added: else what is one request's luck would pass for a difference between requests.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.runs import Run

FloatArray = NDArray[np.float64]


class Trials(NamedTuple):
    """Counts by request (of all runs that served it) and column; a column is a position under one lookahead."""

    lookahead: NDArray[np.int64]
    """[columns]"""
    position: NDArray[np.int64]
    """[columns], from 0"""
    reached: FloatArray
    """[requests, columns]"""
    accepted: FloatArray
    """[requests, columns]"""

    @property
    def num_requests(self) -> int:
        """Requests with at least one trial."""
        return len(self.reached)

    @property
    def lookaheads(self) -> list[int]:
        """The lookaheads that were observed."""
        return sorted(set(self.lookahead.tolist()))

    def pooled(self) -> Trials:
        """One column per position, whatever the lookahead: means over the lookaheads that served the request."""
        positions = np.unique(self.position)
        same = (self.position[:, None] == positions).astype(np.float64)
        longest = np.full(len(positions), self.lookahead.max())
        served = np.stack([self.reached[:, self.lookahead == k].any(axis=1) for k in self.lookaheads], axis=1)
        share = 1.0 / np.maximum(served.sum(axis=1, keepdims=True), 1)
        return Trials(longest, positions, share * (self.reached @ same), share * (self.accepted @ same))


def count_trials(runs: Sequence[Run], sources: Collection[int], num_tokens: int | None = None) -> Trials:
    """Count the rows whose speculation came from one of `sources`.

    `num_tokens`: count as if that many had been proposed always, what was not proposed being rejected (n-gram
    look-up, which often finds less); absent: as many as were proposed.
    """
    parts = [_counts_of(run, sources, num_tokens) for run in runs]
    columns = sorted({(run.lookahead, i) for run, part in zip(runs, parts, strict=True) for i in range(part.width)})
    keys = {key: row for row, key in enumerate(dict.fromkeys(key for part in parts for key in part.keys))}
    counts = np.zeros((2, len(keys), len(columns)))
    served = np.zeros((len(keys), len(columns)))
    for run, part in zip(runs, parts, strict=True):
        rows = np.array([keys[key] for key in part.keys], np.int64)
        to = np.array([columns.index((run.lookahead, i)) for i in range(part.width)], np.int64)
        for total, here in zip(counts, (part.reached, part.accepted), strict=True):
            np.add.at(total, np.ix_(rows, to), here)
        alike = [column for column, (lookahead, _) in enumerate(columns) if lookahead == run.lookahead]
        served[np.ix_(rows, np.array(alike, np.int64))] += 1
    counts /= np.maximum(served, 1)
    seen = counts[0].sum(axis=1) > 0
    lookahead, position = np.array(columns, np.int64).reshape(-1, 2).T
    return Trials(lookahead, position, counts[0][seen], counts[1][seen])


class _RunCounts(NamedTuple):
    keys: list[tuple[str, int]]
    reached: FloatArray
    accepted: FloatArray

    @property
    def width(self) -> int:
        return int(self.reached.shape[1])


def _counts_of(run: Run, sources: Collection[int], num_tokens: int | None) -> _RunCounts:
    outcomes = run.outcomes
    chosen = np.isin(outcomes["source"], list(sources))
    proposed = outcomes["num_proposed"][chosen].astype(np.int64)
    emitted = outcomes["num_emitted"][chosen].astype(np.int64)
    accepted = np.minimum(outcomes["num_accepted"][chosen].astype(np.int64), emitted)
    if num_tokens is not None:
        proposed = np.where(emitted > accepted, num_tokens, np.minimum(proposed, num_tokens))
        accepted = np.minimum(accepted, num_tokens)
    ids, row = np.unique(outcomes["request_id"][chosen], return_inverse=True)
    width = int(proposed.max(initial=0))
    reached, succeeded = np.zeros((2, len(ids), width))
    for i in range(width):
        tried = (proposed > i) & (accepted >= i) & (emitted > i)
        np.add.at(reached[:, i], row[tried], 1.0)
        np.add.at(succeeded[:, i], row[tried & (accepted > i)], 1.0)
    return _RunCounts([(run.request_set, int(i)) for i in ids], reached, succeeded)
