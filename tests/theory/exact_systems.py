"""What the tests of the exact model share: the paper's running example, and a Monte Carlo of the round.

The Monte Carlo is written from the description of the round (row by row, with maxima), not from the formulas it
checks, and plays many independent batches at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ssdsim.theory.hit_curve import AllAccepted, PowerLaw
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw

CURVE = PowerLaw(exponent=1.0, prefactor=0.5)
ALL_ACCEPTED = AllAccepted(acceptance_prob=0.8, base=CURVE)


def drafted_rows(fan_out: list[int]) -> RowLaw:
    """THEORY's running example, a = .8, r = 1, c = .5, with K = len(fan_out) - 1."""
    hits = [*(CURVE.hit_prob(f) for f in fan_out[:-1]), ALL_ACCEPTED.hit_prob(fan_out[-1])]
    return RowLaw(acceptance_prob=[0.8] * (len(fan_out) - 1), hit_prob=hits)


def undrafted_rows(budget: int) -> RowLaw:
    """The fallback that proposes nothing: one position, the whole budget on it."""
    return RowLaw(acceptance_prob=[], hit_prob=[ALL_ACCEPTED.hit_prob(budget)])


DRAFTED_5 = drafted_rows([5, 4, 4, 4, 3, 4])
"""K = 5, B = 24: the greedy allocation of THEORY 4.5."""
DRAFTED_7 = drafted_rows([4, 4, 3, 3, 3, 2, 2, 3])
"""K = 7, B = 24: the same table."""
UNDRAFTED = undrafted_rows(24)


def ratio_times(batch_size: int, build: float, fallback: float, on_late: str = "abort") -> RoundTimes:
    """The paper's clock: verification lasts 1 whatever is verified."""
    return RoundTimes(window_s=[1.0], build_s=[build], fallback_s=[0.0] + [fallback] * batch_size, on_late=on_late)


@dataclass(frozen=True)
class Sampled:
    """Ratio estimate sum(tokens) / sum(time) over independent batches, with its standard error."""

    rate: float
    error: float

    def z(self, exact: float) -> float:
        return (self.rate - exact) / self.error


def ratio_estimate(tokens: np.ndarray, seconds: np.ndarray) -> Sampled:
    rate = tokens.sum() / seconds.sum()
    residual = tokens - rate * seconds
    error = residual.std(ddof=1) / np.sqrt(len(tokens)) / seconds.mean()
    return Sampled(rate, error)


@dataclass
class Loop:
    """A closed loop of b slots in `replicas` independent batches; lengths None: requests never end."""

    rows: dict[str, RowLaw]
    times: RoundTimes
    lengths: tuple[Any, Any] | None = None
    first_round: str = "jit"
    first_draft_s: Any = None
    replicas: int = 400

    def run(self, rng: np.random.Generator, rounds: int, warmup: int) -> Sampled:
        shape = (self.replicas, self.times.batch_size)
        left = self._draw_lengths(rng, shape)
        fallback = np.full(shape, self.first_round == "miss")
        tokens, seconds = np.zeros(self.replicas), np.zeros(self.replicas)
        for index in range(warmup + rounds):
            accepted, hit = self._verify(rng, fallback)
            emitted = np.minimum(accepted + 1, left)
            left = left - emitted
            finished = left == 0
            duration = self._duration(~fallback, hit & ~finished, ~hit & ~finished, finished)
            if index >= warmup:
                tokens += emitted.mean(axis=1)
                seconds += duration
            left = np.where(finished, self._draw_lengths(rng, shape), left)
            fallback = np.where(finished, self.first_round == "miss", ~hit)
        return ratio_estimate(tokens, seconds)

    def _draw_lengths(self, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        if self.lengths is None:
            return np.full(shape, 10**9)
        return rng.choice(self.lengths[0], p=self.lengths[1], size=shape)

    def _verify(self, rng: np.random.Generator, fallback: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        accepted, hit = np.zeros(fallback.shape, dtype=int), np.zeros(fallback.shape, dtype=bool)
        for is_fallback, name in ((False, "drafted"), (True, "fallback")):
            row = self.rows[name]
            coins = rng.random((*fallback.shape, row.num_tokens)) < row.acceptance_prob
            count = np.cumprod(coins, axis=-1).sum(axis=-1)
            here = fallback == is_fallback
            accepted = np.where(here, count, accepted)
            hit = np.where(here, rng.random(fallback.shape) < row.hit_prob[count], hit)
        return accepted, hit

    def _duration(self, drafted: np.ndarray, hit: np.ndarray, missed: np.ndarray, finished: np.ndarray) -> np.ndarray:
        times = self.times
        n = drafted.sum(axis=1)
        window_s, build_s = (np.broadcast_to(t, drafted.shape[1] + 1)[n] for t in (times.window_s, times.build_s))
        ready_s = np.maximum(window_s, build_s)
        if self.first_draft_s is None:
            gap_s = np.asarray(times.fallback_s)[(missed | finished).sum(axis=1)]
        else:
            gap_s = np.asarray(times.fallback_s)[missed.sum(axis=1)]
            gap_s = gap_s + np.asarray(self.first_draft_s)[finished.sum(axis=1)]
        gap_starts_s = ready_s if times.on_late == "wait" else window_s
        row_ready_s = np.where(hit, ready_s[:, None], (gap_starts_s + gap_s)[:, None])
        return row_ready_s.max(axis=1) + times.overhead_s
