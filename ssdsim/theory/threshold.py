"""Fallback by threshold: draft just in time if and only if at least m rows of the batch miss (THEORY 6.2).

Drafting just in time is paid once for the whole batch while every missing row profits, so it is right when
MANY miss, the reverse of "large batch, fast fallback". The rows are no longer independent, but exchangeable:
the number n of drafted rows is a Markov chain on 0..b,

    misses | n ~ Bin(n, 1 - p_p) + Bin(b - n, 1 - p_b);   n' = b if misses >= m, else b - misses,

and its stationary law gives the exact rate. m = 1 always drafts, m = b + 1 never does. Every m is evaluated:
the formula for m is one step of policy improvement and not always the best. Used by `evaluate` and by the
simulator's `threshold` fallback when no threshold is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, Real, as_real, positive, refuse_where
from ssdsim.theory.joint_law import misses_given_drafted
from ssdsim.theory.renewal import EndlessBatch, SlotChain, endless_batch, round_durations
from ssdsim.theory.round_time import RoundTimes


@dataclass(frozen=True, kw_only=True)
class ThresholdPolicies:
    """Every threshold 1..b+1 of each design point; entry m-1 of the last axis is threshold m."""

    rate_per_sequence: FloatArray
    """[..., b+1]: tokens per second of one sequence."""
    round_s: FloatArray
    """[..., b+1]: mean round."""
    cache_hit_rate: FloatArray
    """[..., b+1]: share of look-ups that hit."""

    @property
    def best_threshold(self) -> npt.NDArray[np.int64]:
        """[...]: the threshold of the highest rate, the smallest one on a tie."""
        return np.asarray(self.rate_per_sequence.argmax(axis=-1) + 1)

    @property
    def best_rate_per_sequence(self) -> Real:
        """[...]: the highest rate."""
        return as_real(self.rate_per_sequence.max(axis=-1))


def threshold_policies(chain: SlotChain, fast: RoundTimes, drafting: RoundTimes) -> ThresholdPolicies:
    """Exact long-run rates of all thresholds (THEORY 6.2).

    `chain`: p_b and E_b are those of the fast fallback. `fast`, `drafting`: the times of a round whose misses
    the fast fallback answers, or are drafted just in time; they differ in `fallback_s`. Raises DomainError
    for the pair (0, 1), whose rows alternate in the phases they started with.
    """
    slots = fast.batch_size
    if drafting.batch_size != slots:
        raise DomainError("drafting", f"must hold times of the same batch, {slots}", drafting.batch_size)
    hit_p, hit_b = np.broadcast_arrays(chain.hit_after_draft, chain.hit_after_fallback)
    refuse_where(
        (hit_p == 0.0) & (hit_b == 1.0), "hit_after_draft", "must be above 0 where hit_after_fallback is 1", 0.0
    )
    tokens_p, tokens_b = np.asarray(chain.tokens_drafted)[..., None], np.asarray(chain.tokens_fallback)[..., None]
    misses = misses_given_drafted(slots, hit_p, hit_b)
    drafted = np.arange(slots + 1.0)
    tokens = (drafted * tokens_p + (slots - drafted) * tokens_b) / slots
    hits = misses @ (slots - drafted) / slots
    fast_s, drafting_s = round_durations(fast), round_durations(drafting)
    means = []
    for threshold in range(1, slots + 2):
        duration_s = np.where(np.arange(slots + 1) >= threshold, drafting_s, fast_s)
        law = _stationary(_drafted_kernel(misses, threshold))
        means.append([np.einsum("...n,...n->...", law, value) for value in (tokens, hits)])
        means[-1].append(np.einsum("...n,...nm,...nm->...", law, misses, duration_s))
    mean_tokens, hit_rate, round_s = (np.stack(values, axis=-1) for values in zip(*means, strict=True))
    rate = mean_tokens / round_s
    return ThresholdPolicies(
        rate_per_sequence=rate,
        round_s=np.broadcast_to(round_s, rate.shape),
        cache_hit_rate=np.broadcast_to(hit_rate, rate.shape),
    )


def threshold_estimate(chain: SlotChain, fast: RoundTimes, drafting_s: Real) -> Real:
    """m* ~ ceil(b g T_j / Delta), Delta = (E_p - E_b)/(1 - p_p + p_b) (THEORY 6.2).

    One step of policy improvement from the fast fallback: g is the rate per sequence of always answering
    fast, `drafting_s` the time T_j of drafting just in time. At least 1; b + 1 (never draft) where drafting
    yields no more tokens. A start: the best m is found by search.
    """
    drafting = np.asarray(positive("drafting_s", drafting_s))
    always_fast: EndlessBatch = endless_batch(chain, fast)
    worth = (np.asarray(chain.tokens_drafted) - chain.tokens_fallback) / (
        1.0 - np.asarray(chain.hit_after_draft) + chain.hit_after_fallback
    )
    cost = fast.batch_size * np.asarray(always_fast.rate_per_sequence) * drafting
    never = np.full_like(worth * cost, fast.batch_size + 1.0)
    estimate = np.divide(cost, worth, out=never, where=np.broadcast_to(worth > 0.0, never.shape))
    return as_real(np.clip(np.ceil(estimate), 1.0, fast.batch_size + 1.0))


def _drafted_kernel(misses: FloatArray, threshold: int) -> FloatArray:
    """P(n' drafted rows next | n now): [..., n, n']."""
    kernel = misses[..., ::-1].copy()
    slots = kernel.shape[-1] - 1
    redrafted = misses[..., threshold:].sum(axis=-1)
    kernel[..., : slots + 1 - threshold] = 0.0
    kernel[..., slots] += redrafted
    return kernel


def _stationary(kernel: FloatArray) -> FloatArray:
    """The law that one step of each chain keeps: [..., states, states] -> [..., states]."""
    states = kernel.shape[-1]
    balance = np.swapaxes(kernel, -1, -2) - np.eye(states)
    balance[..., -1, :] = 1.0
    goal = np.zeros((*kernel.shape[:-1], 1))
    goal[..., -1, :] = 1.0
    return np.asarray(np.linalg.solve(balance, goal)[..., 0])
