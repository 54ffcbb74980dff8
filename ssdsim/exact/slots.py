"""What one sequence of a scenario does from round to round: the part of the exact model that knows no times.

It depends on drafting, behaviour and lengths only, so a sweep evaluates it once per distinct combination of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ssdsim.design_point import DesignPoint, RowKind
from ssdsim.distributions import mean_length
from ssdsim.errors import DomainError
from ssdsim.scenario import FallbackKind, Mode, Scenario
from ssdsim.theory.acceptance import acceptance_at_quantiles
from ssdsim.theory.closed import SlotLaw, slot_law
from ssdsim.theory.renewal import SlotChain
from ssdsim.theory.row_law import RowLaw, slot_chain

FloatArray = NDArray[np.float64]

SPREAD_NODES = 24
"""Kinds of requests that stand for a continuous spread of acceptance (Gauss-Legendre in the quantile)."""


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
    prompt_tokens: FloatArray
    """Mean prompt of a request."""

    def take(self, index: NDArray[np.int64]) -> SlotNumbers:
        """The points at `index`."""
        return SlotNumbers(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


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
    return _numbers(points, rows, law, tokens)


def endless_numbers(point: DesignPoint, fallback: FallbackKind) -> SlotNumbers:
    """`slot_numbers` of one SSD point as if its requests never ended."""
    chain = endless_chain(point, fallback)
    rows = [_rows(point, Mode.SSD, fallback)]
    return _numbers([point], rows, chain.law[None], np.atleast_1d(chain.tokens_per_round))


def _numbers(
    points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]], law: FloatArray, tokens: FloatArray
) -> SlotNumbers:
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
        prompt_tokens=np.array([mean_length(point.scenario.workload.prompt_tokens) for point in points]),
    )


def _rows(point: DesignPoint, mode: Mode, fallback: FallbackKind) -> tuple[RowKind, RowKind]:
    """Drafted rows and rows that the fallback answers."""
    if mode is Mode.AR:
        plain = RowKind(acceptance=(), fan_out=(0,), hit_probs=(0.0,))
        return plain, plain
    if mode is Mode.SD:
        drafted = point.drafted
        nothing = (0,) * len(drafted.fan_out)
        uncached = replace(drafted, fan_out=nothing, hit_probs=tuple(map(float, nothing)))
        return uncached, uncached
    if fallback in {FallbackKind.THRESHOLD, FallbackKind.AUTO}:
        raise DomainError("drafting.fallback.kind", "must be resolved to one action first", str(fallback))
    if fallback is not FallbackKind.JIT:
        return point.drafted, point.undrafted
    if point.scenario.drafting.redraft_hits and point.redrafted != point.drafted:
        requirement = "with another fan-out after a miss, rows depend on the batch: use method 'sim'"
        raise DomainError("drafting.redraft_hits", requirement, True)
    return point.drafted, point.redrafted


def _alike(points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]]) -> list[list[int]]:
    """Indices of points that one call of the theory can evaluate."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, (point, (drafted, answered)) in enumerate(zip(points, rows, strict=True)):
        shape = (drafted.num_proposed, answered.num_proposed, _differs(drafted, answered))
        load = (point.scenario.workload.output_tokens, point.scenario.drafting.first_round)
        groups.setdefault((*shape, *load), []).append(i)
    return list(groups.values())


def _group_law(points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]]) -> SlotLaw:
    drafted, answered, weights = _row_laws(points, rows)
    output = points[0].scenario.workload.output_tokens
    return slot_law(
        drafted,
        answered,
        None if output is None else output.pmf(),
        first_round=points[0].scenario.drafting.first_round,
        request_kinds=weights,
    )


def request_kinds(point: DesignPoint, mode: Mode, fallback: FallbackKind) -> tuple[RowLaw, RowLaw, FloatArray | None]:
    """Laws of drafted and of answered rows of one point, with the shares of kinds of requests where they differ."""
    drafted, answered, weights = _row_laws([point], [_rows(point, mode, fallback)])
    return _only(drafted), _only(answered), weights


def endless_chain(point: DesignPoint, fallback: FallbackKind) -> SlotChain:
    """The means of an SSD sequence that never ends, whatever the scenario's lengths."""
    drafted, answered = _rows(point, Mode.SSD, fallback)
    laws = (
        RowLaw(acceptance_prob=np.asarray(row.acceptance), hit_prob=np.asarray(row.hit_probs))
        for row in (drafted, answered)
    )
    return slot_chain(*laws)


def _row_laws(
    points: Sequence[DesignPoint], rows: Sequence[tuple[RowKind, RowKind]]
) -> tuple[RowLaw, RowLaw, FloatArray | None]:
    """Row laws over points, and over kinds of requests (with their shares) where acceptance is spread."""
    if any(point.behaviour.rank_trace is not None for point in points):
        raise DomainError("rank_trace", "a trace is replayed by the simulator only: use method 'sim'", "a trace")
    mixed = _differs(*rows[0])
    drafted, answered = (_kind_laws(kind, mixed) for kind in zip(*rows, strict=True))
    return drafted, answered, _quantiles()[1] if mixed else None


def _differs(drafted: RowKind, answered: RowKind) -> bool:
    """Whether requests differ in their acceptance."""
    return drafted.spread > 0 or answered.spread > 0


def _kind_laws(rows: Sequence[RowKind], mixed: bool) -> RowLaw:
    """Laws of one kind of row: arrays over points, and over kinds of requests where those differ."""
    acceptance = np.array([row.acceptance for row in rows]).reshape(len(rows), -1)
    hits = np.array([row.hit_probs for row in rows])
    if mixed:
        quantiles, _ = _quantiles()
        acceptance = np.stack(
            [acceptance_at_quantiles(mean, row.spread, quantiles) for mean, row in zip(acceptance, rows, strict=True)]
        )
        hits = np.broadcast_to(hits[:, None, :], (len(rows), SPREAD_NODES, hits.shape[-1]))
    return RowLaw(acceptance_prob=acceptance, hit_prob=hits)


@lru_cache(maxsize=1)
def _quantiles() -> tuple[FloatArray, FloatArray]:
    """Quantiles in (0, 1) that stand for all requests, and their shares."""
    nodes, weights = np.polynomial.legendre.leggauss(SPREAD_NODES)
    return (nodes + 1) / 2, weights / 2


def _only(law: RowLaw) -> RowLaw:
    return RowLaw(acceptance_prob=law.acceptance_prob[0], hit_prob=law.hit_prob[0])


def _mean_context(scenario: Scenario, tokens_per_round: float) -> float:
    """Mean context at the launch of a round; an endless request is taken at its prompt.

    Over a request of N tokens the emitted count at launch averages about (N - tokens per round) / 2, and long
    requests are seen more often: E[N^2] / E[N].
    """
    prompt = mean_length(scenario.workload.prompt_tokens)
    output = scenario.workload.output_tokens
    if output is None:
        return prompt
    values, probs = output.pmf()
    seen = float((values.astype(float) ** 2) @ probs) / float(values @ probs)
    return prompt + max(seen - tokens_per_round, 0.0) / 2
