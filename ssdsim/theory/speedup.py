"""The paper's speed-up results as printed, each with its corrected counterpart.

Times are in units of one verification, which the paper sets equal to one autoregressive step: `build_time`
is T_p (building the whole cache), `fallback_time` is T_b, `draft_time` is T_SD. Lengths are mean acceptance
lengths, bonus token included: at least 1. Arguments broadcast; scalars give a float, arrays an array.

What the printed forms assume (THEORY 1): verifying K+1 tokens costs one step, nothing is spent on the link,
a miss interrupts a running build, requests are independent and endless. `renewal` and `finite` drop these
assumptions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.domain import Real


def stationary_cache_hit_rate(primary_hit_prob: npt.ArrayLike, backup_hit_prob: npt.ArrayLike) -> Real:
    """Theorem 7, second part: p_hit = p_b / (1 + p_b - p_p).

    A flow balance, exact for any stationary process if both are measured under the policy in use. Refuses
    (1, 0), where the long run depends on the first round; (0, 1) alternates, and 1/2 is its time average.
    """
    p_p = domain.probability("primary_hit_prob", primary_hit_prob)
    p_b = domain.probability("backup_hit_prob", backup_hit_prob)
    leaving = p_b + (1.0 - p_p)
    stuck = np.equal(leaving, 0.0)
    domain.refuse_where(stuck, "backup_hit_prob", "must be above 0 where primary_hit_prob is 1", p_b)
    return domain.as_real(p_b / leaving)


def ssd_speedup(
    cache_hit_rate: npt.ArrayLike,
    hit_length: npt.ArrayLike,
    miss_length: npt.ArrayLike,
    build_time: npt.ArrayLike,
    fallback_time: npt.ArrayLike,
    batch_size: npt.ArrayLike = 1,
) -> Real:
    """Theorem 7 (batch 1) and Corollary 16 as printed: speed-up of SSD over autoregressive decoding.

    (p E_hit + (1-p) E_miss) / (p^b max(1, T_p) + (1 - p^b)(1 + T_b)). Exact for T_p <= 1 + T_b within the
    module's assumptions; beyond, a hit is the slow case and the batch waits for it:
    `ssd_speedup_slowest_member`.
    """
    p, tokens = _hit_rate_and_tokens(cache_hit_rate, hit_length, miss_length)
    hit_time, miss_time = _round_times(build_time, fallback_time)
    all_hit = np.power(p, domain.integer("batch_size", batch_size, 1))
    return domain.as_real(tokens / (all_hit * hit_time + (1.0 - all_hit) * miss_time))


def ssd_speedup_large_batch(
    cache_hit_rate: npt.ArrayLike,
    hit_length: npt.ArrayLike,
    miss_length: npt.ArrayLike,
    fallback_time: npt.ArrayLike,
) -> Real:
    """Corollary 16, the limit b -> infinity (p < 1): every round waits for the fallback."""
    _, tokens = _hit_rate_and_tokens(cache_hit_rate, hit_length, miss_length)
    return domain.as_real(tokens / (1.0 + domain.non_negative("fallback_time", fallback_time)))


def ssd_speedup_slowest_member(
    cache_hit_rate: npt.ArrayLike,
    hit_length: npt.ArrayLike,
    miss_length: npt.ArrayLike,
    build_time: npt.ArrayLike,
    fallback_time: npt.ArrayLike,
    batch_size: npt.ArrayLike = 1,
) -> Real:
    """Corollary 16 with the wait for the slowest member, for any T_p (THEORY 1).

    Equal to the printed form for T_p <= 1 + T_b; at T_b = 0, b = 16 and T_p = 1.5 the printed form is 34 %
    too fast.
    """
    p, tokens = _hit_rate_and_tokens(cache_hit_rate, hit_length, miss_length)
    hit_time, miss_time = _round_times(build_time, fallback_time)
    b = domain.integer("batch_size", batch_size, 1)
    return domain.as_real(tokens / _slowest_member(np.power(p, b), np.power(1.0 - p, b), hit_time, miss_time))


def mean_batch_latency(
    cache_hit_rate: npt.ArrayLike, batch_size: int, hit_time: npt.ArrayLike, miss_time: npt.ArrayLike
) -> Real:
    """Expected round of a lock-stepped batch of independent requests, which waits for its slowest member.

    p^b L_hit + (1-p)^b L_miss + (1 - p^b - (1-p)^b) max(L_hit, L_miss). `cache_hit_rate` is one probability
    for all requests, or `[..., b]`, one per request; times broadcast to `...`.
    """
    b = domain.count("batch_size", batch_size, 1)
    p = np.atleast_1d(np.asarray(domain.probability("cache_hit_rate", cache_hit_rate)))
    if p.shape[-1] not in (1, b):
        raise DomainError("cache_hit_rate", f"must be one probability or one per request, {b}", p.tolist())
    p = np.broadcast_to(p, (*p.shape[:-1], b))
    hit = domain.non_negative("hit_time", hit_time)
    miss = domain.non_negative("miss_time", miss_time)
    return domain.as_real(_slowest_member(p.prod(axis=-1), (1.0 - p).prod(axis=-1), hit, miss))


def sd_speedup(acceptance_length: npt.ArrayLike, draft_time: npt.ArrayLike) -> Real:
    """Speculative decoding over autoregressive decoding, E_SD / (1 + T_SD) (proof of Corollary 8)."""
    length = domain.at_least("acceptance_length", acceptance_length, 1.0)
    return domain.as_real(length / (1.0 + domain.non_negative("draft_time", draft_time)))


def ssd_over_sd(cache_hit_rate: npt.ArrayLike, draft_time: npt.ArrayLike, round_trip: npt.ArrayLike = 0.0) -> Real:
    """Corollary 8: SSD over SD with one speculator in every role (T_p = T_b = T_SD, equal lengths).

    (1+T) / (p max(1,T) + (1-p)(1+T) + t_c): never below 1 without a round trip, and at least 1 with one iff
    t_c <= `max_round_trip`. A miss must interrupt the build; see `ssd_over_sd_without_preemption`.
    """
    p = domain.probability("cache_hit_rate", cache_hit_rate)
    t = domain.non_negative("draft_time", draft_time)
    link = domain.non_negative("round_trip", round_trip)
    return domain.as_real((1.0 + t) / (p * np.maximum(1.0, t) + (1.0 - p) * (1.0 + t) + link))


def ssd_over_sd_without_preemption(cache_hit_rate: npt.ArrayLike, draft_time: npt.ArrayLike) -> Real:
    """Corollary 8 where a miss waits for the running build (one stream, captured graphs): max(1,T) + T.

    Then SSD loses iff T > 1 and p < 1 - 1/T: the corollary fails.
    """
    p = domain.probability("cache_hit_rate", cache_hit_rate)
    t = domain.non_negative("draft_time", draft_time)
    build = np.maximum(1.0, t)
    return domain.as_real((1.0 + t) / (p * build + (1.0 - p) * (build + t)))


def max_round_trip(cache_hit_rate: npt.ArrayLike, draft_time: npt.ArrayLike) -> Real:
    """The round trip up to which SSD is no slower than SD in Corollary 8's setting: p min(1, T)."""
    p = domain.probability("cache_hit_rate", cache_hit_rate)
    return domain.as_real(p * np.minimum(1.0, domain.non_negative("draft_time", draft_time)))


