"""What runs in RESULTS say, and what a profile in RESULTS predicts for the very same runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from figures.inputs import Results, Run
from figures.marks import Origin
from ssdsim.errors import InputError
from ssdsim.evaluate import Method, evaluate
from ssdsim.profile import PairProfile
from ssdsim.scenario import Mode, Scenario
from ssdsim.scenario_files import scenario_from

_Z = 1.959964


class Rate(NamedTuple):
    """Tokens per second of the whole batch, over the repeats of one combination."""

    mode: Mode
    batch_size: int
    setting: str
    """What else was asked for; equal for repeats."""
    origin: Origin
    value: float
    low: float | None
    high: float | None
    run: Run


def rates(results: Results) -> list[Rate]:
    """One rate per combination: of one run with its bounds, of several the mean between least and greatest."""
    groups: dict[tuple[Mode, int, str, Origin], list[Run]] = {}
    for run in results.runs:
        if not run.about.get("run", {}).get("is_anchor") and "tokens_per_s" in run.quantities:
            key = (run.mode, run.workload.batch_size, setting_of(run), run.origin)
            groups.setdefault(key, []).append(run)
    return [_rate(key, runs) for key, runs in groups.items()]


def setting_of(run: Run) -> str:
    """What tells a combination apart from others of its mode and batch size, in few words."""
    drafting, temperature = run.drafting, run.workload.temperature
    words = [f"T={temperature:g}"] if temperature else []
    if run.mode is not Mode.AR:
        words.append(f"K={drafting.num_speculative_tokens}")
    if run.mode is Mode.SSD:
        size = drafting.fan_out
        counted = size.values or (f"{size.per_position}" if size.per_position is not None else f"B{size.budget}")
        words += [
            f"F={counted}" + (f" {size.policy}" if size.policy != "uniform" else ""),
            str(drafting.fallback.kind),
        ]
        words += [f"C={drafting.saguaro_downweight:g}"] if drafting.saguaro_downweight != 1 else []
    return ", ".join(words)


def fastest(found: Iterable[Rate]) -> dict[tuple[Mode, int], Rate]:
    """The fastest combination of every mode at every batch size; measured runs go before simulated ones."""
    best: dict[tuple[Mode, int], Rate] = {}
    for rate in sorted(found, key=lambda rate: (rate.origin is Origin.SIM, -rate.value)):
        best.setdefault((rate.mode, rate.batch_size), rate)
    return best


def scenario_of(run: Run, profile: PairProfile) -> Scenario:
    """The run's own scenario, for the profile's pair."""
    return scenario_from({**run.about["scenario"], "pair": profile.model_dump(mode="json")})


def predicted(run: Run, profile: PairProfile, method: Method = Method.EXACT) -> float | None:
    """Tokens per second that a method predicts for a run; None where it does not cover it."""
    try:
        return evaluate(scenario_of(run, profile), method, run.mode).tokens_per_s
    except InputError:
        return None


def profile_of(results: Results) -> PairProfile | None:
    """The first profile in RESULTS, which its runs are taken to belong to."""
    return results.profiles[0] if results.profiles else None


def title(results: Results) -> str:
    """The pair behind the runs."""
    profile = profile_of(results)
    if profile is not None:
        return f"{profile.target} / {profile.draft}"
    models = next((run.about["models"] for run in results.runs if "models" in run.about), None)
    if isinstance(models, dict):
        return str(models.get("pair") or f"{models.get('target')} / {models.get('draft')}")
    pair = next((run.about["scenario"].get("pair") for run in results.runs if "scenario" in run.about), None)
    return str(pair["name"]) if isinstance(pair, dict) and "name" in pair else "runs in RESULTS"


def share_bounds(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % bounds of a share of `count` independent trials."""
    spread = _Z**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half_width = _Z * math.sqrt(share * (1 - share) / count + spread / count / 4) / (1 + spread)
    return centre - half_width, centre + half_width


def _rate(key: tuple[Mode, int, str, Origin], runs: list[Run]) -> Rate:
    quantities = [run.quantities["tokens_per_s"] for run in runs]
    if len(runs) == 1:
        return Rate(*key, *quantities[0], runs[0])
    values = [quantity.value for quantity in quantities]
    return Rate(*key, sum(values) / len(values), min(values), max(values), runs[0])
