"""What to do on a miss, as a function of the batch: Theorem 17, its consistent form, the miss threshold, n-grams.

The slow fallback drafts one chain just in time (T_j, in verifications) and the whole batch waits; the fast
one answers at once with something worse. Theorem 17 gives the batch size b* at which they cross. As printed
it uses one hit rate for both policies, although the fallback decides what the next round's look-up meets;
`critical_batch_size` gives each policy its own. Better than any b* is to decide round by round from the
number of misses: `miss_threshold_start` (THEORY 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ssdsim.theory import acceptance, domain, fan_out
from ssdsim.theory.hit_curve import HitCurve
from ssdsim.theory.speedup import stationary_cache_hit_rate

CrossingKind = Literal["finite", "always_slow", "always_fast", "tie"]


class CriticalBatchSize(NamedTuple):
    """Where the fast fallback overtakes the slow one."""

    kind: CrossingKind
    batch_size: float | None
    """b*, a real number; below 1 where the fast fallback wins at every batch; None where nothing crosses"""

    @property
    def limit(self) -> float:
        """Draft just in time iff batch_size < limit: b*, infinity (`always_slow`) or 0 (`always_fast`, `tie`)."""
        if self.kind == "always_slow":
            return math.inf
        return self.batch_size if self.kind == "finite" and self.batch_size is not None else 0.0


def critical_batch_size_printed(
    cache_hit_rate: float, build_time: float, hit_length: float, miss_length: float
) -> CriticalBatchSize:
    """Theorem 17 as printed: b* = log(1 + 1/T_p - E_hit / (T_p A)) / log p, A = p E_hit + (1-p) E_miss.

    One hit rate p for both policies and one T_p for the cache build and the just-in-time chain. Derived for
    T_p <= 1; refused beyond.
    """
    p = domain.scalar("cache_hit_rate", domain.probability("cache_hit_rate", cache_hit_rate))
    t_p = domain.scalar("build_time", domain.non_negative("build_time", build_time))
    domain.refuse_where(t_p > 1.0, "build_time", "must be at most 1 for Theorem 17 as printed", t_p)
    e_hit = domain.scalar("hit_length", domain.at_least("hit_length", hit_length, 1.0))
    e_miss = domain.scalar("miss_length", domain.at_least("miss_length", miss_length, 1.0))
    return _crossing(p, t_p, e_hit / (p * e_hit + (1.0 - p) * e_miss))


def critical_batch_size(
    primary_hit_prob: float, backup_hit_prob: float, jit_time: float, hit_length: float, miss_length: float
) -> CriticalBatchSize:
    """Theorem 17 with the hit rates each policy causes (THEORY 6.1).

    Under the slow fallback every speculation is primary: p_p. Under the fast one: pi. They cross at b* =
    log((1 + T_j - E_p / A) / T_j) / log p_p with A = pi E_p + (1-pi) E_b. The build is assumed to end
    within the verification.
    """
    p_p = domain.scalar("primary_hit_prob", domain.probability("primary_hit_prob", primary_hit_prob))
    t_j = domain.scalar("jit_time", domain.non_negative("jit_time", jit_time))
    e_hit = domain.scalar("hit_length", domain.at_least("hit_length", hit_length, 1.0))
    e_miss = domain.scalar("miss_length", domain.at_least("miss_length", miss_length, 1.0))
    pi = domain.scalar("backup_hit_prob", stationary_cache_hit_rate(p_p, backup_hit_prob))
    return _crossing(p_p, t_j, e_hit / (pi * e_hit + (1.0 - pi) * e_miss))


def _crossing(hit_prob: float, slow_time: float, length_ratio: float) -> CriticalBatchSize:
    """Where ratio / (1 + T (1 - p^b)) meets 1; `length_ratio` is slow over fast tokens per round."""
    # At p = 0 every round waits, at p = 1 none, and at T = 0 waiting is free: nothing depends on b.
    if hit_prob in (0.0, 1.0) or slow_time == 0.0:
        slow_round = 1.0 + slow_time * (1.0 - hit_prob)
        if length_ratio == slow_round:
            return CriticalBatchSize("tie", None)
        return CriticalBatchSize("always_slow" if length_ratio > slow_round else "always_fast", None)
    argument = (1.0 + slow_time - length_ratio) / slow_time
    if argument <= 0.0:  # worth it even if every round waits
        return CriticalBatchSize("always_slow", None)
    batch_size = math.log(argument) / math.log(hit_prob)
    return CriticalBatchSize("finite" if batch_size >= 1.0 else "always_fast", batch_size)


def primary_advantage(
    primary_length: float, backup_length: float, primary_hit_prob: float, backup_hit_prob: float
) -> float:
    """Delta = (E_p - E_b) / (1 - p_p + p_b): tokens gained over the long run by one primary instead of one backup.

    From the bias of the two-state chain under the fast policy (THEORY 6.2).
    """
    e_p = domain.scalar("primary_length", domain.at_least("primary_length", primary_length, 1.0))
    e_b = domain.scalar("backup_length", domain.at_least("backup_length", backup_length, 1.0))
    p_p = domain.scalar("primary_hit_prob", domain.probability("primary_hit_prob", primary_hit_prob))
    p_b = domain.scalar("backup_hit_prob", domain.probability("backup_hit_prob", backup_hit_prob))
    leaving = (1.0 - p_p) + p_b
    domain.refuse_where(leaving == 0.0, "backup_hit_prob", "must be above 0 where primary_hit_prob is 1", p_b)
    return (e_p - e_b) / leaving


def miss_threshold_start(batch_size: int, rate_per_sequence: float, jit_time: float, advantage: float) -> int:
    """m* ~ ceil(b g T_j / Delta), within 1..b+1 (b+1: never): where a search for the best threshold should start.

    Draft just in time iff at least m requests miss: T_j is paid once for the batch and the benefit
    `advantage` (`primary_advantage`) comes once per miss. `rate_per_sequence` g is in tokens per
    verification. One step of policy improvement, so not always the best m: search 1..b+1 on the exact rate
    (THEORY 6.2).
    """
    b = domain.count("batch_size", batch_size, 1)
    g = domain.scalar("rate_per_sequence", domain.positive("rate_per_sequence", rate_per_sequence))
    t_j = domain.scalar("jit_time", domain.non_negative("jit_time", jit_time))
    if advantage <= 0.0:
        return b + 1
    return min(max(math.ceil(b * g * t_j / advantage), 1), b + 1)


class BackupQuality(NamedTuple):
    """What a fallback that drafts with its own acceptance yields."""

    mean_acceptance_length: float
    """E_b, tokens of the round it drafted"""
    hit_prob: float
    """p_b, probability that the look-up after that round hits"""
    fan_out: tuple[int, ...]
    """fan-out on a miss, K_b + 1 integers"""


def ngram_fallback(
    acceptance_prob: float | Sequence[float], num_tokens: int, budget: int, hit_curve: HitCurve
) -> BackupQuality:
    """An n-gram fallback of `num_tokens` (K_b) tokens: longer rounds against fewer hits after them (THEORY 6.3).

    Its tokens are accepted with `acceptance_prob` (a scalar or K_b values), so E_b = sum_k prod x_i, while
    the budget must now cover K_b + 1 positions; it is divided optimally. K_b = 0 proposes nothing: E_b = 1.

    `hit_curve` holds at every position: the draft did not propose these tokens, so a rejection says nothing
    against its own favourite; under greedy decoding that is `hit_curve.AllAccepted`.
    """
    accepted = acceptance.per_position(acceptance_prob, num_tokens)
    weights = acceptance.outcome_weights(accepted)
    allocation = fan_out.optimal(weights, hit_curve, budget)
    length = float(acceptance.mean_acceptance_length_per_position(accepted))
    return BackupQuality(length, fan_out.hit_prob(weights, hit_curve, allocation), allocation)
