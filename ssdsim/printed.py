"""A scenario through the paper's formulas exactly as printed (method `paper`): what its reader would compute.

All times are relative to one AR step of the same batch. The formulas know one time to build the cache, one to draft
on a miss, no communication, no host time and no growth of verification with its width; endless requests, all alike.
`evaluate` puts the result beside the exact model's, and the notes say what was left out.
"""

from __future__ import annotations

import numpy as np

from ssdsim.design_point import DesignPoint, RowKind
from ssdsim.errors import DomainError
from ssdsim.exact.fallbacks import resolve_fallback
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.theory.acceptance import mean_acceptance_length_per_position, outcome_weights
from ssdsim.theory.speedup import sd_speedup, ssd_speedup, stationary_cache_hit_rate


def printed_quantities(point: DesignPoint, mode: Mode) -> tuple[dict[str, float], tuple[str, ...]]:
    """Quantities and notes of one mode; raises DomainError where the paper has no formula."""
    costs, b = point.scenario.costs, point.scenario.workload.batch_size
    context = point.scenario.workload.prompt_tokens.pmf()
    mean_context = float(context[0] @ context[1])
    unit_s = float(costs.verify_s(b, b, mean_context) + costs.sample_s(b) + costs.host_s(b))
    if mode is Mode.AR:
        return {"tokens_per_s": b / unit_s, "round_s": unit_s, "mean_acceptance_length": 1.0}, ()
    steps = point.scenario.drafting.num_speculative_tokens
    drafted_length = _length(point.drafted)
    if mode is Mode.SD:
        draft = float(costs.sd_draft_s(b, steps, mean_context)) / unit_s
        speedup = float(sd_speedup(drafted_length, draft))
        return _answer(speedup, drafted_length, b, unit_s), (_LEFT_OUT,)
    return _ssd(point, unit_s, mean_context, drafted_length)


_LEFT_OUT = "a verification is taken to cost one AR step whatever its width; no communication"


def _ssd(
    point: DesignPoint, unit_s: float, context: float, drafted_length: float
) -> tuple[dict[str, float], tuple[str, ...]]:
    drafting, b = point.scenario.drafting, point.scenario.workload.batch_size
    costs, kind = point.scenario.costs, resolve_fallback(point).kind
    if kind is FallbackKind.THRESHOLD:
        raise DomainError("drafting.fallback.kind", "the paper has no threshold policy: use 'exact'", str(kind))
    answered = point.redrafted if kind is FallbackKind.JIT else point.undrafted
    branches = np.ceil(b * point.drafted.num_branches / point.scenario.placement.num_draft_devices)
    build = float(costs.glue_s(b, b * (drafting.num_speculative_tokens + 1), context))
    build += float(costs.tree_s(branches, drafting.num_speculative_tokens, context))
    miss = {
        FallbackKind.JIT: costs.jit_s(b, drafting.num_speculative_tokens, context),
        FallbackKind.NGRAM: costs.ngram_s(b),
    }.get(kind, 0.0)
    hit_after_draft, hit_after_fallback = _hit_rate(point.drafted), _hit_rate(answered)
    hit_rate = float(stationary_cache_hit_rate(hit_after_draft, hit_after_fallback))
    speedup = float(ssd_speedup(hit_rate, drafted_length, _length(answered), build / unit_s, float(miss) / unit_s, b))
    quantities = {
        **_answer(speedup, hit_rate * drafted_length + (1 - hit_rate) * _length(answered), b, unit_s),
        "cache_hit_rate": hit_rate,
        "hit_rate_after_draft": hit_after_draft,
        "hit_rate_after_fallback": hit_after_fallback,
        "prob_all_hit": hit_rate**b,
        "build_s": build,
    }
    late = ("Corollary 16 ignores that a batch waits for its slowest row; build and miss cross here",)
    return quantities, (_LEFT_OUT, *(late if build > unit_s + float(miss) and b > 1 else ()))


def _answer(speedup: float, length: float, batch_size: int, unit_s: float) -> dict[str, float]:
    return {
        "tokens_per_s": speedup * batch_size / unit_s,
        "round_s": length / speedup * unit_s,
        "mean_acceptance_length": length,
    }


def _length(row: RowKind) -> float:
    return float(mean_acceptance_length_per_position(np.asarray(row.acceptance)))


def _hit_rate(row: RowKind) -> float:
    return float(np.asarray(outcome_weights(row.acceptance)) @ np.asarray(row.hit_probs))
