"""Dividing the speculation budget: how many bonus-token candidates to cache at each position.

The cache holds B = sum F_k outcomes. With w_k the probability that exactly k tokens are accepted and h_k
the hit curve there, the look-up hits with probability sum_k w_k h_k(F_k): that is what every function here
maximises.

Theorem 12 solves it for real F and one power law. Integers, h(0) = 0 and the different curve at the last
position change the answer, so the integer optimum is found by `greedy` (concave curves) or
`dynamic_programming` (any curves); the gain over Theorem 12 and over uniform is a few per cent of the
misses, and at high acceptance Theorem 12 rounded is worse than uniform (THEORY 3-4).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.acceptance import outcome_weights
from ssdsim.theory.domain import FloatArray, Real
from ssdsim.theory.hit_curve import HitCurve, curves_by_position

Curves = HitCurve | Sequence[HitCurve]
"""One curve for every position, or one per position (K+1)."""


def hit_prob(weights: npt.ArrayLike, curves: Curves, fan_out: Sequence[int]) -> float:
    """Probability that the look-up hits, sum_k w_k h_k(F_k); `weights` and `fan_out` have K+1 entries."""
    w = domain.distribution("weights", domain.vector("weights", domain.probability("weights", weights)))
    counts = np.atleast_1d(domain.integer("fan_out", fan_out, 0))
    if counts.shape != w.shape:
        raise DomainError("fan_out", f"must have {w.size} entries, one per position", counts.tolist())
    by_position = curves_by_position(curves, w.size)
    return float(sum(w[k] * curve.hit_prob(int(counts[k])) for k, curve in enumerate(by_position)))


def uniform(num_speculative_tokens: int, budget: int) -> tuple[int, ...]:
    """The budget spread evenly over the K+1 positions, the remainder at the front."""
    num_positions = domain.count("num_speculative_tokens", num_speculative_tokens, 0) + 1
    share, rest = divmod(domain.count("budget", budget, 0), num_positions)
    return tuple(share + (k < rest) for k in range(num_positions))


def geometric(
    acceptance_prob: npt.ArrayLike,
    num_speculative_tokens: int,
    exponent: npt.ArrayLike,
    budget: npt.ArrayLike,
) -> FloatArray:
    """Theorem 12 as printed: F_k = F_0 a^(k/(1+r)), the last one times (1-a)^(-1/(1+r)).

    Returns `[..., K+1]` real numbers, summing to `budget`; the other arguments broadcast to `...`. Entries
    below 1 occur, where the law itself is negative. At a = 1 the whole budget lies at position K.
    """
    a = np.asarray(domain.probability("acceptance_prob", acceptance_prob))[..., None]
    power = 1.0 / (1.0 + np.asarray(domain.positive("exponent", exponent))[..., None])
    total = np.asarray(domain.non_negative("budget", budget))[..., None]
    steps = np.arange(domain.count("num_speculative_tokens", num_speculative_tokens, 0) + 1)
    # Multiplied through by (1-a)^(1/(1+r)), which keeps a = 1 finite.
    shape = a ** (steps * power)
    shape[..., :-1] *= (1.0 - a) ** power
    share: FloatArray = total * shape / shape.sum(axis=-1, keepdims=True)
    return share


def real_optimum(
    weights: npt.ArrayLike, exponent: float, budget: float, prefactor: npt.ArrayLike = 1.0
) -> FloatArray:
    """The real-valued optimum for misses w_k c_k F_k^-r: F_k proportional to (w_k c_k)^(1/(1+r)).

    Theorem 12 for any weights and any prefactor by position (`prefactor`: one, or K+1). A prefactor common
    to all positions does not move the optimum; c_K = (1-a) c, the bonus position under greedy decoding,
    cancels Theorem 12's boost of the last position (THEORY 4.3).
    """
    w = domain.distribution("weights", domain.vector("weights", domain.probability("weights", weights)))
    c = np.asarray(domain.probability("prefactor", prefactor))
    if c.ndim and c.shape != w.shape:
        raise DomainError("prefactor", f"must be one number or {w.size}", c.tolist())
    r = domain.scalar("exponent", domain.positive("exponent", exponent))
    total = domain.scalar("budget", domain.non_negative("budget", budget))
    shape = (w * c) ** (1.0 / (1.0 + r))
    if not shape.any():
        raise DomainError("prefactor", "must leave something to miss at a position with weight", prefactor)
    optimum: FloatArray = total * shape / shape.sum()
    return optimum


def stationarity_gap(acceptance_prob: npt.ArrayLike, slopes: npt.ArrayLike) -> float:
    """Theorem 18: how far marginal values are from equal, as a fraction of the largest (0 at the optimum).

    `acceptance_prob` a_1..a_K, `slopes` dh_k/dF at the allocation, K+1 entries. The theorem's two
    conditions say that w_k h_k'(F_k) is the same at every position. Stationary is optimal only if the
    curves are concave and every F_k is interior.
    """
    w = outcome_weights(acceptance_prob)
    marginal = w * domain.vector("slopes", domain.non_negative("slopes", slopes), w.size)
    largest = float(marginal.max())
    return (largest - float(marginal.min())) / largest if largest > 0.0 else 0.0


def power_law_slope(exponent: npt.ArrayLike, fan_out: npt.ArrayLike, prefactor: npt.ArrayLike = 1.0) -> Real:
    """dh/dF of h = 1 - c F^-r at real F > 0: c r F^(-r-1). Arguments broadcast."""
    r = domain.positive("exponent", exponent)
    c = domain.probability("prefactor", prefactor)
    return domain.as_real(c * r * np.power(domain.positive("fan_out", fan_out), -(r + 1.0)))


def round_largest_remainder(fan_out: npt.ArrayLike, budget: int) -> tuple[int, ...]:
    """Integers that sum to `budget`: floors, then one more by largest remainder (ties: smallest k)."""
    real = domain.vector("fan_out", domain.non_negative("fan_out", fan_out))
    total = domain.count("budget", budget, 0)
    if abs(float(real.sum()) - total) > 1e-6 * max(total, 1):
        raise DomainError("fan_out", f"must sum to the budget, {total}", float(real.sum()))
    # An entry that is an integer up to rounding error counts as that integer.
    whole = np.floor(real + 1e-9).astype(np.int64)
    by_remainder = np.argsort(-(real - whole), kind="stable")
    whole[by_remainder[: total - int(whole.sum())]] += 1
    return tuple(whole.tolist())


def greedy(weights: npt.ArrayLike, curves: Curves, budget: int) -> tuple[int, ...]:
    """Give each unit of budget to the position where it gains most; ties to the smallest k.

    Optimal where every curve is concave (THEORY 4.1), and nested: a larger budget only adds. Where a curve
    is not, it stalls; use `dynamic_programming`. O(B log K).
    """
    gains = _gains(weights, curves, budget)
    allocation = [0] * len(gains)
    queue = [(-row[0], k) for k, row in enumerate(gains) if row.size]
    heapq.heapify(queue)
    for _ in range(budget):
        _, k = queue[0]
        allocation[k] += 1
        taken = allocation[k]
        following = -gains[k][taken] if taken < budget else 0.0
        heapq.heapreplace(queue, (following, k))
    return tuple(allocation)


def dynamic_programming(weights: npt.ArrayLike, curves: Curves, budget: int) -> tuple[int, ...]:
    """The best integer allocation for any curves, the whole budget spent; ties favour small k. O(K B^2)."""
    gains = _gains(weights, curves, budget)
    values = [np.concatenate([[0.0], np.cumsum(row)]) for row in gains]
    spent = np.arange(budget + 1)
    left = spent[:, None] - spent[None, :]  # budget before this position, by what this position takes
    best, choices = values[0], [spent]
    for value in values[1:]:
        candidates = np.where(left >= 0, value[None, :] + best[np.maximum(left, 0)], -np.inf)
        choices.append(candidates.argmax(axis=1))
        best = candidates.max(axis=1)
    allocation: list[int] = []
    remaining = budget
    for choice in reversed(choices):
        allocation.append(int(choice[remaining]))
        remaining -= allocation[-1]
    return tuple(reversed(allocation))


def optimal(weights: npt.ArrayLike, curves: Curves, budget: int) -> tuple[int, ...]:
    """The best integer allocation: `greedy` where every curve is concave, else `dynamic_programming`."""
    num_positions = np.size(np.asarray(weights))
    distinct = set(curves_by_position(curves, num_positions))
    concave = all(curve.is_concave(domain.count("budget", budget, 0)) for curve in distinct)
    return greedy(weights, curves, budget) if concave else dynamic_programming(weights, curves, budget)


def effective_positions(weights: npt.ArrayLike, exponent: float) -> Real:
    """N_eff = (sum w_k^(1/(1+r)))^((1+r)/r), `[..., K+1]` -> `[...]` (THEORY 4.4).

    At the real optimum of one power law the miss probability is c (N_eff / B)^r; a uniform split has K+1 in
    its place, so N_eff against K+1 is all that shaping the fan-out can gain.
    """
    w = domain.distribution("weights", weights)
    r = domain.scalar("exponent", domain.positive("exponent", exponent))
    return domain.as_real((w ** (1.0 / (1.0 + r))).sum(axis=-1) ** ((1.0 + r) / r))


def max_concave_prefactor(exponent: npt.ArrayLike) -> Real:
    """The largest prefactor for which 1 - c F^-r with h(0) = 0 is concave on the integers: 1/(2 - 2^-r)."""
    return domain.as_real(1.0 / (2.0 - np.power(2.0, -np.asarray(domain.positive("exponent", exponent)))))


def _gains(weights: npt.ArrayLike, curves: Curves, budget: int) -> list[FloatArray]:
    """w_k (h_k(j) - h_k(j-1)) for j = 1..budget, one row per position."""
    w = domain.distribution("weights", domain.vector("weights", domain.probability("weights", weights)))
    total = domain.count("budget", budget, 0)
    by_position = curves_by_position(curves, w.size)
    increments = {curve: curve.increments(total) for curve in set(by_position)}
    return [w[k] * increments[curve] for k, curve in enumerate(by_position)]
