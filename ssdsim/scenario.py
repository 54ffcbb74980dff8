"""Scenario: the one validated vocabulary of a question (this pair, drafted like this, placed here, under this load).

Scenarios are frozen and built by validation only: `scenario_from` merges a file, an embedded or given profile and
overrides (`a.b=c`) into plain data first. Everything that evaluates, simulates or sweeps starts from here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ssdsim.catalog import DEFAULT_PROFILE, load_profile
from ssdsim.costs.models import Costs
from ssdsim.distributions import Constant, LengthDistribution
from ssdsim.profile import PairProfile
from ssdsim.schema import (
    Document,
    Inconsistent,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
)

SCENARIO_SCHEMA: Literal[1] = 1


class Mode(StrEnum):
    AR = "ar"
    SD = "sd"
    SSD = "ssd"


class FallbackKind(StrEnum):
    JIT = "jit"
    """Draft the missing rows now."""
    NONE = "none"
    """Propose nothing."""
    RANDOM = "random"
    """Propose random tokens (the official engine's fast fallback)."""
    NGRAM = "ngram"
    """Propose by look-up in the prompt and the output so far."""
    THRESHOLD = "threshold"
    """Draft just in time where at least `threshold` rows miss, else propose nothing."""
    AUTO = "auto"
    """Draft just in time below the consistent b*, else propose nothing."""


class FanOut(Document):
    """How many candidates are cached at each position of a speculation."""

    policy: Literal["uniform", "geometric", "optimal", "explicit"] = "uniform"
    budget: NonNegativeInt | None = None
    """Sum over positions, per sequence."""
    per_position: NonNegativeInt | None = None
    """The budget as a multiple of the number of positions (the paper's F)."""
    values: tuple[NonNegativeInt, ...] | None = None
    """The whole vector, for the explicit policy."""

    @model_validator(mode="after")
    def _one_size(self) -> FanOut:
        wanted = {"values"} if self.policy == "explicit" else {"budget", "per_position"}
        given = {name for name in ("budget", "per_position", "values") if getattr(self, name) is not None}
        if len(given) != 1 or not given <= wanted:
            raise ValueError(f"policy {self.policy!r} needs exactly one of {', '.join(sorted(wanted))}")
        return self

    def total(self, num_positions: int) -> int:
        """The speculation budget per sequence over `num_positions` positions."""
        if self.values is not None:
            return sum(self.values)
        return self.budget if self.budget is not None else (self.per_position or 0) * num_positions


class FallbackChoice(Document):
    """What answers a miss."""

    kind: FallbackKind = FallbackKind.JIT
    num_tokens: PositiveInt | None = None
    """Tokens proposed by `ngram` (at most the lookahead, which is the default)."""
    threshold: PositiveInt | None = None
    """Misses from which `threshold` drafts just in time; the best one is searched where absent."""

    @model_validator(mode="after")
    def _fitting(self) -> FallbackChoice:
        if self.num_tokens is not None and self.kind is not FallbackKind.NGRAM:
            raise ValueError("num_tokens belongs to the fallback kind 'ngram' only: remove it or choose that kind")
        if self.threshold is not None and self.kind is not FallbackKind.THRESHOLD:
            raise ValueError("threshold belongs to the fallback kind 'threshold' only: remove it or choose that kind")
        return self


class Drafting(Document):
    """How speculations are made."""

    drafter: str = "model"
    num_speculative_tokens: NonNegativeInt = 7
    """Lookahead K. 0 leaves AR decoding on the same machinery."""
    topology: Literal["chain"] = "chain"
    fan_out: FanOut = FanOut(policy="uniform", per_position=3)
    fan_out_on_miss: FanOut | None = None
    """After a miss; the same policy and budget where absent."""
    fallback: FallbackChoice = FallbackChoice()
    saguaro_downweight: Probability = 1.0
    first_round: Literal["jit", "miss"] = "jit"
    """A request's first round is drafted just in time, or counts as a miss (the official engine)."""
    on_late: Literal["wait", "abort", "truncate"] = "wait"
    """A build that outlives verification is waited for, aborted where a row misses, or cut to what is ready."""
    padded_verify: bool = False
    """Rows without a full speculation are verified at full width all the same (kernels that are not ragged)."""
    sd_extra_step: bool = False
    """Synchronous SD runs one more draft step per round (the official engine)."""
    redraft_hits: bool = False
    """With `jit`, one row to draft re-drafts the whole batch (the official engine)."""


class Placement(Document):
    """Devices. Absent counts are the profile's."""

    target_tp: PositiveInt | None = None
    draft_tp: PositiveInt | None = None
    num_draft_devices: PositiveInt = 1
    """Draft devices that share the branches of a build."""


class Workload(Document):
    """The load that the batch serves."""

    arrivals: Literal["static", "closed"] = "closed"
    """Static batches run to their last request; a closed loop refills a finished slot at once."""
    batch_size: PositiveInt = 1
    prompt_tokens: LengthDistribution = Constant(value=256)
    output_tokens: LengthDistribution | None = Constant(value=512)
    """Absent: endless requests."""
    num_requests: PositiveInt = 128
    temperature: NonNegativeFloat = 0.0
    prompt_kind: str | None = None

    @field_validator("prompt_tokens", "output_tokens", mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        """A plain number of tokens is a constant length."""
        is_count = isinstance(value, int) and not isinstance(value, bool)
        return {"kind": "constant", "value": value} if is_count else value


class Run(Document):
    """How a simulation or measurement is run."""

    seed: NonNegativeInt = 0
    num_rounds: PositiveInt = 20_000
    """Rounds of an endless workload."""
    warmup_rounds: NonNegativeInt = 200
    """Rounds of an endless workload that no metric sees."""
    warmup_requests: NonNegativeInt = 0
    """Requests of a finite workload that no metric sees."""


class Slo(Document):
    """What the service promises."""

    ttft_s: PositiveFloat | None = None
    tpot_s: PositiveFloat | None = None


class Scenario(Document):
    """One question."""

    schema_version: Literal[1] = SCENARIO_SCHEMA
    name: str = "scenario"
    pair: Annotated[PairProfile, Field(validate_default=True)] = DEFAULT_PROFILE  # type: ignore[assignment]
    """A profile, the name of an embedded one, or the path of a profile file."""
    mode: Mode = Mode.SSD
    drafting: Drafting = Drafting()
    placement: Placement = Placement()
    workload: Workload = Workload()
    run: Run = Run()
    slo: Slo = Slo()

    @field_validator("pair", mode="before")
    @classmethod
    def _resolve(cls, value: Any) -> Any:
        return load_profile(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        problems = [*drafting_problems(self.drafting), *_behaviour_problems(self), *_workload_problems(self)]
        if problems:
            raise Inconsistent(problems)
        return self

    @property
    def costs(self) -> Costs:
        """What a round of this scenario costs."""
        return self.pair.costs_at(self.workload.temperature)

    @property
    def num_target_devices(self) -> int:
        """Devices of the target group."""
        return self.placement.target_tp or self.pair.hardware.target_tp

    @property
    def num_speculator_devices(self) -> int:
        """Devices that SSD adds for its speculator."""
        return (self.placement.draft_tp or self.pair.hardware.draft_tp) * self.placement.num_draft_devices


def num_fallback_tokens(drafting: Drafting) -> int:
    """Tokens that a row answered by the drafting's fallback proposes (K_b)."""
    kind, lookahead = drafting.fallback.kind, drafting.num_speculative_tokens
    if kind is FallbackKind.NGRAM:
        return drafting.fallback.num_tokens if drafting.fallback.num_tokens is not None else lookahead
    return lookahead if kind in {FallbackKind.JIT, FallbackKind.RANDOM} else 0


def drafting_problems(drafting: Drafting) -> list[str]:
    """What does not fit together within a drafting, one line each; empty where it is consistent."""
    lookahead, problems = drafting.num_speculative_tokens, []
    values = drafting.fan_out.values
    if values is not None and len(values) != lookahead + 1:
        problems.append(f"drafting.fan_out.values: needs {lookahead + 1} entries (K + 1); got {len(values)}")
    if num_fallback_tokens(drafting) > lookahead:
        problems.append(f"drafting.fallback.num_tokens: must be at most the lookahead ({lookahead})")
    on_miss = drafting.fan_out_on_miss.values if drafting.fan_out_on_miss else None
    positions = num_fallback_tokens(drafting) + 1
    if on_miss is not None and len(on_miss) != positions:
        problems.append(f"drafting.fan_out_on_miss.values: needs {positions} entries (K_b + 1); got {len(on_miss)}")
    if drafting.redraft_hits and drafting.fallback.kind is not FallbackKind.JIT:
        problems.append("drafting.redraft_hits: belongs to the fallback kind 'jit' only")
    return problems


def _behaviour_problems(scenario: Scenario) -> list[str]:
    drafting, workload = scenario.drafting, scenario.workload
    try:
        behaviour = scenario.pair.behaviour(
            temperature=workload.temperature,
            saguaro_downweight=drafting.saguaro_downweight,
            prompt_kind=workload.prompt_kind,
            drafter=drafting.drafter,
        )
    except LookupError as error:
        return [f"pair.behaviours: {error}"]
    problems = []
    if behaviour.acceptance.spread > 0 and workload.output_tokens is None:
        problems.append("workload.output_tokens: endless requests never average over the spread between requests")
    if behaviour.rank_trace is not None and workload.output_tokens is None:
        problems.append("workload.output_tokens: a replayed rank trace ends; give the requests a length")
    try:
        behaviour.acceptance.at(drafting.num_speculative_tokens)
    except ValueError as error:
        problems.append(f"pair.behaviours.acceptance.per_position: {error}")
    if drafting.fallback.kind is FallbackKind.NGRAM and behaviour.ngram_acceptance is None:
        problems.append("drafting.fallback.kind: 'ngram' needs ngram_acceptance in the pair's behaviour")
    return problems


def _workload_problems(scenario: Scenario) -> list[str]:
    run, workload = scenario.run, scenario.workload
    if workload.output_tokens is not None and run.warmup_requests >= workload.num_requests:
        return [f"run.warmup_requests: must be below workload.num_requests ({workload.num_requests})"]
    if workload.output_tokens is None and workload.arrivals == "static":
        return ["workload.output_tokens: endless requests never leave a static batch; choose arrivals 'closed'"]
    return []
