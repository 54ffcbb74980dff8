"""What a measurement comes to: quantities per combination, over its repeats, with speed-ups over AR and SD.

Used by `ssdsim measure` for its table and its JSON. The quantities of one run are those of `ssdsim.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ssdsim.measurement import FinishedRun, RunSetting
from ssdsim.metrics import summarise
from ssdsim.quantities import Quantity
from ssdsim.records import Source
from ssdsim.scenario import Mode


@dataclass(frozen=True, kw_only=True)
class CombinationSummary:
    """One combination of the grid."""

    setting: RunSetting
    num_runs: int
    quantities: dict[str, Quantity]
    """Of a single run with the bounds that it gives; of several the median, between the least and the greatest."""
    notes: tuple[str, ...] = field(default=())


def summarise_runs(runs: Iterable[FinishedRun]) -> list[CombinationSummary]:
    """One summary per combination, in the order of first appearance; anchors are left out (see `drift`)."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        if not run.is_anchor:
            groups.setdefault(run.setting.name, []).append(run)
    summaries = [_summary(group) for group in groups.values()]
    return [_with_speedups(summary, summaries) for summary in summaries]


def drift(runs: Iterable[FinishedRun]) -> Quantity | None:
    """Output rate of the anchors, median between least and greatest; None without anchors."""
    rates = [summarise(run.records)["tokens_per_s"] for run in runs if run.is_anchor]
    return _over_repeats(rates) if rates else None


def _summary(runs: Sequence[FinishedRun]) -> CombinationSummary:
    each = [summarise(run.records) for run in runs]
    names = [name for name in each[0] if all(name in quantities for quantities in each)]
    quantities = {name: _over_repeats([found[name] for found in each]) for name in names}
    notes = tuple(note for run in runs for note in _notes(run))
    return CombinationSummary(setting=runs[0].setting, num_runs=len(runs), quantities=quantities, notes=notes)


def _over_repeats(quantities: Sequence[Quantity]) -> Quantity:
    values = [quantity.value for quantity in quantities]
    if len(values) == 1:
        return quantities[0]
    return Quantity(median(values), min(values), max(values))


def _notes(run: FinishedRun) -> list[str]:
    source = run.records.outcomes.columns()["source"]
    alone = float((source == Source.AR).mean()) if len(source) else 0.0
    if run.setting.mode is Mode.AR or not alone:
        return []
    return [f"{run.name}: {alone:.1%} of the rounds went without the speculator, which was lost"]


def _with_speedups(summary: CombinationSummary, all_of_them: Sequence[CombinationSummary]) -> CombinationSummary:
    """Speed-ups over AR and over SD of the same lookahead, at the same batch size and temperature."""
    speedups = {}
    for mode in (Mode.AR, Mode.SD):
        base = next((other for other in all_of_them if _is_base(other.setting, summary.setting, mode)), None)
        if base is not None and base.setting != summary.setting:
            rates = [s.quantities.get("tokens_per_s", Quantity(math.nan)).value for s in (summary, base)]
            speedups[f"speedup_over_{mode}"] = Quantity(rates[0] / rates[1])
    quantities = {**summary.quantities, **speedups}
    return CombinationSummary(
        setting=summary.setting, num_runs=summary.num_runs, quantities=quantities, notes=summary.notes
    )


def _is_base(candidate: RunSetting, setting: RunSetting, mode: Mode) -> bool:
    if candidate.mode is not mode or candidate.batch_size != setting.batch_size:
        return False
    lookaheads = candidate.drafting.num_speculative_tokens, setting.drafting.num_speculative_tokens
    return candidate.temperature == setting.temperature and (mode is Mode.AR or lookaheads[0] == lookaheads[1])
