"""What an engine is told before it starts, and what a request asks of it.

`EngineConfig` holds the scenario's own `Drafting`, so that simulator and executor read one vocabulary, plus
what only real execution needs. Verifier and speculator get equal copies and derive the message layout from
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from executor.messages import Layout
from ssdsim.errors import DomainError, InputError
from ssdsim.records import FinishReason
from ssdsim.scenario import Drafting, FallbackKind, Mode, drafting_problems
from ssdsim.theory.hit_curve import AllAccepted, HitCurve, PowerLaw

LARGEST_LOOKAHEAD = 255
"""A branch reaches 2 K + 1 tokens beyond its request, for which `executor.models` keeps positions."""
LEAST_TEMPERATURE = 1e-6
"""Above 0; far from where logits divided by it leave single precision. Who wants less wants 0."""


@dataclass(frozen=True, kw_only=True)
class DraftBehaviour:
    """What `geometric` and `optimal` fan-out must know of a pair, and the law of synthetic acceptance; the default
    is a typical small draft."""

    acceptance_prob: float | tuple[float, ...] = 0.7
    rejection_curve: HitCurve = field(default_factory=lambda: PowerLaw(exponent=0.4, prefactor=0.6))
    all_accepted_curve: HitCurve | None = None
    """Absent: what greedy decoding makes of `rejection_curve` (THEORY 4.3)."""
    after_redraft: tuple[HitCurve, HitCurve] | None = None
    """At a rejection and where everything was accepted, after a miss that was drafted just in time; absent: the two
    above."""
    after_fallback: tuple[HitCurve, HitCurve] | None = None
    """The same after a miss that the draft did not answer; absent: the all-accepted curve at every position, since no
    guess of the draft was rejected."""
    ngram_acceptance_prob: float | tuple[float, ...] = 0.0
    """Of tokens that n-gram look-up proposes."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One run's arrangement; both roles hold the same."""

    mode: Mode
    batch_size: int
    max_context_tokens: int
    """Longest prompt and output together."""
    vocab_size: int
    drafting: Drafting = field(default_factory=Drafting)
    behaviour: DraftBehaviour = field(default_factory=DraftBehaviour)
    critical_batch_size: float | None = None
    """b* of the `auto` fallback."""
    sampled: bool = False
    """Whether any request may have a temperature above 0: draft probabilities travel then."""
    synthetic: bool = False
    """Whether outcomes are drawn from `behaviour` instead of decided by the models, see `executor.synthetic`."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_context_tokens", "vocab_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DomainError(name, "an integer of at least 1", value)
        lookahead = self.drafting.num_speculative_tokens
        if self.mode is not Mode.AR and not 1 <= lookahead <= LARGEST_LOOKAHEAD:
            raise DomainError("num_speculative_tokens", f"1 to {LARGEST_LOOKAHEAD} in modes sd and ssd", lookahead)
        if self.drafting.drafter != "model":
            raise DomainError("drafter", "only 'model' can be executed", self.drafting.drafter)
        if self.mode is not Mode.AR and (problems := drafting_problems(self.drafting)):
            raise InputError("; ".join(problems))
        if self.mode is Mode.SSD:
            self._check_fallback()

    def _check_fallback(self) -> None:
        fallback = self.drafting.fallback
        if fallback.kind is FallbackKind.THRESHOLD and fallback.threshold is None:
            raise DomainError("threshold", "the fallback 'threshold' needs a number of misses here", None)
        if fallback.kind is FallbackKind.AUTO and self.critical_batch_size is None:
            raise DomainError("critical_batch_size", "the fallback 'auto' needs b*, from a profile of the pair", None)

    @property
    def num_speculative_tokens(self) -> int:
        """Lookahead K; 0 in mode ar."""
        return 0 if self.mode is Mode.AR else self.drafting.num_speculative_tokens

    @property
    def layout(self) -> Layout:
        """The messages of this run."""
        return Layout(
            num_slots=self.batch_size,
            num_speculative_tokens=max(1, self.num_speculative_tokens),
            vocab_size=self.vocab_size,
            sampled=self.sampled,
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """One prompt to continue. Output depends on these fields only, whatever shares the batch."""

    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop_tokens: frozenset[int] = frozenset()
    """The output ends with the first of these, which is kept."""
    ignore_eos: bool = False
    """Run to `max_tokens` whatever comes: stop tokens are ignored."""
    prompt_kind: int = 0

    def __post_init__(self) -> None:
        if not len(self.prompt):
            raise DomainError("prompt", "at least one token", list(self.prompt))
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int) or self.max_tokens < 1:
            raise DomainError("max_tokens", "an integer of at least 1", self.max_tokens)
        if not (math.isfinite(self.temperature) and (self.temperature == 0 or self.temperature >= LEAST_TEMPERATURE)):
            raise DomainError(
                "temperature", f"0 or a finite number of at least {LEAST_TEMPERATURE}", self.temperature
            )
        if not 0 <= self.seed < 2**64:
            raise DomainError("seed", "an integer in [0, 2**64)", self.seed)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What came of one request."""

    tokens: tuple[int, ...]
    finish_reason: FinishReason
    accepted_lengths: tuple[int, ...]
    """Tokens accepted in each round."""


def all_accepted_curve(behaviour: DraftBehaviour) -> HitCurve:
    """The curve at the position where everything was accepted."""
    if behaviour.all_accepted_curve is not None:
        return behaviour.all_accepted_curve
    probs = behaviour.acceptance_prob
    last = probs[-1] if isinstance(probs, tuple) else probs
    return AllAccepted(acceptance_prob=last, base=behaviour.rejection_curve)
