"""(Scenario, method) -> Answer: the one door to the four methods.

- `paper`: the formulas as printed    - `exact`: the corrected model
- `sim`: the discrete-event simulator  - `real`: the executor, where it is installed (entry point `ssdsim.methods`)

`compare` puts modes and methods side by side, with speedups over AR and SD by the same method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ssdsim.caveats import beyond_limits
from ssdsim.costs.models import Costs
from ssdsim.design_point import DesignPoint, resolve
from ssdsim.errors import DomainError
from ssdsim.exact import batch_columns, resolve_fallback, setting_of, slot_numbers, static_columns
from ssdsim.exact.fallbacks import thresholds
from ssdsim.printed import printed_quantities
from ssdsim.quantities import Quantity
from ssdsim.scenario import FallbackKind, Mode, Scenario


class Method(StrEnum):
    PAPER = "paper"
    EXACT = "exact"
    SIM = "sim"
    REAL = "real"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one method says about one mode of a scenario."""

    scenario: Scenario
    mode: Mode
    method: Method
    quantities: dict[str, Quantity]
    """tokens_per_s is the whole batch's; times in seconds; see the CLI's `evaluate --help` for the list."""
    notes: tuple[str, ...] = ()
    """What the method leaves out, approximates or extrapolates here."""

    @property
    def tokens_per_s(self) -> float:
        return self.quantities["tokens_per_s"].value


def evaluate(scenario: Scenario, method: Method, mode: Mode | None = None) -> Answer:
    """The answer of `method` for `mode` (the scenario's own where absent).

    Raises DomainError where the method does not cover the scenario; the message names one that does.
    """
    chosen = mode if mode is not None else scenario.mode
    quantities, notes = _METHODS[method](scenario, chosen)
    answer = Answer(scenario=scenario, mode=chosen, method=method, quantities=quantities, notes=notes)
    return replace(answer, quantities={**quantities, **_per_unit(answer)}, notes=(*notes, *_extrapolations(scenario)))


def compare(
    scenario: Scenario,
    methods: Iterable[Method] = (Method.EXACT,),
    modes: Sequence[Mode] = (Mode.AR, Mode.SD, Mode.SSD),
) -> list[Answer]:
    """Every mode by every method, with speedups over that method's own AR and SD."""
    return [answer for method in methods for answer in with_speedups([evaluate(scenario, method, m) for m in modes])]


def num_devices(scenario: Scenario, mode: Mode) -> int:
    """Devices that a mode occupies: SSD adds its speculator's to the target's."""
    return scenario.num_target_devices + (scenario.num_speculator_devices if mode is Mode.SSD else 0)


def _exact(scenario: Scenario, mode: Mode) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    point = resolve(scenario)
    fallback = resolve_fallback(point)
    if mode is Mode.SSD and fallback.kind is FallbackKind.THRESHOLD:
        return _exact_threshold(point, fallback.threshold)
    kind = FallbackKind.JIT if fallback.kind is FallbackKind.THRESHOLD else fallback.kind
    slots, setting = slot_numbers([point], mode, kind), setting_of(point, mode, kind)
    if scenario.workload.arrivals == "static":
        columns = static_columns(point, slots, setting)
    else:
        columns = batch_columns(slots, setting, scenario.costs, scenario.placement.num_draft_devices)
    notes = exact_notes(scenario.costs)
    chosen = (f"fallback auto: {kind}",) if scenario.drafting.fallback.kind is FallbackKind.AUTO else ()
    return {name: Quantity(float(column[0])) for name, column in columns.items()}, (*notes, *chosen)


def exact_notes(costs: Costs) -> tuple[str, ...]:
    """What the exact model leaves out of these costs."""
    return ("jitter is taken at its mean",) if any(costs.jitter.model_dump().values()) else ()


def _exact_threshold(point: DesignPoint, threshold: int | None) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    if point.scenario.workload.output_tokens is not None:
        raise DomainError(
            "drafting.fallback.kind", "'threshold' is exact for endless requests only: use method 'sim'", "threshold"
        )
    policies, b = thresholds(point), point.scenario.workload.batch_size
    chosen = min(threshold or b + 1, b + 1)
    rate = float(policies.rate_per_sequence[chosen - 1])
    round_s = float(policies.round_s[chosen - 1])
    values = {
        "tokens_per_s": b * rate,
        "round_s": round_s,
        "mean_acceptance_length": rate * round_s,
        "cache_hit_rate": float(policies.cache_hit_rate[chosen - 1]),
    }
    return {name: Quantity(value) for name, value in values.items()}, (f"threshold: {chosen} misses",)


def _paper(scenario: Scenario, mode: Mode) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    quantities, notes = printed_quantities(resolve(scenario), mode)
    return {name: Quantity(value) for name, value in quantities.items()}, notes


def _sim(scenario: Scenario, mode: Mode) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    from ssdsim.metrics import summarise
    from ssdsim.sim import simulate

    result = simulate(scenario.model_copy(update={"mode": mode}))
    return summarise(result.records), ()


def _real(scenario: Scenario, mode: Mode) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    from ssdsim.extensions import load_extension

    answer: tuple[dict[str, Quantity], tuple[str, ...]] = load_extension("ssdsim.methods", "real")(scenario, mode)
    return answer


_METHODS: dict[Method, Callable[[Scenario, Mode], tuple[dict[str, Quantity], tuple[str, ...]]]] = {
    Method.PAPER: _paper,
    Method.EXACT: _exact,
    Method.SIM: _sim,
    Method.REAL: _real,
}


def _per_unit(answer: Answer) -> dict[str, Quantity]:
    """Rates per request and per device."""
    rate = answer.quantities["tokens_per_s"]
    return {
        "tokens_per_s_per_request": rate.scaled(1 / answer.scenario.workload.batch_size),
        "tokens_per_s_per_device": rate.scaled(1 / num_devices(answer.scenario, answer.mode)),
    }


def with_speedups(answers: Sequence[Answer]) -> list[Answer]:
    """The answers of one method, each with its speed-ups over those of them that are AR and SD."""
    rates = {answer.mode: answer.tokens_per_s for answer in answers}
    return [
        replace(
            answer,
            quantities={
                **answer.quantities,
                **{
                    f"speedup_over_{base}": answer.quantities["tokens_per_s"].scaled(1 / rates[base])
                    for base in (Mode.AR, Mode.SD)
                    if base in rates
                },
            },
        )
        for answer in answers
    ]


def _extrapolations(scenario: Scenario) -> tuple[str, ...]:
    """Where the scenario leaves the range in which its profile was calibrated."""
    return tuple(
        f"extrapolated: {what} {value} is beyond the {limit} that the profile covers"
        for what, (value, limit) in beyond_limits(scenario).items()
    )
