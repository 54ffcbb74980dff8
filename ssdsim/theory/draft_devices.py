"""How many draft devices, and the best lookahead, budget and fallback for them (THEORY 7.3).

A draft device builds the cache in K + 1 passes over all branches of the batch. Its passes are free of
branches up to a width, then grow with them, so a fixed device holds a budget per sequence that shrinks as
1/b, and G devices that share the branches hold G times as many:

    T_p = (K+1) (t0 + t1 max(0, b B / G - w0)),    T_j = K t0,
    B_max(K) = (G/b) (w0 + (window / (K+1) - t0) / t1).

The hit rate is therefore not a constant of the pair. `joint_optimum` maximises the exact endless rate over
lookahead, budget, fallback and devices, with the fan-outs optimal inside; per GPU, draft devices count as
much as target ones. Saguaro sampling enters through the acceptance and the curves measured under it. Used by
`planning` and `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory import fan_out
from ssdsim.theory.acceptance import mean_acceptance_length, outcome_weights, per_position
from ssdsim.theory.domain import (
    FloatArray,
    IntArray,
    Real,
    as_real,
    count,
    integer,
    non_negative,
    positive,
    probability,
)
from ssdsim.theory.hit_curve import HitCurve
from ssdsim.theory.renewal import SlotChain, endless_batch
from ssdsim.theory.round_time import RoundTimes

Fallback = Literal["jit", "none"]


@dataclass(frozen=True, kw_only=True)
class DraftPass:
    """Time of one draft pass as a function of its width."""

    step_s: float
    """t0: a pass over a few branches."""
    branch_s: float
    """t1: every branch beyond the free ones."""
    free_branches: float = 0.0
    """w0: branches that cost nothing beyond `step_s`."""

    def __post_init__(self) -> None:
        positive("step_s", self.step_s)
        positive("branch_s", self.branch_s)
        non_negative("free_branches", self.free_branches)

    def build_s(self, num_speculative_tokens: npt.ArrayLike, branches_per_device: npt.ArrayLike) -> Real:
        """T_p: glue pass and K tree steps over the branches each device holds. Broadcasts."""
        passes = np.asarray(integer("num_speculative_tokens", num_speculative_tokens, 0)) + 1.0
        branches = np.asarray(non_negative("branches_per_device", branches_per_device))
        return as_real(passes * (self.step_s + self.branch_s * np.maximum(0.0, branches - self.free_branches)))

    def jit_s(self, num_speculative_tokens: npt.ArrayLike) -> Real:
        """T_j: one chain per sequence, drafted just in time."""
        return as_real(np.asarray(integer("num_speculative_tokens", num_speculative_tokens, 0)) * self.step_s)

    def max_budget(
        self,
        num_speculative_tokens: npt.ArrayLike,
        batch_size: npt.ArrayLike,
        window_s: npt.ArrayLike,
        num_devices: npt.ArrayLike = 1,
    ) -> Real:
        """B_max: the real budget per sequence whose build ends with the window; 0 where even K steps outlive
        it."""
        passes = np.asarray(integer("num_speculative_tokens", num_speculative_tokens, 0)) + 1.0
        spare_s = np.asarray(positive("window_s", window_s)) / passes - self.step_s
        share = np.asarray(integer("num_devices", num_devices, 1)) / integer("batch_size", batch_size, 1)
        return as_real(np.where(spare_s < 0.0, 0.0, share * (self.free_branches + spare_s / self.branch_s)))


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """One point of the joint search."""

    num_speculative_tokens: int
    speculation_budget: int
    num_draft_devices: int
    fallback: Fallback
    rate_per_sequence: float
    """Tokens per second of one sequence."""
    rate_per_gpu: float
    """Tokens per second of the batch, over target and draft devices."""
    build_s: float


def miss_prob(
    prefactor: Real,
    exponent: Real,
    effective_positions: Real,
    batch_size: int,
    budget_one_device: Real,
    num_devices: Real,
) -> Real:
    """Misses of optimal fan-outs under one power law: c (N_eff b / (G B_1))^r, at most 1 (THEORY 4.4, 7.3).

    `budget_one_device` B_1 is what one device holds for the whole batch: returns fall as G^-r. Broadcasts.
    """
    per_candidate = np.asarray(positive("effective_positions", effective_positions)) * integer(
        "batch_size", batch_size, 1
    )
    candidates = np.asarray(positive("num_devices", num_devices)) * positive("budget_one_device", budget_one_device)
    misses = probability("prefactor", prefactor) * (per_candidate / candidates) ** positive("exponent", exponent)
    return as_real(np.minimum(misses, 1.0))


def sd_rate(acceptance_prob: float, lookaheads: Sequence[int], draft: DraftPass, window_s: float) -> float:
    """Best tokens per second of synchronous SD over the lookaheads: max_K E_K / (window + K t0)."""
    chosen = np.asarray(integer("lookaheads", list(lookaheads), 0))
    return float(np.max(mean_acceptance_length(acceptance_prob, chosen) / (window_s + draft.jit_s(chosen))))


@dataclass(frozen=True, kw_only=True)
class DraftSearch:
    """What `joint_optimum` tries: every combination of these."""

    lookaheads: Sequence[int]
    budgets: Sequence[int]
    """Speculation budgets per sequence."""
    num_draft_devices: Sequence[int] = (1,)
    fallbacks: Sequence[Fallback] = ("jit", "none")
    late_builds: bool = True
    """Whether builds that outlive the window compete: slightly late can be best, and the paper never looks
    there."""


@dataclass(frozen=True, kw_only=True)
class DraftPair:
    """What is known of the pair and its verifier."""

    acceptance_prob: float
    rejection_curve: HitCurve
    """Hit curve where a drafted token was rejected."""
    all_accepted_curve: HitCurve
    """Hit curve where every drafted token was accepted, and after a fallback that proposes nothing."""
    window_s: float
    """Verification with its round trip, whatever the lookahead."""
    target_gpus: int


def joint_optimum(
    pair: DraftPair, draft: DraftPass, search: DraftSearch, *, batch_size: int, per_gpu: bool = False
) -> DraftPlan:
    """The plan of the highest exact rate, or rate per GPU, in the search (THEORY 7.3).

    A miss interrupts the build. Ties go to the earlier combination.
    """
    plans = [
        plan
        for num_tokens in search.lookaheads
        for plan in _plans(pair, draft, search, count("num_speculative_tokens", num_tokens, 0), batch_size)
    ]
    if not plans:
        raise DomainError("search", "must hold at least one combination", search)
    return max(plans, key=lambda plan: plan.rate_per_gpu if per_gpu else plan.rate_per_sequence)


def _plans(
    pair: DraftPair, draft: DraftPass, search: DraftSearch, num_tokens: int, batch_size: int
) -> Iterator[DraftPlan]:
    """The best budget of every (devices, fallback) at one lookahead, evaluated over all budgets at once."""
    budgets = np.asarray(integer("budgets", list(search.budgets), 1))
    drafted = _hits_after_draft(pair, num_tokens, budgets)
    undrafted = np.asarray(pair.all_accepted_curve.hit_prob(budgets))
    tokens = mean_acceptance_length(pair.acceptance_prob, num_tokens)
    for devices, fallback in product(search.num_draft_devices, search.fallbacks):
        branches = batch_size * budgets / count("num_draft_devices", devices, 1)
        build_s = np.asarray(draft.build_s(num_tokens, branches))
        if fallback == "jit":
            chain = _chain(drafted, drafted, tokens, tokens)
            rates = _rates(chain, pair.window_s, build_s, draft.jit_s(num_tokens), batch_size)
        else:
            chain = _chain(drafted, undrafted, tokens, 1.0)
            rates = _rates(chain, pair.window_s, build_s, 0.0, batch_size)
        if not search.late_builds:
            rates[build_s > pair.window_s * (1.0 + 1e-12)] = 0.0
        best = int(rates.argmax())
        if rates[best] > 0.0:
            yield DraftPlan(
                num_speculative_tokens=num_tokens,
                speculation_budget=int(budgets[best]),
                num_draft_devices=devices,
                fallback=fallback,
                rate_per_sequence=float(rates[best]),
                rate_per_gpu=float(rates[best]) * batch_size / (pair.target_gpus + devices),
                build_s=float(build_s[best]),
            )


def _chain(hit_p: FloatArray, hit_b: FloatArray, tokens_p: Real, tokens_b: Real) -> SlotChain:
    return SlotChain(
        hit_after_draft=hit_p, hit_after_fallback=hit_b, tokens_drafted=tokens_p, tokens_fallback=tokens_b
    )


def _rates(chain: SlotChain, window_s: float, build_s: FloatArray, miss_s: Real, batch_size: int) -> FloatArray:
    """Exact endless rates, one per budget."""
    times = RoundTimes(
        window_s=np.array([window_s]),
        build_s=build_s[:, None],
        fallback_s=np.append(0.0, np.full(batch_size, miss_s)),
        on_late="abort",
    )
    return np.array(endless_batch(chain, times).rate_per_sequence)


def _hits_after_draft(pair: DraftPair, num_tokens: int, budgets: IntArray) -> FloatArray:
    """p_p under the optimal fan-outs of each budget."""
    weights = outcome_weights(per_position(pair.acceptance_prob, num_tokens))
    curves = [pair.rejection_curve] * num_tokens + [pair.all_accepted_curve]
    most = int(budgets.max(initial=1))
    if all(curve.is_concave(most) for curve in set(curves)):
        # Greedy takes the B largest increments (THEORY 4.1): one sort serves every budget.
        gains = np.concatenate([w * curve.increments(most) for w, curve in zip(weights, curves, strict=True)])
        return np.asarray(np.minimum(np.cumsum(np.sort(gains)[::-1])[budgets - 1], 1.0))
    return np.array([fan_out.hit_prob(weights, curves, fan_out.optimal(weights, curves, int(b))) for b in budgets])
