"""The exact model of a scenario: from the numbers of a design point to long-run rates, for many points at once.

Two steps, so that a sweep does each once per distinct input:

1. `slot_numbers(points)`: what one sequence does from round to round (law of its rows, tokens per round). It depends
   on drafting, behaviour and lengths, not on times or on the batch.
2. `batch_columns(slots, setting, costs, ...)`: the batch's rounds in seconds, for arrays of points that share a
   `Setting`.

`evaluate` is the door for one scenario, `planning` for many. What only simulation can answer is refused with a
`DomainError` that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ssdsim.costs.models import RoundCosts
from ssdsim.design_point import DesignPoint, RowKind
from ssdsim.distributions import mean_length
from ssdsim.errors import DomainError
from ssdsim.scenario import FallbackKind, Mode, Scenario
from ssdsim.theory.closed import SlotLaw, slot_law
from ssdsim.theory.round_time import End, Gap, RoundTimes, Source, mean_round
from ssdsim.theory.row_law import RowLaw

FloatArray = NDArray[np.float64]
Columns = dict[str, FloatArray]

SPREAD_NODES = 24
"""Kinds of requests that stand for a continuous spread of acceptance (Gauss-Legendre in the quantile)."""


class Setting(NamedTuple):
    """What points must share to be evaluated in one array."""

    mode: Mode
    batch_size: int
    fallback: FallbackKind
    first_round: str
    on_late: str
    padded_verify: bool
    redraft_hits: bool


@dataclass(frozen=True, kw_only=True)
class SlotNumbers:
    """One sequence's rounds; every field is an array over points."""

    law: FloatArray
    """[points, 2, 3]: probability of (drafted | answered by the fallback) x (hit | miss | finished) in a round."""
    tokens_per_round: FloatArray
    num_steps: FloatArray
    """Steps of a chain, K."""
    sd_steps: FloatArray
    """Draft steps of an SD round."""
    drafted_width: FloatArray
    """Query tokens of a drafted row in verification and in the glue forward, K + 1."""
    answered_width: FloatArray
    """The same for a row that the fallback answered."""
    drafted_branches: FloatArray
    answered_branches: FloatArray
    context_tokens: FloatArray
    """Mean context of a row over its life."""

    def take(self, index: NDArray[np.int64]) -> SlotNumbers:
        """The points at `index`."""
        return SlotNumbers(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


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


def slot_numbers(points: Sequence[DesignPoint], mode: Mode, fallback: FallbackKind) -> SlotNumbers:
    """What one sequence of each point does from round to round under `mode`: arrays over the points.

    Points whose rows have the same shape and whose requests have the same lengths are evaluated together. Raises
    DomainError where the rounds of one sequence depend on the batch: see `theory.threshold` and the simulator.
    """
    rows = [_rows(point, mode, fallback) for point in points]
    law, tokens = np.empty((len(points), 2, 3)), np.empty(len(points))
    for group in _alike(points, rows):
        laws = _group_law([points[i] for i in group], [rows[i] for i in group])
        law[group], tokens[group] = laws.law, laws.tokens_per_round
    drafting = [point.scenario.drafting for point in points]
    return SlotNumbers(
        law=law,
        tokens_per_round=tokens,
        num_steps=np.array([float(d.num_speculative_tokens) for d in drafting]),
        sd_steps=np.array([float(d.num_speculative_tokens + d.sd_extra_step) for d in drafting]),
        drafted_width=np.array([drafted.num_proposed + 1.0 for drafted, _ in rows]),
        answered_width=np.array([answered.num_proposed + 1.0 for _, answered in rows]),
        drafted_branches=np.array([float(drafted.num_branches) for drafted, _ in rows]),
        answered_branches=np.array([float(answered.num_branches) for _, answered in rows]),
        context_tokens=np.array([_mean_context(p.scenario, t) for p, t in zip(points, tokens, strict=True)]),
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
    mean = mean_round(slots.law, times, gaps)
    drafted_rows = slots.law[..., Source.DRAFTED, :].sum(axis=-1)
    typical = np.rint(drafted_rows * setting.batch_size).astype(int)
    build_s = np.take_along_axis(times.build_s, typical[..., None], axis=-1)[..., 0]
    return {
        "tokens_per_s": setting.batch_size * slots.tokens_per_round / mean.round_s,
        "round_s": np.asarray(mean.round_s),
        "window_s": np.asarray(mean.window_s),
        "build_wait_s": np.asarray(mean.build_wait_s),
        "fallback_s": np.asarray(mean.fallback_s),
        "overhead_s": np.asarray(mean.overhead_s),
        "build_s": build_s,
        "mean_acceptance_length": slots.tokens_per_round,
        **_hit_columns(slots.law, setting.batch_size),
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
        + costs.verify_s(b, verified, context)
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
    times = RoundTimes(
        window_s=window_s,
        build_s=np.where(branches > 0, build_s, 0.0),
        fallback_s=fallback_s,
        overhead_s=float(costs.lookup_s(b) + costs.host_s(b)),
        on_late="abort" if setting.on_late == "abort" else "wait",
    )
    return times, gaps


def _gaps(jit_s: FloatArray, setting: Setting, costs: RoundCosts) -> tuple[FloatArray, tuple[Gap, ...]]:
    """Time for 0..b misses, and the gaps: first rounds share one chain with misses that are drafted just in time."""
    counts = np.arange(setting.batch_size + 1.0)
    if setting.fallback is FallbackKind.JIT:
        whole = np.where(counts > 0, jit_s[..., -1:], 0.0)
        missed_s = whole if setting.redraft_hits else jit_s
        if setting.redraft_hits and setting.first_round == "jit":
            return missed_s, (Gap((End.MISS,), missed_s), Gap((End.FINISHED,), jit_s))
        return missed_s, (Gap((End.MISS, End.FINISHED), missed_s),)
    missed_s = costs.ngram_s(counts) if setting.fallback is FallbackKind.NGRAM else np.zeros(counts.size)
    missed_s = np.broadcast_to(missed_s, jit_s.shape)
    if setting.first_round == "miss":
        return missed_s, (Gap((End.MISS, End.FINISHED), missed_s),)
    return missed_s, (Gap((End.MISS,), missed_s), Gap((End.FINISHED,), jit_s))


def _serial_columns(slots: SlotNumbers, setting: Setting, costs: RoundCosts) -> Columns:
    """AR and SD: nothing is built, nothing is looked up, one phase follows the other."""
    b = setting.batch_size
    if setting.mode is Mode.AR:
        drafting_s = np.asarray(0.0)
        window_s = costs.verify_s(b, b, slots.context_tokens)
    else:
        query = b * slots.drafted_width
        drafting_s = costs.sd_draft_s(b, slots.sd_steps, slots.context_tokens)
        window_s = costs.verify_s(b, query, slots.context_tokens) + costs.accept_s(b, query)
    shape = slots.num_steps.shape
    drafting_s, window_s, host_s = (np.broadcast_to(t, shape) for t in (drafting_s, window_s, costs.host_s(b)))
    round_s = drafting_s + window_s + host_s
    nothing = np.zeros_like(round_s)
    return {
        "tokens_per_s": b * slots.tokens_per_round / round_s,
        "round_s": round_s,
        "window_s": window_s,
        "build_wait_s": nothing,
        "fallback_s": drafting_s,
        "overhead_s": host_s,
        "build_s": nothing,
        "mean_acceptance_length": slots.tokens_per_round,
        **dict.fromkeys(("cache_hit_rate", "hit_rate_after_draft", "hit_rate_after_fallback"), nothing),
        "prob_all_hit": nothing,
    }


def _hit_columns(law: FloatArray, batch_size: int) -> Columns:
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


def _rows(point: DesignPoint, mode: Mode, fallback: FallbackKind) -> tuple[RowKind, RowKind]:
    """Drafted rows and rows that the fallback answers."""
    if mode is Mode.AR:
        plain = RowKind(acceptance=(), fan_out=(0,), hit_probs=(0.0,))
        return plain, plain
    if mode is Mode.SD:
        uncached = RowKind(
            acceptance=point.drafted.acceptance,
            fan_out=(0,) * len(point.drafted.fan_out),
            hit_probs=(0.0,) * len(point.drafted.hit_probs),
        )
        return uncached, uncached
    if fallback in {FallbackKind.THRESHOLD, FallbackKind.AUTO}:
        raise DomainError("drafting.fallback.kind", "must be resolved to one action first", str(fallback))
    if fallback is not FallbackKind.JIT:
        return point.drafted, point.undrafted
    if point.scenario.drafting.redraft_hits and point.redrafted != point.drafted:
        raise DomainError(
            "drafting.redraft_hits",
            "with another fan-out after a miss, rows depend on the batch: simulate it",
            True,
        )
    return point.drafted, point.redrafted


def _alike(points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]]) -> list[list[int]]:
    """Indices of points that one call of the theory can evaluate."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (point, (drafted, answered)) in enumerate(zip(points, rows, strict=True)):
        shape = (drafted.num_proposed, answered.num_proposed, point.behaviour.acceptance.spread > 0)
        load = (point.scenario.workload.output_tokens, point.scenario.drafting.first_round)
        groups.setdefault((*shape, *load), []).append(i)
    return list(groups.values())


def _group_law(points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]]) -> SlotLaw:
    """The law of a slot, by kind of request where acceptance is spread between requests."""
    first = points[0]
    if any(point.behaviour.rank_trace is not None for point in points):
        raise DomainError(
            "pair.behaviours.rank_trace", "is replayed by the simulator only: use method 'sim'", "a trace"
        )
    output = first.scenario.workload.output_tokens
    nodes, weights = np.polynomial.legendre.leggauss(SPREAD_NODES)
    spreads = [point.behaviour.acceptance.spread for point in points]
    mixed = spreads[0] > 0
    laws = []
    for kind in zip(*rows, strict=True):
        acceptance = np.array([row.acceptance for row in kind]).reshape(len(kind), -1)
        hits = np.array([row.hit_probs for row in kind])
        if mixed:
            quantiles = (nodes + 1) / 2
            acceptance = np.stack(
                [spread_acceptance(a, s, quantiles) for a, s in zip(acceptance, spreads, strict=True)]
            )
            hits = np.broadcast_to(hits[:, None, :], (len(kind), SPREAD_NODES, hits.shape[-1]))
        laws.append(RowLaw(acceptance_prob=acceptance, hit_prob=hits))
    return slot_law(
        laws[0],
        laws[1],
        None if output is None else output.pmf(),
        first_round=first.scenario.drafting.first_round,
        request_kinds=weights / 2 if mixed else None,
    )


def spread_acceptance(mean: FloatArray, spread: float, quantiles: FloatArray) -> FloatArray:
    """Acceptance [quantiles, K] of requests at the given quantiles of a Beta law with `mean` [K] and sd `spread`.

    A request lies at the same quantile at every position. Positions that never or always accept stay as they are.
    """
    from scipy.special import betaincinv

    result = np.broadcast_to(mean, (quantiles.size, mean.size)).copy()
    inner = (mean > 0) & (mean < 1)
    concentration = mean[inner] * (1 - mean[inner]) / spread**2 - 1
    result[:, inner] = betaincinv(mean[inner] * concentration, (1 - mean[inner]) * concentration, quantiles[:, None])
    return result


def _mean_context(scenario: Scenario, tokens_per_round: float) -> float:
    """Mean context at the launch of a round; an endless request is taken at its prompt.

    Over a request of N tokens the emitted count at launch averages about (N - tokens per round) / 2, and long requests
    are seen more often: E[N^2] / E[N].
    """
    prompt = mean_length(scenario.workload.prompt_tokens)
    output = scenario.workload.output_tokens
    if output is None:
        return prompt
    values, probs = output.pmf()
    seen = float((values.astype(float) ** 2) @ probs) / float(values @ probs)
    return prompt + max(seen - tokens_per_round, 0.0) / 2
