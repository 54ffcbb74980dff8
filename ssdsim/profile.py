"""PairProfile: everything that is known of one (target, draft, hardware) triple, each number with its provenance.

A profile is JSON. It is written by hand for the catalog (published pairs) or by `ssdsim calibrate` (measured pairs),
and read by `scenario`, which asks it for the behaviour under a temperature, a Saguaro constant and a kind of prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ssdsim.costs.models import Costs
from ssdsim.errors import InputError
from ssdsim.schema import (
    Document,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
)
from ssdsim.theory.hit_curve import AllAccepted, HitCurve, PowerLaw, ShiftedPowerLaw, Table

PROFILE_SCHEMA: Literal[1] = 1


class Counted(Document):
    """The counts that a curve was fitted to: bonus tokens, and how many of them were not in the first F guesses."""

    fan_outs: tuple[PositiveInt, ...]
    trials: tuple[NonNegativeInt, ...]
    misses: tuple[NonNegativeInt, ...]


class PowerLawCurve(Document):
    """h(F) = 1 - miss_prefactor * F^-miss_exponent for F >= 1, h(0) = 0."""

    kind: Literal["power"] = "power"
    miss_exponent: PositiveFloat
    miss_prefactor: Annotated[Probability, Field(gt=0)] = 1.0
    counted: Counted | None = None

    def curve(self) -> HitCurve:
        return PowerLaw(exponent=self.miss_exponent, prefactor=self.miss_prefactor)


class ShiftedCurve(Document):
    """h(F) = 1 - (1 + F/scale)^-miss_exponent: concave from zero on."""

    kind: Literal["shifted"] = "shifted"
    miss_exponent: PositiveFloat
    scale: PositiveFloat

    def curve(self) -> HitCurve:
        return ShiftedPowerLaw(exponent=self.miss_exponent, scale=self.scale)


class TableCurve(Document):
    """Measured hit probabilities for fan-outs 0, 1, 2, ...; the last one holds beyond."""

    kind: Literal["table"] = "table"
    hit_probs: Annotated[tuple[Probability, ...], Field(min_length=2)]
    counted: Counted | None = None

    @model_validator(mode="after")
    def _from_zero_up(self) -> TableCurve:
        if self.hit_probs[0] != 0:
            raise ValueError("hit_probs must start with 0, since nothing is cached at fan-out 0")
        if any(b < a for a, b in zip(self.hit_probs, self.hit_probs[1:], strict=False)):
            raise ValueError("hit_probs must not decrease")
        return self

    def curve(self) -> HitCurve:
        return Table(values=self.hit_probs)


Curve = Annotated[PowerLawCurve | ShiftedCurve | TableCurve, Field(discriminator="kind")]


class CurvePair(Document):
    """Hit curves where a token was rejected and where everything was accepted."""

    rejection: Curve
    all_accepted: Curve | None = None
    """Where absent, it follows from the rejection curve and the acceptance there (greedy form, THEORY 4.3)."""

    def all_accepted_curve(self, acceptance_prob: float) -> HitCurve:
        """The bonus position's curve; `acceptance_prob` serves the derived form only."""
        if self.all_accepted is not None:
            return self.all_accepted.curve()
        return AllAccepted(acceptance_prob=acceptance_prob, base=self.rejection.curve())


class HitCurves(Document):
    """Hit curves after a drafted round and after a fallback that drafted nothing."""

    after_draft: CurvePair
    after_redraft: CurvePair | None = None
    """After a miss that was drafted just in time, which marks a stretch that is hard to guess; as `after_draft` where
    absent."""
    after_fallback: CurvePair | None = None
    """Where absent, the all-accepted curve of a drafted round holds at every position: no guess of the draft was
    rejected there (THEORY 4.3, 6.3)."""


