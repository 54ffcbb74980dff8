"""How surely a prediction is known, from how surely its profile's numbers are: `mid [low, high]` at 95 %.

A profile says of its numbers either how large the errors of their estimates are (`uncertainties`, correlated within
one fit) or between which ends an assumption may lie (`ranges`). Profiles are drawn accordingly (normal errors,
uniform within ranges), each is evaluated, and the middle 95 % of the answers are the bounds. What the scenario
decides stays decided: a fan-out that was optimised for the profile is not optimised anew for every draw.

    answers = with_uncertainty(compare(scenario, [Method.EXACT]))

Used by `evaluate`, `whatif` and `sweep` with `--uncertainty`, and by validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.design_point import DesignPoint, resolve
from ssdsim.errors import DomainError
from ssdsim.evaluate import Answer, Method, evaluate, num_devices
from ssdsim.exact import batch_columns, resolve_fallback, setting_of, slot_numbers
from ssdsim.profile import PairProfile, Uncertainty
from ssdsim.quantities import Quantity
from ssdsim.scenario import FallbackKind, FanOut, Mode, Scenario
from ssdsim.scenario_files import value_at, with_value

FloatArray = NDArray[np.float64]

NUM_DRAWS = 200
LEVEL = 0.95
_SIM_DRAWS = 16
_SIM_QUANTILE = 2.13
"""97.5 % quantile of Student's t with `_SIM_DRAWS` - 1 degrees of freedom."""
_PROBABILITIES = ("per_position", "by_lookahead", "hit_probs", "miss_prefactor", "acceptance")
_SMALLEST = 1e-9
_WIDEST_SPREAD = 0.98


@dataclass(frozen=True)
class _Draws:
    """One scenario under every drawn profile."""

    scenario: Scenario
    profiles: Sequence[PairProfile]

    @cached_property
    def points(self) -> list[DesignPoint]:
        """The scenario in numbers, for each profile."""
        return [resolve(_under(self.scenario, profile)) for profile in self.profiles]

    @cached_property
    def without_trace(self) -> _Draws:
        """The same with chance in the place of replayed traces."""
        return replace(self, profiles=[_without_trace(profile) for profile in self.profiles])


def with_uncertainty(answers: Sequence[Answer], *, num_draws: int = NUM_DRAWS, seed: int = 0) -> list[Answer]:
    """The answers with bounds on their quantities; those of one scenario and method share their draws.

    Speed-ups get the bounds of the ratio, which are narrower than those of its parts. Answers whose profile says
    nothing of errors or ranges come back as they are.
    """
    result: list[Answer] = list(answers)
    groups: dict[tuple[int, Method], list[int]] = {}
    for index, answer in enumerate(answers):
        groups.setdefault((id(answer.scenario), answer.method), []).append(index)
    for members in groups.values():
        first = answers[members[0]]
        if not is_uncertain(first.scenario.pair) or first.method is Method.REAL:
            continue
        bounded = _bounded([answers[i] for i in members], num_draws, seed)
        for index, answer in zip(members, bounded, strict=True):
            result[index] = answer
    return result


def is_uncertain(profile: PairProfile) -> bool:
    """Whether the profile says how surely any of its numbers is known."""
    return bool(profile.ranges or profile.uncertainties)


def draw_profiles(profile: PairProfile, count: int, seed: int = 0) -> list[PairProfile]:
    """`count` profiles that the numbers' errors and ranges allow, without those and without provenance."""
    generator = np.random.default_rng(seed)
    plain = profile.model_dump(mode="json", exclude={"ranges", "uncertainties", "provenance"})
    data = [plain] * count
    for path, between in sorted(profile.ranges.items()):
        values = generator.uniform(between.low, between.high, count)
        data = [_assigned(d, {path: value}) for d, value in zip(data, values, strict=True)]
    for group in profile.uncertainties:
        middle = np.array([value_at(plain, tuple(path.split("."))) for path in group.paths], dtype=np.float64)
        drawn = middle + generator.standard_normal((count, len(middle))) @ _root(group).T
        data = [_assigned(d, dict(zip(group.paths, row, strict=True))) for d, row in zip(data, drawn, strict=True)]
    return [PairProfile.model_validate(_consistent(d)) for d in data]