class SpeedupBounds(NamedTuple):
    """SSD over SD for T_p < 1 and T_b = 0."""

    printed_lower: Real
    """Corollary 9: (1+T) p E_hit / E_SD; uses only E_miss >= 0"""
    tight_lower: Real
    """(1+T) (p E_hit + 1-p) / E_SD: what E_miss >= 1, the stated reason, really gives"""
    exact: Real
    upper: Real
    """Corollary 9: (1+T) E_hit / E_SD; needs E_miss <= E_hit"""


def ssd_over_sd_bounds(
    cache_hit_rate: npt.ArrayLike,
    hit_length: npt.ArrayLike,
    miss_length: npt.ArrayLike,
    sd_length: npt.ArrayLike,
    draft_time: npt.ArrayLike,
) -> SpeedupBounds:
    """Corollary 9: bounds on SSD over SD, with the tighter lower bound and the value between them.

    Refuses E_miss > E_hit, where the upper bound is false.
    """
    p, tokens = _hit_rate_and_tokens(cache_hit_rate, hit_length, miss_length)
    e_hit = domain.at_least("hit_length", hit_length, 1.0)
    e_sd = domain.at_least("sd_length", sd_length, 1.0)
    exceeds = np.greater(miss_length, e_hit)
    domain.refuse_where(exceeds, "miss_length", "must be at most hit_length (Corollary 9)", miss_length)
    scale = (1.0 + domain.non_negative("draft_time", draft_time)) / e_sd
    return SpeedupBounds(
        printed_lower=domain.as_real(scale * p * e_hit),
        tight_lower=domain.as_real(scale * (p * e_hit + 1.0 - p)),
        exact=domain.as_real(scale * tokens),
        upper=domain.as_real(scale * e_hit),
    )