class Acceptance(Document):
    """Conditional acceptance per position, P(token i accepted | all before it were)."""

    per_position: Probability | Annotated[tuple[Probability, ...], Field(min_length=1)]
    """A single number holds at every position; a list must reach as far as the scenario looks ahead."""
    spread: NonNegativeFloat = 0.0
    """Standard deviation between requests (Beta around the mean); 0 makes all requests alike."""
    by_lookahead: tuple[Annotated[tuple[Probability, ...], Field(min_length=1)], ...] = ()
    """Where difficulty persists along the text, acceptance depends on the lookahead (a short draft sees more easy
    stretches): one list per measured lookahead, of its length, in increasing order. Lookaheads between two measured
    ones are interpolated, shorter ones take the shortest. Empty: `per_position` holds at every lookahead."""

    @model_validator(mode="after")
    def _possible(self) -> Acceptance:
        lengths = [len(probs) for probs in self.by_lookahead]
        if lengths != sorted(set(lengths)):
            raise ValueError(f"by_lookahead must hold lists of increasing length; got lengths {lengths}")
        known = self.per_position if isinstance(self.per_position, tuple) else (self.per_position,)
        known = (*known, *(a for probs in self.by_lookahead for a in probs))
        widest = min(((a * (1 - a)) ** 0.5 for a in known if 0 < a < 1), default=0.0)
        if self.spread > 0 and self.spread >= widest:
            raise ValueError(f"spread must be below {widest:.4g}, which these means allow; got {self.spread}")
        return self

    def at(self, num_tokens: int) -> tuple[float, ...]:
        """Acceptance probabilities of the `num_tokens` positions of a draft of that length."""
        if self.by_lookahead and num_tokens <= len(self.by_lookahead[-1]):
            return tuple(self._interpolated(position, num_tokens) for position in range(num_tokens))
        if not isinstance(self.per_position, tuple):
            return (self.per_position,) * num_tokens
        if len(self.per_position) < num_tokens:
            raise ValueError(
                f"acceptance is known for {len(self.per_position)} positions, {num_tokens} are asked for: "
                "measure more positions, give a single number, or look ahead less"
            )
        return self.per_position[:num_tokens]

    def _interpolated(self, position: int, lookahead: int) -> float:
        """Acceptance at a position (from 0), linear between the measured lookaheads that have it."""
        shorter = [probs for probs in self.by_lookahead if position < len(probs) <= lookahead]
        longer = [probs for probs in self.by_lookahead if position < len(probs) and len(probs) >= lookahead]
        if not shorter or not longer:
            return (shorter[-1] if shorter else longer[0])[position]
        low, high = shorter[-1], longer[0]
        weight = (lookahead - len(low)) / (len(high) - len(low)) if len(high) > len(low) else 0.0
        return (1 - weight) * low[position] + weight * high[position]


class RankTrace(Document):
    """Per emitted token, the rank of the target's token in the draft's logits on the true prefix (0 = agreement).

    Under greedy decoding it replays any lookahead, fan-out and fallback exactly.
    """

    requests: Annotated[tuple[Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)], ...], Field(min_length=1)]


class When(Document):
    """The conditions under which a behaviour was measured; an absent one means any."""

    temperature: NonNegativeFloat | None = None
    saguaro_downweight: Probability | None = None
    prompt_kind: str | None = None
    drafter: str | None = None


class Behaviour(Document):
    """How the pair behaves under given conditions."""

    when: When = When()
    acceptance: Acceptance
    """Of tokens drafted by the draft model."""
    ngram_acceptance: Acceptance | None = None
    """Of tokens proposed by n-gram look-up."""
    hit_curves: HitCurves
    rank_trace: RankTrace | None = None


class Hardware(Document):
    """What the numbers hold for."""

    target_device: str
    target_tp: PositiveInt = 1
    draft_device: str
    draft_tp: PositiveInt = 1


class Provenance(Document):
    """Where a number comes from."""

    kind: Literal["measured", "fitted", "published", "assumed", "derived"]
    source: str
    """By what, to what, or in which document (with the command where there is one)."""


class Range(Document):
    """The range in which an assumed or uncertain number may lie."""

    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.high < self.low:
            raise ValueError(f"high must be at least low ({self.low}); got {self.high}")
        return self


