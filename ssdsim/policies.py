"""The decisions of a speculator: how to divide its budget, and what to do when the look-up misses.

One code for the theory, the simulator and the executor, so that a policy studied in one is the policy run
in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from ssdsim.errors import DomainError
from ssdsim.theory import acceptance, fan_out
from ssdsim.theory.hit_curve import HitCurve, PowerLaw

FanOutPolicy: TypeAlias = Literal["uniform", "geometric", "optimal"]
FallbackAction: TypeAlias = Literal["jit", "none", "random", "ngram"]
"""What a missing request gets: a chain drafted now, nothing, random tokens, or an n-gram continuation."""
FallbackKind: TypeAlias = Literal["jit", "none", "random", "ngram", "auto", "threshold"]
"""An action, or a rule that chooses between `jit` and `none` from the batch."""


def allocate_fan_out(
    policy: FanOutPolicy,
    num_speculative_tokens: int,
    budget: int,
    acceptance_prob: float | Sequence[float],
    rejection_curve: HitCurve,
    all_accepted_curve: HitCurve,
) -> tuple[int, ...]:
    """K+1 integers that sum to `budget`: candidates to cache after k = 0..K accepted tokens.

    `uniform` spreads evenly, remainder at the front. `geometric` is Theorem 12 rounded by largest
    remainder; it knows one power law and ignores `all_accepted_curve`. `optimal` maximises the hit
    probability with `rejection_curve` at k < K and `all_accepted_curve` at K.

    `acceptance_prob` is a_1..a_K (a scalar is shorthand). Raises DomainError for an unknown policy, and for
    `geometric` without a power law.
    """
    a = tuple(acceptance_prob) if isinstance(acceptance_prob, Sequence) else acceptance_prob
    return _allocate(policy, num_speculative_tokens, budget, a, rejection_curve, all_accepted_curve)


@lru_cache(maxsize=4096, typed=True)
def _allocate(
    policy: FanOutPolicy,
    num_speculative_tokens: int,
    budget: int,
    acceptance_prob: float | tuple[float, ...],
    rejection: HitCurve,
    all_accepted: HitCurve,
) -> tuple[int, ...]:
    """Cached: a sweep asks for the same allocation at every point that differs only in times."""
    a = acceptance.per_position(acceptance_prob, num_speculative_tokens)
    if policy == "uniform":
        return fan_out.uniform(a.size, budget)
    weights = acceptance.outcome_weights(a)
    if policy == "geometric":
        if not isinstance(rejection, PowerLaw):
            raise DomainError("policy", "geometric (Theorem 12) needs a power law; use optimal", policy)
        return fan_out.round_largest_remainder(fan_out.real_optimum(weights, rejection.exponent, budget), budget)
    if policy == "optimal":
        return fan_out.optimal(weights, (*(rejection,) * a.size, all_accepted), budget)
    raise DomainError("policy", f"must be one of {', '.join(get_args(FanOutPolicy))}", policy)


def choose_fallback(
    kind: FallbackKind,
    num_misses: int,
    batch_size: int,
    *,
    threshold: int | None = None,
    critical_batch_size: float | None = None,
) -> FallbackAction:
    """What the missing requests of this round get.

    `threshold` drafts just in time iff at least `threshold` requests of the batch miss: the cost is paid
    once for the batch, the benefit once per miss (THEORY 6.2). `auto` drafts just in time iff the batch is
    smaller than `critical_batch_size`, b* (Theorem 17; infinity where jit always wins). The other kinds are
    their own action.
    """
    if kind == "threshold":
        if threshold is None or threshold < 0:
            raise DomainError("threshold", "must be an integer >= 0 for the threshold fallback", threshold)
        return "jit" if num_misses >= threshold else "none"
    if kind == "auto":
        if critical_batch_size is None or not critical_batch_size >= 0:
            raise DomainError("critical_batch_size", "must be >= 0 for the auto fallback", critical_batch_size)
        return "jit" if batch_size < critical_batch_size else "none"
    if kind in get_args(FallbackAction):
        return kind
    raise DomainError("fallback", f"must be one of {', '.join(get_args(FallbackKind))}", kind)