def covariance_of(group: Uncertainty) -> FloatArray:
    """[paths, paths]"""
    errors = np.array(group.standard_errors)
    correlations = np.eye(len(errors))
    for i, row in enumerate(group.correlations):
        correlations[i, :i] = correlations[:i, i] = row
    covariance: FloatArray = correlations * np.outer(errors, errors)
    return covariance


def _root(group: Uncertainty) -> FloatArray:
    """A matrix R with R R' = covariance; rounded correlations may be slightly indefinite."""
    errors = np.array(group.standard_errors)
    scale = np.where(errors > 0, errors, 1.0)
    values, vectors = np.linalg.eigh(covariance_of(group) / np.outer(scale, scale))
    root: FloatArray = scale[:, None] * vectors * np.sqrt(np.clip(values, 0.0, None))
    return root


def _assigned(data: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """The plain data with drawn numbers in place, kept where such numbers can lie."""
    result: Any = data
    for path, value in values.items():
        parts = tuple(path.split("."))
        is_probability = any(part in _PROBABILITIES for part in parts) and parts[-1] != "spread"
        least = _SMALLEST if parts[-1] in {"miss_exponent", "miss_prefactor", "unit_s", "scale"} else 0.0
        result = with_value(result, parts, float(np.clip(value, least, 1.0 if is_probability else None)))
    return dict(result)


def _consistent(data: dict[str, Any]) -> dict[str, Any]:
    """Numbers that belong together fit together again: tables do not fall, spreads are possible."""
    return {**data, "behaviours": [_consistent_part(behaviour) for behaviour in data["behaviours"]]}


def _consistent_part(part: Any) -> Any:
    if isinstance(part, list):
        return [_consistent_part(item) for item in part]
    if not isinstance(part, dict):
        return part
    mended = {key: value if key == "rank_trace" else _consistent_part(value) for key, value in part.items()}
    if "hit_probs" in mended:
        mended["hit_probs"] = np.maximum.accumulate(mended["hit_probs"]).tolist()
    if mended.get("spread"):
        per_position = np.atleast_1d(mended["per_position"])
        known = np.concatenate([per_position, *map(np.asarray, mended.get("by_lookahead") or [])])
        inner = known[(known > 0) & (known < 1)]
        widest = _WIDEST_SPREAD * float(np.sqrt(inner * (1 - inner)).min(initial=0.5))
        mended["spread"] = min(mended["spread"], widest)
    return mended


def _bounded(answers: Sequence[Answer], num_draws: int, seed: int) -> list[Answer]:
    """Bounds for the answers of one scenario and method."""
    scenario, method = answers[0].scenario, answers[0].method
    profiles = draw_profiles(scenario.pair, num_draws, seed)
    settled = _settled(scenario)
    draws = _Draws(settled, profiles)
    columns = [_columns(draws, answer.mode, method) for answer in answers]
    rates = {answer.mode: column["tokens_per_s"] for answer, column in zip(answers, columns, strict=True)}
    bounded = []
    for answer, column in zip(answers, columns, strict=True):
        for base in (Mode.AR, Mode.SD):
            if base in rates and len(rates[base]) == len(column["tokens_per_s"]):
                column[f"speedup_over_{base}"] = column["tokens_per_s"] / rates[base]
        quantities = {name: _bounds(quantity, column.get(name)) for name, quantity in answer.quantities.items()}
        bounded.append(replace(answer, quantities=quantities))
    return bounded


def _bounds(quantity: Quantity, drawn: FloatArray | None) -> Quantity:
    """The middle of the drawn values around the answer; a simulation's own error is added."""
    if drawn is None or not np.isfinite(drawn).all() or not np.ptp(drawn):
        return quantity
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    below, above = (max(float(gap), 0.0) for gap in (quantity.value - low, high - quantity.value))
    if quantity.low is not None and quantity.high is not None:
        below = float(np.hypot(below, quantity.value - quantity.low))
        above = float(np.hypot(above, quantity.high - quantity.value))
    return Quantity(quantity.value, quantity.value - below, quantity.value + above)


def _columns(draws: _Draws, mode: Mode, method: Method) -> dict[str, FloatArray]:
    """Every quantity of a mode under every drawn profile."""
    if method is Method.SIM:
        try:
            return _columns(draws.without_trace, mode, Method.EXACT)
        except DomainError:
            return _simulated(draws, mode)
    if method is Method.EXACT and draws.scenario.workload.arrivals == "closed" and _is_plain(draws.scenario, mode):
        return _exact_columns(draws, mode)
    return _by_name([evaluate(_under(draws.scenario, profile), method, mode) for profile in draws.profiles])


def _exact_columns(draws: _Draws, mode: Mode) -> dict[str, FloatArray]:
    """The exact model: what a sequence does in one array over all draws, its seconds draw by draw."""
    kind = draws.scenario.drafting.fallback.kind
    slots, setting = slot_numbers(draws.points, mode, kind), setting_of(draws.points[0], mode, kind)
    devices = draws.scenario.placement.num_draft_devices
    temperature = draws.scenario.workload.temperature
    rows = [
        batch_columns(slots.take(np.array([i])), setting, profile.costs_at(temperature), devices)
        for i, profile in enumerate(draws.profiles)
    ]
    columns = {name: np.array([float(row[name][0]) for row in rows]) for name in rows[0]}
    columns["tokens_per_s_per_request"] = columns["tokens_per_s"] / setting.batch_size
    columns["tokens_per_s_per_device"] = columns["tokens_per_s"] / num_devices(draws.scenario, mode)
    return columns


def _simulated(draws: _Draws, mode: Mode) -> dict[str, FloatArray]:
    """A few simulations with common random numbers, spread to the bounds that their scatter suggests."""
    profiles = draws.profiles[:_SIM_DRAWS]
    found = _by_name([evaluate(_under(draws.scenario, profile), Method.SIM, mode) for profile in profiles])
    return {
        name: values.mean() + values.std(ddof=1) * _SIM_QUANTILE / LEVEL * np.linspace(-1.0, 1.0, 2)
        for name, values in found.items()
    }


def _by_name(answers: Sequence[Answer]) -> dict[str, FloatArray]:
    names = [name for name in answers[0].quantities if all(name in answer.quantities for answer in answers)]
    return {name: np.array([answer.quantities[name].value for answer in answers]) for name in names}


def _is_plain(scenario: Scenario, mode: Mode) -> bool:
    return mode is not Mode.SSD or scenario.drafting.fallback.kind not in {FallbackKind.THRESHOLD, FallbackKind.AUTO}


def _under(scenario: Scenario, profile: PairProfile) -> Scenario:
    """The same question about another profile; both are valid, and the profile has the same shape."""
    return scenario.model_copy(update={"pair": profile})


def _without_trace(profile: PairProfile) -> PairProfile:
    behaviours = tuple(b.model_copy(update={"rank_trace": None}) for b in profile.behaviours)
    return profile.model_copy(update={"behaviours": behaviours})


def _settled(scenario: Scenario) -> Scenario:
    """The scenario with policies resolved as its profile resolves them: explicit fan-outs, a plain fallback."""
    point, drafting = resolve(scenario), scenario.drafting
    fallback = drafting.fallback
    if fallback.kind is FallbackKind.AUTO:
        fallback = fallback.model_copy(update={"kind": resolve_fallback(point).kind})
    answered = point.redrafted if fallback.kind is FallbackKind.JIT else point.undrafted
    settled = drafting.model_copy(
        update={
            "fallback": fallback,
            "fan_out": FanOut(policy="explicit", values=point.drafted.fan_out),
            "fan_out_on_miss": FanOut(policy="explicit", values=answered.fan_out),
        }
    )
    return scenario.model_copy(update={"drafting": settled})