class Uncertainty(Document):
    """Estimated numbers whose errors hang together, as those of one fit do."""

    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    """Field paths within the profile."""
    standard_errors: tuple[NonNegativeFloat, ...]
    """One for each path."""
    correlations: tuple[tuple[Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)], ...], ...] = ()
    """With the paths before it: for path i a list of i numbers. Empty: independent."""

    @model_validator(mode="after")
    def _complete(self) -> Uncertainty:
        if len(self.standard_errors) != len(self.paths):
            raise ValueError(f"standard_errors needs one entry per path ({len(self.paths)})")
        if self.correlations and [len(row) for row in self.correlations] != list(range(len(self.paths))):
            raise ValueError("correlations needs a list for each path, with one number per path before it")
        return self


class Limits(Document):
    """The range in which the numbers were calibrated; beyond it a prediction is an extrapolation and says so."""

    max_batch_size: PositiveInt | None = None
    max_speculative_tokens: PositiveInt | None = None
    max_fan_out: PositiveInt | None = None
    max_context_tokens: PositiveInt | None = None


class PairProfile(Document):
    """One pair on one kind of hardware."""

    schema_version: Literal[1] = PROFILE_SCHEMA
    name: str
    summary: str = ""
    target: str
    draft: str
    hardware: Hardware
    behaviours: Annotated[tuple[Behaviour, ...], Field(min_length=1)]
    costs: Costs
    costs_when_sampled: Costs | None = None
    """Above temperature 0, where distributions are computed, sent and drawn from; `costs` where absent."""
    limits: Limits = Limits()
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Field path to the range in which it may lie."""
    uncertainties: tuple[Uncertainty, ...] = ()
    """How surely the estimated numbers are known."""
    provenance: dict[str, Provenance] = Field(default_factory=dict)
    """Field path to where the number comes from; a path covers everything below it."""

    def costs_at(self, temperature: float) -> Costs:
        """What a round costs at a temperature."""
        sampled = self.costs_when_sampled if temperature > 0 else None
        return sampled if sampled is not None else self.costs

    def behaviour(
        self, *, temperature: float, saguaro_downweight: float, prompt_kind: str | None, drafter: str
    ) -> Behaviour:
        """The most specific behaviour that matches; `LookupError` lists what is there where none does."""
        wanted = When(
            temperature=temperature, saguaro_downweight=saguaro_downweight, prompt_kind=prompt_kind, drafter=drafter
        )
        matching = [b for b in self.behaviours if _matches(b.when, wanted)]
        if not matching:
            known = "; ".join(_conditions(b.when) for b in self.behaviours)
            raise LookupError(f"profile {self.name!r} has no behaviour for {_conditions(wanted)}; it has: {known}")
        return max(matching, key=lambda b: len(b.when.model_dump(exclude_none=True)))


Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[int, Migration] = {}
"""For an older schema number, what turns its plain data into that of the next one."""


def in_current_schema(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The plain data of a profile file of any version in the schema of this one.

    Raises `InputError` for a version that is no number, is newer, or can no longer be read.
    """
    found = dict(data)
    version = found.get("schema_version", PROFILE_SCHEMA)
    if isinstance(version, bool) or not isinstance(version, int):
        raise InputError(f"pair: {source}: schema_version must be an integer; got {version!r}")
    if version > PROFILE_SCHEMA:
        raise InputError(
            f"pair: {source} has profile schema {version}, this version reads up to {PROFILE_SCHEMA}: upgrade ssdsim"
        )
    for number in range(version, PROFILE_SCHEMA):
        if number not in MIGRATIONS:
            raise InputError(
                f"pair: {source} has profile schema {number}, which is no longer read: calibrate it anew"
            )
        found = {**MIGRATIONS[number](found), "schema_version": number + 1}
    return found


def _matches(when: When, wanted: When) -> bool:
    pairs = zip(when.model_dump().values(), wanted.model_dump().values(), strict=True)
    return all(have is None or have == want for have, want in pairs)


def _conditions(when: When) -> str:
    known = when.model_dump(exclude_none=True)
    return ", ".join(f"{name}={value}" for name, value in known.items()) or "any conditions"
