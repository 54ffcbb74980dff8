"""The rounds of a saturated batch in seconds: the part of the exact model that knows times, in arrays over points."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ssdsim.costs.models import RoundCosts
from ssdsim.design_point import DesignPoint
from ssdsim.errors import DomainError
from ssdsim.exact.slots import SlotNumbers
from ssdsim.scenario import FallbackKind, Mode
from ssdsim.theory.round_time import End, Gap, RoundTimes, Source, mean_round

FloatArray = NDArray[np.float64]
Columns = dict[str, FloatArray]

HIT_COLUMNS = ("cache_hit_rate", "hit_rate_after_draft", "hit_rate_after_fallback", "prob_all_hit")


class Setting(NamedTuple):
    """What points must share to be evaluated in one array."""

    mode: Mode
    batch_size: int
    fallback: FallbackKind
    first_round: str
    on_late: str
    padded_verify: bool
    redraft_hits: bool


def setting_of(point: DesignPoint, mode: Mode, fallback: FallbackKind) -> Setting:
    """The setting of one point under `mode`, with `auto` already resolved into `fallback`."""
    drafting = point.scenario.drafting
    return Setting(
        mode=mode,
        batch_size=point.scenario.workload.batch_size,
        fallback=fallback,
        first_round=drafting.first_round,
        on_late=drafting.on_late,
        padded_verify=drafting.padded_verify,
        redraft_hits=drafting.redraft_hits,
    )


def batch_columns(
    slots: SlotNumbers, setting: Setting, costs: RoundCosts, num_draft_devices: ArrayLike = 1
) -> Columns:
    """Mean round and rates of a saturated batch: arrays over the points of `slots`.

    Columns: tokens_per_s (the whole batch), round_s and its parts window_s, build_wait_s, fallback_s, overhead_s,
    build_s (the whole build, hidden or not), mean_acceptance_length, cache_hit_rate, hit_rate_after_draft,
    hit_rate_after_fallback, prob_all_hit.
    """
    if setting.mode is not Mode.SSD:
        return _serial_columns(slots, setting, costs)
    times, gaps = ssd_times(slots, setting, costs, num_draft_devices)
    if setting.on_late == "truncate" and bool(np.any(times.build_s > times.window_s)):
        raise DomainError("drafting.on_late", "'truncate' changes what a row proposes: simulate it", "truncate")
    mean = mean_round(slots.law, times, gaps, prefill_beside(slots, setting, costs))
    drafted_rows = slots.law[..., Source.DRAFTED, :].sum(axis=-1)
    typical = np.rint(drafted_rows * setting.batch_size).astype(int)
    build_s = np.take_along_axis(times.build_s, typical[..., None], axis=-1)[..., 0]
    return {
        "tokens_per_s": setting.batch_size * slots.tokens_per_round / mean.round_s,
        "round_s": np.asarray(mean.round_s),
        "window_s": np.asarray(mean.window_s),
        "build_wait_s": np.asarray(mean.build_wait_s),
        "fallback_s": np.asarray(mean.fallback_s) + np.asarray(mean.prefill_s),
        "overhead_s": np.asarray(mean.overhead_s),
        "build_s": build_s,
        "mean_acceptance_length": slots.tokens_per_round,
        **hit_columns(slots.law, setting.batch_size),
    }


def ssd_times(
    slots: SlotNumbers, setting: Setting, costs: RoundCosts, num_draft_devices: ArrayLike = 1
) -> tuple[RoundTimes, tuple[Gap, ...]]:
    """Times of an SSD batch for 0..b drafted rows and 0..b misses, and what the gaps between rounds are spent on."""
    b = setting.batch_size
    drafted = np.arange(b + 1.0)
    answered = b - drafted
    context = slots.context_tokens[..., None]
    query = drafted * slots.drafted_width[..., None] + answered * slots.answered_width[..., None]
    verified = b * slots.drafted_width[..., None] + 0 * drafted if setting.padded_verify else query
    branches = drafted * slots.drafted_branches[..., None] + answered * slots.answered_branches[..., None]
    window_s = np.zeros_like(query) + (
        costs.reply_s(b, verified)
        + np.where(
            branches > 0,
            costs.verify_beside_build_s(b, verified, context),
            costs.verify_s(b, verified, context),
        )
        + costs.accept_s(b, verified)
        + costs.outcome_s(b)
    )
    per_device = np.ceil(branches / np.asarray(num_draft_devices, dtype=float)[..., None])
    build_s = (
        costs.glue_s(b, query, context)
        + costs.tree_s(per_device, slots.num_steps[..., None], context)
        + costs.store_s(branches)
    )
    jit_s = np.broadcast_to(costs.jit_s(drafted, slots.num_steps[..., None], context), window_s.shape)
    fallback_s, gaps = _gaps(jit_s, setting, costs)
    if drafts_first_rounds(setting):
        read_s = costs.draft_prefill_s(drafted, slots.prompt_tokens[..., None])
        gaps = (*gaps, Gap((End.FINISHED,), np.broadcast_to(read_s, window_s.shape)))
    times = RoundTimes(
        window_s=window_s,
        build_s=np.where(branches > 0, build_s, 0.0),
        fallback_s=fallback_s,
        overhead_s=float(costs.lookup_s(b) + costs.host_s(b)),
        on_late="abort" if setting.on_late == "abort" else "wait",
    )
    return times, gaps


def first_point(times: RoundTimes) -> RoundTimes:
    """The times of the first point alone, without the leading axis of points."""
    return RoundTimes(
        window_s=times.window_s[0],
        build_s=times.build_s[0],
        fallback_s=times.fallback_s[0],
        overhead_s=times.overhead_s,
        on_late=times.on_late,
    )


def _gaps(jit_s: FloatArray, setting: Setting, costs: RoundCosts) -> tuple[FloatArray, tuple[Gap, ...]]:
    """Time for 0..b misses, and the gaps: first rounds share one chain with misses that are drafted just in time."""
    counts = np.arange(setting.batch_size + 1.0)
    if setting.fallback is FallbackKind.JIT:
        whole = np.where(counts > 0, jit_s[..., -1:], 0.0)
        missed_s = whole if setting.redraft_hits else jit_s
        return missed_s, (Gap((End.MISS, End.FINISHED), missed_s),)
    missed_s = costs.ngram_s(counts) if setting.fallback is FallbackKind.NGRAM else np.zeros(counts.size)
    missed_s = np.broadcast_to(missed_s, jit_s.shape)
    if setting.first_round == "miss":
        return missed_s, (Gap((End.MISS, End.FINISHED), missed_s),)
    return missed_s, (Gap((End.MISS,), missed_s), Gap((End.FINISHED,), jit_s))


def drafts_first_rounds(setting: Setting) -> bool:
    """Whether the verifier of an SSD batch waits for the first chains of admitted requests."""
    return setting.first_round == "jit" or setting.fallback is FallbackKind.JIT


def prefill_beside(slots: SlotNumbers, setting: Setting, costs: RoundCosts) -> Gap:
    """Reading the prompts of 0..b admitted requests, of mean length, while SSD's speculator looks up and drafts."""
    read_s = costs.prefill_s(np.arange(setting.batch_size + 1.0), slots.prompt_tokens[..., None])
    looked_up_s = costs.lookup_s(setting.batch_size)
    return Gap((End.FINISHED,), np.maximum(read_s - looked_up_s, 0.0))


