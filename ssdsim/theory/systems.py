"""Cost relations of a speculative step on real hardware (seed 2, sections 4.2 and 5.1-5.6).

A speculative step replaces A narrow target steps by one wide verification of q query tokens per request:
each relation here asks whether some cost of the wide step stays below A times that of the narrow one. Gains
are left minus right of the section's inequality, in its own unit: positive where speculation gains.

A is the mean acceptance length (at least 1), q the query tokens that verification processes per request (K or
K+1), times are in seconds. Arguments broadcast; scalars give a float.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ssdsim.theory import domain
from ssdsim.theory.domain import Real


def sd_step_speedup(
    mean_acceptance_length: npt.ArrayLike,
    ar_step_s: npt.ArrayLike,
    num_speculative_tokens: npt.ArrayLike,
    draft_step_s: npt.ArrayLike,
    verify_s: npt.ArrayLike,
) -> Real:
    """Section 4.2: S = A T_target / (K T_draft + T_verify), one draft STEP being `draft_step_s`."""
    steps = domain.integer("num_speculative_tokens", num_speculative_tokens, 0)
    draft = steps * domain.non_negative("draft_step_s", draft_step_s)
    target = _length(mean_acceptance_length) * domain.positive("ar_step_s", ar_step_s)
    return domain.as_real(target / (draft + domain.positive("verify_s", verify_s)))


def step_cost_s(draft_s: npt.ArrayLike, verify_s: npt.ArrayLike, control_s: npt.ArrayLike = 0.0) -> Real:
    """Section 5.1: C_spec = T_draft + T_verify + T_control, without overlap; `draft_s` is the whole draft phase."""
    drafting = domain.non_negative("draft_s", draft_s) + domain.non_negative("control_s", control_s)
    return domain.as_real(drafting + domain.positive("verify_s", verify_s))


def overlapped_step_cost_s(
    verify_s: npt.ArrayLike,
    build_s: npt.ArrayLike,
    fallback_s: npt.ArrayLike = 0.0,
    link_s: npt.ArrayLike = 0.0,
    control_s: npt.ArrayLike = 0.0,
) -> Real:
    """Section 5.1 for SSD: of the build only what outlives verification is paid; fallback and link in full."""
    window = np.maximum(domain.positive("verify_s", verify_s), domain.non_negative("build_s", build_s))
    extra = domain.non_negative("fallback_s", fallback_s) + domain.non_negative("link_s", link_s)
    return domain.as_real(window + extra + domain.non_negative("control_s", control_s))


def time_per_token_s(step_cost_s: npt.ArrayLike, mean_acceptance_length: npt.ArrayLike) -> Real:
    """Section 5.1: L_spec = C_spec / A."""
    return domain.as_real(domain.non_negative("step_cost_s", step_cost_s) / _length(mean_acceptance_length))


def headroom_s(mean_acceptance_length: npt.ArrayLike, ar_step_s: npt.ArrayLike, verify_s: npt.ArrayLike) -> Real:
    """Section 5.1: H = A L_AR - T_verify, all that drafting and control may cost. Negative: lost already."""
    saved = _length(mean_acceptance_length) * domain.positive("ar_step_s", ar_step_s)
    return domain.as_real(saved - domain.positive("verify_s", verify_s))


def wide_step_gain_s(mean_acceptance_length: npt.ArrayLike, narrow_s: npt.ArrayLike, wide_s: npt.ArrayLike) -> Real:
    """Section 5.2: A T(B) - T(Bq) of any part of the step: dense layers, attention, one expert (5.4)."""
    saved = _length(mean_acceptance_length) * domain.non_negative("narrow_s", narrow_s)
    return domain.as_real(saved - domain.non_negative("wide_s", wide_s))


def verify_s(dense_s: npt.ArrayLike, attention_s: npt.ArrayLike, other_s: npt.ArrayLike = 0.0) -> Real:
    """Section 5.2: T_verify(B, q, l) = T_dense(B q) + T_attn(B, q, l) + T_misc(B, q); not a function of B q."""
    parts = domain.non_negative("dense_s", dense_s) + domain.non_negative("attention_s", attention_s)
    return domain.as_real(parts + domain.non_negative("other_s", other_s))


def kv_read_gain(mean_acceptance_length: npt.ArrayLike, kv_read_ratio: npt.ArrayLike) -> Real:
    """Sections 5.2 and 5.5: A - r_KV, where verification reads the history r_KV times as much as one AR step.

    r_KV is 1 where the kernel reuses the history for all q queries and q where it does not. Historical KV
    only.
    """
    return domain.as_real(_length(mean_acceptance_length) - domain.at_least("kv_read_ratio", kv_read_ratio, 1.0))


def discarded_fraction(mean_acceptance_length: npt.ArrayLike, num_query_tokens: npt.ArrayLike) -> Real:
    """Section 5.5: share of the verified tokens whose KV is written and then dropped, 1 - A/q, for q >= A."""
    length = _length(mean_acceptance_length)
    q = domain.integer("num_query_tokens", num_query_tokens, 1)
    domain.refuse_where(np.greater(length, q), "mean_acceptance_length", "must be at most q", length)
    return domain.as_real(1.0 - length / q)


def comm_s(fixed_s: npt.ArrayLike, size_bytes: npt.ArrayLike, bandwidth_bytes_per_s: npt.ArrayLike) -> Real:
    """Section 5.3: one collective, c_0 + V / W."""
    moving = domain.non_negative("size_bytes", size_bytes) / domain.positive(
        "bandwidth_bytes_per_s", bandwidth_bytes_per_s
    )
    return domain.as_real(domain.non_negative("fixed_s", fixed_s) + moving)


def comm_gain_s(
    mean_acceptance_length: npt.ArrayLike,
    num_query_tokens: npt.ArrayLike,
    fixed_s: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    bandwidth_bytes_per_s: npt.ArrayLike,
) -> Real:
    """Section 5.3: (A - 1) c_0 - (q - A) V / W; fewer synchronisations against more bytes.

    A = 1 never gains; where q counts only the K drafts A may exceed q, and speculation always gains.
    """
    length = _length(mean_acceptance_length)
    q = domain.integer("num_query_tokens", num_query_tokens, 1)
    fixed = domain.non_negative("fixed_s", fixed_s)
    moving = domain.non_negative("size_bytes", size_bytes) / domain.positive(
        "bandwidth_bytes_per_s", bandwidth_bytes_per_s
    )
    return domain.as_real((length - 1.0) * fixed - (q - length) * moving)


def moe_s(dispatch_s: npt.ArrayLike, expert_s: npt.ArrayLike, combine_s: npt.ArrayLike) -> Real:
    """Section 5.4: dispatch, the slowest expert-parallel rank, combine. `expert_s` is `[..., ranks]`.

    Give the times of one step and average the results: the mean of the maximum exceeds the maximum of the
    means.
    """
    ranks = np.atleast_1d(np.asarray(domain.non_negative("expert_s", expert_s)))
    around = domain.non_negative("dispatch_s", dispatch_s) + domain.non_negative("combine_s", combine_s)
    return domain.as_real(around + ranks.max(axis=-1))


def expected_active_experts(
    num_experts: npt.ArrayLike, experts_per_token: npt.ArrayLike, num_tokens: npt.ArrayLike
) -> Real:
    """Section 5.4: experts that n tokens touch under uniform routing, E (1 - (1 - k/E)^n).

    128 experts, 8 per token: 8 at n = 1, 41 at n = 6; more than A = 3.7 times the weights for one request.
    """
    experts = domain.integer("num_experts", num_experts, 1)
    chosen = domain.integer("experts_per_token", experts_per_token, 1)
    domain.refuse_where(np.greater(chosen, experts), "experts_per_token", "must be at most num_experts", chosen)
    tokens = domain.integer("num_tokens", num_tokens, 0)
    idle = np.power(1.0 - np.divide(chosen, experts), tokens)
    return domain.as_real(experts * (1.0 - idle))


class ThroughputRatio(NamedTuple):
    """Serving throughput of SD over AR as a product (section 5.6)."""

    concurrency: Real
    """B_SD / B_AR: requests that still fit"""
    batch_effect: Real
    """L_AR(B_AR) / L_AR(B_SD): what AR's own step gains by the smaller batch"""
    step_gain: Real
    """A L_AR(B_SD) / C_spec(B_SD): the step-level gain at one batch"""

    @property
    def total(self) -> Real:
        """Theta_SD / Theta_AR."""
        return self.concurrency * self.batch_effect * self.step_gain


