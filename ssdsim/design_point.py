"""DesignPoint: the numbers of a scenario that the exact model and the simulator both start from.

A scenario speaks of policies, budgets and curves; the dynamics need acceptance and hit probabilities per position and
the widths of forwards. `resolve` makes that step once, so that the two evaluations differ in their dynamics only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ssdsim.policies import allocate_fan_out
from ssdsim.profile import Behaviour, CurvePair
from ssdsim.scenario import Drafting, FallbackKind, FanOut, Scenario, num_fallback_tokens
from ssdsim.theory.hit_curve import AllAccepted, HitCurve


@dataclass(frozen=True, kw_only=True)
class RowKind:
    """One way in which a row's speculation can come about: what it proposes and what is cached for its outcomes.

    With m = `num_proposed` tokens: `acceptance` has m entries (conditional), `fan_out` and `hit_probs` m + 1
    (index = accepted count; the last one is the position where everything was accepted).
    """

    acceptance: tuple[float, ...]
    fan_out: tuple[int, ...]
    hit_probs: tuple[float, ...]
    spread: float = 0.0
    """Standard deviation of the acceptance between requests."""

    @property
    def num_proposed(self) -> int:
        """Tokens that the row proposes."""
        return len(self.acceptance)

    @property
    def num_branches(self) -> int:
        """Branches that the build prepares for this row."""
        return sum(self.fan_out)


@dataclass(frozen=True, kw_only=True)
class DesignPoint:
    """A scenario in numbers.

    `drafted` describes rows answered from the cache and rows in their first round, `redrafted` rows drafted just in
    time after a miss, `undrafted` rows whose miss is answered by a fallback that drafts nothing (`none`, `random`,
    `ngram`).
    """

    scenario: Scenario
    behaviour: Behaviour
    drafted: RowKind
    redrafted: RowKind
    undrafted: RowKind

    def truncated(self, num_ready: int) -> RowKind:
        """A row answered by a chain of which only the first `num_ready` tokens were ready (`on_late: truncate`)."""
        drafting = self.scenario.drafting
        acceptance = self.drafted.acceptance[:num_ready]
        return _drafted_row(_shortened(drafting.fan_out, num_ready), acceptance, self.behaviour)


def behaviour_of(scenario: Scenario) -> Behaviour:
    """The pair's behaviour under the scenario's conditions."""
    return scenario.pair.behaviour(
        temperature=scenario.workload.temperature,
        saguaro_downweight=scenario.drafting.saguaro_downweight,
        prompt_kind=scenario.workload.prompt_kind,
        drafter=scenario.drafting.drafter,
    )


def resolve(scenario: Scenario) -> DesignPoint:
    """Resolve policies, budgets and curves of `scenario` (validated: nothing here can fail on a valid one)."""
    drafting, behaviour = scenario.drafting, behaviour_of(scenario)
    acceptance = behaviour.acceptance.at(drafting.num_speculative_tokens)
    return DesignPoint(
        scenario=scenario,
        behaviour=behaviour,
        drafted=_drafted_row(drafting.fan_out, acceptance, behaviour),
        redrafted=_drafted_row(
            _redrafted_fan_out(drafting), acceptance, behaviour, behaviour.hit_curves.after_redraft
        ),
        undrafted=_undrafted_row(drafting, behaviour),
    )


def _drafted_row(
    fan_out: FanOut, acceptance: tuple[float, ...], behaviour: Behaviour, measured: CurvePair | None = None
) -> RowKind:
    """A row of drafted tokens; `measured` are its curves where they are not those of drafted rows in general."""
    curves = measured or behaviour.hit_curves.after_draft
    last = curves.all_accepted_curve(_agreement(len(acceptance), behaviour))
    row = _row(fan_out, acceptance, curves.rejection.curve(), last)
    return replace(row, spread=behaviour.acceptance.spread)


def _undrafted_row(drafting: Drafting, behaviour: Behaviour) -> RowKind:
    """Random tokens are never accepted, so only the position of the first one can matter."""
    num_tokens = 0 if drafting.fallback.kind is FallbackKind.JIT else num_fallback_tokens(drafting)
    if drafting.fallback.kind is FallbackKind.NGRAM and behaviour.ngram_acceptance is not None:
        found = behaviour.ngram_acceptance
        curves = _curves_after_fallback(behaviour, num_tokens)
        return replace(_row(_on_miss(drafting, num_tokens), found.at(num_tokens), *curves), spread=found.spread)
    here = _row(_on_miss(drafting, 0), (), *_curves_after_fallback(behaviour, 0))
    return RowKind(
        acceptance=(0.0,) * num_tokens,
        fan_out=(*here.fan_out, *(0,) * num_tokens),
        hit_probs=(*here.hit_probs, *(0.0,) * num_tokens),
    )


def _curves_after_fallback(behaviour: Behaviour, num_tokens: int) -> tuple[HitCurve, HitCurve]:
    """At a rejection and where everything was accepted, after `num_tokens` that the draft did not propose."""
    measured = behaviour.hit_curves.after_fallback
    agreement = _agreement(num_tokens, behaviour)
    if measured is not None:
        return measured.rejection.curve(), measured.all_accepted_curve(agreement)
    unrejected = behaviour.hit_curves.after_draft.all_accepted_curve(agreement)
    return unrejected, unrejected


def _row(fan_out: FanOut, acceptance: tuple[float, ...], rejection: HitCurve, all_accepted: HitCurve) -> RowKind:
    if fan_out.policy == "explicit":
        allocated = fan_out.values or ()
    else:
        budget = fan_out.total(len(acceptance) + 1)
        law = rejection.base if isinstance(rejection, AllAccepted) and fan_out.policy == "geometric" else rejection
        allocated = allocate_fan_out(fan_out.policy, len(acceptance), budget, acceptance, law, all_accepted)
    rejected = np.atleast_1d(rejection.hit_prob(np.asarray(allocated[:-1], dtype=np.int64)))
    last = float(all_accepted.hit_prob(allocated[-1]))
    return RowKind(acceptance=acceptance, fan_out=tuple(allocated), hit_probs=(*map(float, rejected), last))


def _agreement(position: int, behaviour: Behaviour) -> float:
    """The draft's acceptance at the bonus position; the last measured position stands for what lies beyond."""
    known = behaviour.acceptance.per_position
    return known[min(position, len(known) - 1)] if isinstance(known, tuple) else known