def _mean_prefill_s(slots: SlotNumbers, setting: Setting, costs: RoundCosts) -> FloatArray:
    """[points] time per round of AR and SD for reading the prompts of requests that follow those that finished."""
    admitted = setting.batch_size * slots.law[..., End.FINISHED].sum(axis=-1)
    target_s = costs.prefill_s(admitted, slots.prompt_tokens)
    if setting.mode is Mode.AR:
        return target_s
    return target_s + costs.draft_prefill_s(admitted, slots.prompt_tokens) * (slots.num_steps > 0)


def serial_times(
    slots: SlotNumbers, setting: Setting, costs: RoundCosts
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """AR and SD: drafting, verification with acceptance, and host time, one after the other [points]."""
    b, shape = setting.batch_size, slots.num_steps.shape
    if setting.mode is Mode.AR:
        drafting_s = np.zeros(shape)
        window_s = costs.verify_s(b, b, slots.context_tokens) + costs.sample_s(b)
    else:
        query = b * slots.drafted_width
        drafting_s = costs.sd_draft_s(b, slots.sd_steps, slots.context_tokens)
        window_s = costs.verify_s(b, query, slots.context_tokens) + costs.accept_s(b, query)
    times = (np.broadcast_to(time, shape) for time in (drafting_s, window_s, costs.host_s(b)))
    return tuple(times)  # type: ignore[return-value]


def _serial_columns(slots: SlotNumbers, setting: Setting, costs: RoundCosts) -> Columns:
    """Nothing is built, nothing is looked up, one phase follows the other."""
    drafting_s, window_s, host_s = serial_times(slots, setting, costs)
    drafting_s = drafting_s + _mean_prefill_s(slots, setting, costs)
    round_s = drafting_s + window_s + host_s
    nothing = np.zeros_like(round_s)
    return {
        "tokens_per_s": setting.batch_size * slots.tokens_per_round / round_s,
        "round_s": round_s,
        "window_s": window_s,
        "build_wait_s": nothing,
        "fallback_s": drafting_s,
        "overhead_s": host_s,
        "build_s": nothing,
        "mean_acceptance_length": slots.tokens_per_round,
        **dict.fromkeys(HIT_COLUMNS, nothing),
    }


def hit_columns(law: FloatArray, batch_size: int) -> Columns:
    """`HIT_COLUMNS` of a slot's law [..., 2, 3]."""
    looked_up = law[..., : End.FINISHED].sum(axis=-1)
    hits = law[..., End.HIT]
    with np.errstate(invalid="ignore"):
        by_source = np.where(looked_up > 0, hits / looked_up, 0.0)
        overall = np.where(looked_up.sum(axis=-1) > 0, hits.sum(axis=-1) / looked_up.sum(axis=-1), 0.0)
    misses = law[..., End.MISS].sum(axis=-1)
    return {
        "cache_hit_rate": overall,
        "hit_rate_after_draft": by_source[..., Source.DRAFTED],
        "hit_rate_after_fallback": by_source[..., Source.FALLBACK],
        "prob_all_hit": (1.0 - misses) ** batch_size,
    }