class Interval(NamedTuple):
    """A lower and an upper bound."""

    low: Real
    high: Real


def all_hit_bounds(cache_hit_rate: npt.ArrayLike, batch_size: npt.ArrayLike) -> Interval:
    """Frechet bounds on P(all b requests hit), whatever their dependence (THEORY 7.2): [max(0, 1-b(1-p)), p]."""
    p = domain.probability("cache_hit_rate", cache_hit_rate)
    b = domain.integer("batch_size", batch_size, 1)
    return Interval(domain.as_real(np.maximum(0.0, 1.0 - b * (1.0 - p))), domain.as_real(p + np.zeros(np.shape(b))))


def ssd_speedup_bounds(
    mean_tokens: npt.ArrayLike,
    cache_hit_rate: npt.ArrayLike,
    batch_size: npt.ArrayLike,
    fallback_time: npt.ArrayLike,
    build_time: npt.ArrayLike = 0.0,
) -> Interval:
    """The slowest and fastest SSD can be if only the dependence between requests is unknown (THEORY 7.2).

    `mean_tokens` is p E_hit + (1-p) E_miss, which dependence does not change. Requires T_p <= 1 + T_b.
    """
    tokens = domain.at_least("mean_tokens", mean_tokens, 1.0)
    hit_time, miss_time = _round_times(build_time, fallback_time)
    domain.refuse_where(np.greater(hit_time, miss_time), "build_time", "must be at most 1 + fallback_time", hit_time)
    least, most = all_hit_bounds(cache_hit_rate, batch_size)
    slow, fast = (tokens / (all_hit * hit_time + (1.0 - all_hit) * miss_time) for all_hit in (least, most))
    return Interval(domain.as_real(slow), domain.as_real(fast))


def all_hit_beta_binomial(alpha: npt.ArrayLike, beta: npt.ArrayLike, batch_size: npt.ArrayLike) -> Real:
    """P(all b requests hit) if each round draws its hit rate from Beta(alpha, beta) (THEORY 7.2).

    prod_{i<b} (alpha + i)/(alpha + beta + i): a one-parameter model of positive dependence.
    """
    from scipy.special import betaln  # costs a tenth of a second to import

    a, b = domain.positive("alpha", alpha), domain.positive("beta", beta)
    size = domain.integer("batch_size", batch_size, 1)
    return domain.as_real(np.exp(betaln(a + size, b) - betaln(a, b)))


def _hit_rate_and_tokens(
    cache_hit_rate: npt.ArrayLike, hit_length: npt.ArrayLike, miss_length: npt.ArrayLike
) -> tuple[Real, Real]:
    """The checked hit rate and the mean tokens per round, p E_hit + (1-p) E_miss."""
    p = domain.probability("cache_hit_rate", cache_hit_rate)
    e_hit = domain.at_least("hit_length", hit_length, 1.0)
    return p, p * e_hit + (1.0 - p) * domain.at_least("miss_length", miss_length, 1.0)


def _round_times(build_time: npt.ArrayLike, fallback_time: npt.ArrayLike) -> tuple[Real, Real]:
    """max(1, T_p) and 1 + T_b: a round after a hit and after a miss."""
    hit: Real = np.maximum(1.0, domain.non_negative("build_time", build_time))
    return hit, 1.0 + domain.non_negative("fallback_time", fallback_time)


def _slowest_member(all_hit: Real, all_miss: Real, hit_time: Real, miss_time: Real) -> Real:
    mixed = 1.0 - all_hit - all_miss
    # One request cannot be mixed; where both powers round, neither can the mixture be negative.
    mixed = np.maximum(mixed, 0.0)
    slowest: Real = all_hit * hit_time + all_miss * miss_time + mixed * np.maximum(hit_time, miss_time)
    return slowest
