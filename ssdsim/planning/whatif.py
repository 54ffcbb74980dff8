"""What changes when a scenario changes, and which term of the round it is due to.

The rate of a batch is tokens per round over the round's time:

    tokens_per_s = batch * tokens / (window + build wait + drafting + overhead)

with tokens = share_hit * tokens(drafted) + share_missed * tokens(answered) and drafting = P(some row misses) * time
of answering. The terms are replaced one at a time, in the fixed order of `TERMS`; each one's contribution is the
change of the rate at its step, so that the contributions add up to the whole change exactly. Another order would
share out what two terms bring about together in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ssdsim.design_point import RowKind, resolve
from ssdsim.evaluate import Answer, Method, compare
from ssdsim.scenario import FallbackKind, Mode, Scenario
from ssdsim.uncertainty import with_uncertainty

TERMS = ("batch", "acceptance", "hit rate", "window", "build", "fallback", "host")


class Contribution(NamedTuple):
    """What one term contributes to the change of the batch's rate."""

    term: str
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Before and after, and why."""

    before: Answer
    after: Answer
    contributions: tuple[Contribution, ...]
    """In the order of `TERMS`; empty where the method does not tell the parts of a round."""


class _Terms(NamedTuple):
    """Everything that the rate is made of."""

    batch_size: float
    tokens_drafted: float
    tokens_answered: float
    share_hit: float
    prob_any_miss: float
    window_s: float
    build_wait_s: float
    answering_s: float
    overhead_s: float

    @property
    def tokens_per_s(self) -> float:
        tokens = self.share_hit * self.tokens_drafted + (1 - self.share_hit) * self.tokens_answered
        drafting_s = self.prob_any_miss * self.answering_s
        return self.batch_size * tokens / (self.window_s + self.build_wait_s + drafting_s + self.overhead_s)


_FIELDS = {
    "batch": ("batch_size",),
    "acceptance": ("tokens_drafted", "tokens_answered"),
    "hit rate": ("share_hit", "prob_any_miss"),
    "window": ("window_s",),
    "build": ("build_wait_s",),
    "fallback": ("answering_s",),
    "host": ("overhead_s",),
}


def what_if(before: Scenario, after: Scenario, method: Method = Method.EXACT, *, uncertainty: bool = False) -> WhatIf:
    """Evaluate both scenarios in their own modes and explain the difference, with bounds by `uncertainty` if wished.

    Raises `DomainError` where the method does not cover one of them.
    """
    first, second = (_answer(scenario, method, uncertainty=uncertainty) for scenario in (before, after))
    return WhatIf(before=first, after=second, contributions=_contributions(first, second))


def _answer(scenario: Scenario, method: Method, *, uncertainty: bool) -> Answer:
    answers = compare(scenario, [method], tuple(dict.fromkeys((Mode.AR, Mode.SD, scenario.mode))))
    if uncertainty:
        answers = with_uncertainty(answers, seed=scenario.run.seed)
    return next(a for a in answers if a.mode is scenario.mode)


def _contributions(before: Answer, after: Answer) -> tuple[Contribution, ...]:
    now, then = _terms_of(before), _terms_of(after)
    if now is None or then is None:
        return ()
    contributions = []
    for term in TERMS:
        changed = now._replace(**{field: getattr(then, field) for field in _FIELDS[term]})
        contributions.append(Contribution(term, changed.tokens_per_s - now.tokens_per_s))
        now = changed
    return tuple(contributions)


def _terms_of(answer: Answer) -> _Terms | None:
    """The terms of an answer, such that they give its rate exactly; None where it does not tell them."""
    values = {name: quantity.value for name, quantity in answer.quantities.items()}
    if not {"window_s", "build_wait_s", "fallback_s", "round_s", "mean_acceptance_length"} <= values.keys():
        return None
    drafted, answered, share = 1.0, 1.0, 0.0
    if answer.mode is Mode.SSD:
        drafted, answered = _mean_tokens(answer)
        share = values.get("cache_hit_rate", 0.0)
    scale = values["mean_acceptance_length"] / (share * drafted + (1 - share) * answered)
    any_miss = (1 - values.get("prob_all_hit", 0.0)) or 1.0
    parts_s = values["window_s"] + values["build_wait_s"] + values["fallback_s"]
    return _Terms(
        batch_size=values["tokens_per_s"] * values["round_s"] / values["mean_acceptance_length"],
        tokens_drafted=drafted * scale,
        tokens_answered=answered * scale,
        share_hit=share,
        prob_any_miss=any_miss,
        window_s=values["window_s"],
        build_wait_s=values["build_wait_s"],
        answering_s=values["fallback_s"] / any_miss,
        overhead_s=values["round_s"] - parts_s,
    )


def _mean_tokens(answer: Answer) -> tuple[float, float]:
    """Mean tokens of a round with a drafted row and with one that the fallback answered."""
    point = resolve(answer.scenario)
    drafts = answer.scenario.drafting.fallback.kind is FallbackKind.JIT
    return _row_tokens(point.drafted), _row_tokens(point.redrafted if drafts else point.undrafted)


def _row_tokens(row: RowKind) -> float:
    tokens, survival = 1.0, 1.0
    for accepted in row.acceptance:
        survival *= accepted
        tokens += survival
    return tokens