def _redrafted_fan_out(drafting: Drafting) -> FanOut:
    """`fan_out_on_miss` speaks of the rows that the fallback answers: drafted ones under `jit` only."""
    if drafting.fallback.kind is FallbackKind.JIT and drafting.fan_out_on_miss is not None:
        return drafting.fan_out_on_miss
    return drafting.fan_out


def _on_miss(drafting: Drafting, num_tokens: int) -> FanOut:
    """The fan-out of undrafted rows; an absent one spends the drafted rows' whole budget on their positions."""
    chosen = drafting.fan_out_on_miss
    if chosen is not None and drafting.fallback.kind is not FallbackKind.JIT:
        if chosen.values is not None and len(chosen.values) > num_tokens + 1:
            return FanOut(policy="explicit", values=chosen.values[: num_tokens + 1])
        return chosen
    budget = drafting.fan_out.total(drafting.num_speculative_tokens + 1)
    policy = "uniform" if drafting.fan_out.policy == "explicit" else drafting.fan_out.policy
    return FanOut(policy=policy, budget=budget)


def _shortened(fan_out: FanOut, num_tokens: int) -> FanOut:
    """The same policy over fewer positions; an explicit vector keeps its head and its last entry."""
    if fan_out.values is None:
        return fan_out
    return FanOut(policy="explicit", values=(*fan_out.values[:num_tokens], fan_out.values[-1]))
