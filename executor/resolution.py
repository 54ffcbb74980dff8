"""Policies that must know a pair, decided from its profile as the exact model and the simulator decide them:
`geometric` and `optimal` fan-out, `auto` and `threshold` fallback.

Used by `executor.real` and `executor.measure`.
"""

from __future__ import annotations

from ssdsim.design_point import DesignPoint, resolve
from ssdsim.exact import resolve_fallback
from ssdsim.measurement import RunSetting
from ssdsim.profile import PairProfile
from ssdsim.scenario import Drafting, FallbackChoice, FallbackKind, FanOut, Mode, Scenario
from ssdsim.schema import validate


def drafting_by(profile: PairProfile, setting: RunSetting) -> Drafting:
    """The setting's drafting, decided by `profile`. Raises InputError where that does not know the setting's
    conditions."""
    if setting.mode is not Mode.SSD:
        return setting.drafting
    workload = {"batch_size": setting.batch_size, "temperature": setting.temperature}
    asked = {"pair": profile, "mode": setting.mode, "drafting": setting.drafting, "workload": workload}
    return resolved_drafting(resolve(validate(Scenario, asked, source=profile.name)))


def resolved_drafting(point: DesignPoint) -> Drafting:
    """The scenario's drafting with the vectors and the fallback that the other methods use."""
    drafting = point.scenario.drafting
    kind, threshold = resolve_fallback(point)
    num_tokens = drafting.fallback.num_tokens if kind is FallbackKind.NGRAM else None
    missed = point.redrafted if kind is FallbackKind.JIT else point.undrafted
    # What was not drafted by a model is all but never accepted: where nothing is looked up, one position matters.
    on_miss = missed.fan_out if kind in {FallbackKind.JIT, FallbackKind.NGRAM} else missed.fan_out[:1]
    return drafting.model_copy(
        update={
            "fan_out": FanOut(policy="explicit", values=point.drafted.fan_out),
            "fan_out_on_miss": FanOut(policy="explicit", values=on_miss),
            "fallback": FallbackChoice(kind=kind, num_tokens=num_tokens, threshold=threshold),
        }
    )
