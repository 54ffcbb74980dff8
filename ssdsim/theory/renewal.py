"""Exact long-run rate of a lock-stepped batch of endless sequences (THEORY 2.1; corrects Corollary 16).

A slot's speculation was written by the draft (the last look-up hit) or by the fallback (it missed), and its
next look-up depends on nothing else, so in round index the slots are independent two-state chains: the number
of drafted rows is binomial and

    rate per sequence = (pi E_p + (1 - pi) E_b) / E[D],   pi = p_b / (1 + p_b - p_p)

is exact for any times of the round (`round_time`). Corollary 16 is the case of a constant window and fallback
with a build that ends before window + fallback. Used by `evaluate` for the method `exact` on endless
requests and by `draft_devices`.

A fallback that drafts just in time answers every row with a drafted one: pass p_b = p_p, E_b = E_p and a
window that does not depend on n. `on_late = truncate` is a smaller K, chosen by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, Real, as_real, at_least, probability, refuse_where
from ssdsim.theory.joint_law import joint_counts_of_rows
from ssdsim.theory.round_time import RoundMean, RoundTimes, mean_round
from ssdsim.theory.speedup import stationary_cache_hit_rate


@dataclass(frozen=True, kw_only=True)
class SlotChain:
    """What one sequence does from round to round; fields broadcast over design points.

    Raises DomainError for probabilities outside [0, 1], means below one token, and for the pair (1, 0), which
    never forgets its first round. (0, 1) alternates for ever: with b > 1 the batch is taken at random phases.
    """

    hit_after_draft: Real
    """p_p: probability that the look-up after a drafted row hits."""
    hit_after_fallback: Real
    """p_b: the same after a row that the fallback answered."""
    tokens_drafted: Real
    """E_p: mean tokens of a round with a drafted row, bonus token included."""
    tokens_fallback: Real
    """E_b: the same for the fallback."""

    def __post_init__(self) -> None:
        drafted = np.asarray(probability("hit_after_draft", self.hit_after_draft))
        fallback = np.asarray(probability("hit_after_fallback", self.hit_after_fallback))
        frozen = (drafted == 1.0) & (fallback == 0.0)
        refuse_where(frozen, "hit_after_draft", "must be below 1 where hit_after_fallback is 0", drafted)
        object.__setattr__(self, "hit_after_draft", drafted)
        object.__setattr__(self, "hit_after_fallback", fallback)
        for name in ("tokens_drafted", "tokens_fallback"):
            object.__setattr__(self, name, np.asarray(at_least(name, getattr(self, name), 1.0)))

    @cached_property
    def cache_hit_rate(self) -> FloatArray:
        """pi, the long-run share of look-ups that hit, which is that of drafted rows (Theorem 7)."""
        return np.asarray(stationary_cache_hit_rate(self.hit_after_draft, self.hit_after_fallback))

    @property
    def tokens_per_round(self) -> FloatArray:
        """Long-run mean tokens of a round."""
        share = self.cache_hit_rate
        return np.asarray(share * self.tokens_drafted + (1.0 - share) * self.tokens_fallback)

    @property
    def law(self) -> FloatArray:
        """[..., 2, 3]: stationary probability of (Source, End) in a round."""
        drafted, hit_p, hit_b = np.broadcast_arrays(
            self.cache_hit_rate, self.hit_after_draft, self.hit_after_fallback
        )
        law = np.zeros((*drafted.shape, 2, 3))
        law[..., 0, 0], law[..., 0, 1] = drafted * hit_p, drafted * (1.0 - hit_p)
        law[..., 1, 0], law[..., 1, 1] = (1.0 - drafted) * hit_b, (1.0 - drafted) * (1.0 - hit_b)
        return law


@dataclass(frozen=True, kw_only=True)
class EndlessBatch:
    """Long-run behaviour of a batch, per design point."""

    rate_per_sequence: Real
    """Tokens per second of one sequence."""
    tokens_per_round: Real
    cache_hit_rate: Real
    prob_all_hit: Real
    """Probability that no row of the batch misses."""
    prob_all_miss: Real
    round: RoundMean


def endless_batch(chain: SlotChain, times: RoundTimes) -> EndlessBatch:
    """The exact long-run rate of `times.batch_size` sequences that all follow `chain` (THEORY 2.1)."""
    mean = mean_round(chain.law, times)
    hit_rate, tokens = chain.cache_hit_rate, chain.tokens_per_round
    return EndlessBatch(
        rate_per_sequence=as_real(tokens / mean.round_s),
        tokens_per_round=as_real(tokens),
        cache_hit_rate=as_real(hit_rate),
        prob_all_hit=as_real(hit_rate**times.batch_size),
        prob_all_miss=as_real((1.0 - hit_rate) ** times.batch_size),
        round=mean,
    )


@dataclass(frozen=True, kw_only=True)
class MixedBatch:
    """Long-run behaviour of one batch whose rows differ."""

    rate_per_sequence: FloatArray
    """[b]: tokens per second of each row."""
    cache_hit_rate: FloatArray
    """[b]"""
    prob_all_hit: float
    prob_all_miss: float
    round_s: float


def mixed_batch(rows: SlotChain, times: RoundTimes) -> MixedBatch:
    """The exact long-run rates of one batch whose rows follow chains of their own (THEORY 2.1).

    `rows`: one entry per row of the batch (a scalar holds for all); `times`: one design point. The counts are
    Poisson-binomial. Raises DomainError where `rows` and `times` do not describe the same batch.
    """
    slots = times.batch_size
    law, tokens = rows.law, rows.tokens_per_round
    if times.points_shape or law.shape[:-2] not in ((), (slots,)):
        raise DomainError("rows", f"must hold one chain per row of one batch of {slots}", law.shape[:-2])
    classes = np.broadcast_to(law[..., :2], (slots, 2, 2)).reshape(slots, 4)
    drafted_and_missed = joint_counts_of_rows(classes, [[0, 1], [1, 3]])
    round_s = float(np.sum(drafted_and_missed * round_durations(times)))
    hit_rate = np.broadcast_to(rows.cache_hit_rate, (slots,))
    return MixedBatch(
        rate_per_sequence=np.broadcast_to(tokens, (slots,)) / round_s,
        cache_hit_rate=hit_rate,
        prob_all_hit=float(np.prod(hit_rate)),
        prob_all_miss=float(np.prod(1.0 - hit_rate)),
        round_s=round_s,
    )


def round_durations(times: RoundTimes) -> FloatArray:
    """Duration [..., n, m] of a round with n drafted rows and m misses, all b rows looking up (THEORY 2)."""
    window_s = times.window_s[..., None]
    hit_s = np.maximum(window_s, times.build_s[..., None])
    miss_s = (window_s if times.on_late == "abort" else hit_s) + times.fallback_s[..., None, :]
    size = times.batch_size + 1
    durations = np.array(np.broadcast_to(np.maximum(hit_s, miss_s), (*times.points_shape, size, size)))
    durations[..., 0] = hit_s[..., 0]
    durations[..., -1] = miss_s[..., -1]
    durations += np.asarray(times.overhead_s)[..., None, None]
    return durations