def throughput_ratio(
    sd_batch_size: npt.ArrayLike,
    ar_batch_size: npt.ArrayLike,
    mean_acceptance_length: npt.ArrayLike,
    ar_step_at_ar_batch_s: npt.ArrayLike,
    step_cost_at_sd_batch_s: npt.ArrayLike,
) -> Real:
    """Section 5.6: (B_SD / B_AR) (A L_AR(B_AR) / C_spec(B_SD)).

    The second factor is not the step-level gain, since its two times are taken at different batches; see
    `throughput_factors`.
    """
    concurrency = _concurrency(sd_batch_size, ar_batch_size)
    ar_step = domain.positive("ar_step_at_ar_batch_s", ar_step_at_ar_batch_s)
    cost = domain.positive("step_cost_at_sd_batch_s", step_cost_at_sd_batch_s)
    return domain.as_real(concurrency * _length(mean_acceptance_length) * ar_step / cost)


def throughput_factors(
    sd_batch_size: npt.ArrayLike,
    ar_batch_size: npt.ArrayLike,
    mean_acceptance_length: npt.ArrayLike,
    ar_step_at_ar_batch_s: npt.ArrayLike,
    ar_step_at_sd_batch_s: npt.ArrayLike,
    step_cost_at_sd_batch_s: npt.ArrayLike,
) -> ThroughputRatio:
    """Section 5.6 in its equal-batch form (THEORY 1): the same product with a true step-level gain in it."""
    at_ar = domain.positive("ar_step_at_ar_batch_s", ar_step_at_ar_batch_s)
    at_sd = domain.positive("ar_step_at_sd_batch_s", ar_step_at_sd_batch_s)
    cost = domain.positive("step_cost_at_sd_batch_s", step_cost_at_sd_batch_s)
    return ThroughputRatio(
        concurrency=domain.as_real(_concurrency(sd_batch_size, ar_batch_size)),
        batch_effect=domain.as_real(at_ar / at_sd),
        step_gain=domain.as_real(_length(mean_acceptance_length) * at_sd / cost),
    )


def _length(mean_acceptance_length: npt.ArrayLike) -> Real:
    return domain.at_least("mean_acceptance_length", mean_acceptance_length, 1.0)


def _concurrency(sd_batch_size: npt.ArrayLike, ar_batch_size: npt.ArrayLike) -> Real:
    sd = domain.integer("sd_batch_size", sd_batch_size, 1)
    return sd / domain.integer("ar_batch_size", ar_batch_size, 1)
