"""What a measurement comes to: quantities per combination, over its repeats, with speed-ups over AR and SD.

Used by `ssdsim measure` for its table and its JSON. The quantities of one run are those of `ssdsim.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.measurement import FinishedRun, RunSetting
from ssdsim.metrics import summarise
from ssdsim.quantities import Quantity
from ssdsim.records import Records, Source
from ssdsim.scenario import Mode

_Z = 1.959964
_FEWEST_REQUESTS = 8
"""Of which a spread between prompts is read."""


@dataclass(frozen=True, kw_only=True)
class CombinationSummary:
    """One combination of the grid."""

    setting: RunSetting
    num_runs: int
    quantities: dict[str, Quantity]
    """Of a single run with the bounds that it gives; of several the median, its bounds as wide as those of a run and
    as the repeats: running the same prompts again says nothing of other prompts."""
    notes: tuple[str, ...] = field(default=())


def summarise_runs(runs: Iterable[FinishedRun]) -> list[CombinationSummary]:
    """One summary per combination, in the order of first appearance; anchors are left out (see `drift`)."""
    groups: dict[str, list[_Summarised]] = {}
    for run in runs:
        if not run.is_anchor:
            groups.setdefault(run.setting.name, []).append(_Summarised(run, summarise(run.records)))
    return [_summary(group, list(groups.values())) for group in groups.values()]


def drift(runs: Iterable[FinishedRun]) -> Quantity | None:
    """Output rate of the anchors, median between least and greatest; None without anchors."""
    rates = [summarise(run.records)["tokens_per_s"].value for run in runs if run.is_anchor]
    return Quantity(median(rates), min(rates), max(rates)) if rates else None


class _Summarised(NamedTuple):
    run: FinishedRun
    quantities: dict[str, Quantity]


def _summary(group: Sequence[_Summarised], groups: Sequence[Sequence[_Summarised]]) -> CombinationSummary:
    each = [summarised.quantities for summarised in group]
    names = [name for name in each[0] if all(name in quantities for quantities in each)]
    quantities = {name: _over_repeats([found[name] for found in each]) for name in names}
    quantities |= _speedups(group, groups)
    notes = tuple(note for summarised in group for note in _notes(summarised.run))
    return CombinationSummary(setting=group[0].run.setting, num_runs=len(group), quantities=quantities, notes=notes)


def _over_repeats(quantities: Sequence[Quantity]) -> Quantity:
    if len(quantities) == 1:
        return quantities[0]
    values = [quantity.value for quantity in quantities]
    lows = [quantity.low for quantity in quantities if quantity.low is not None]
    highs = [quantity.high for quantity in quantities if quantity.high is not None]
    low = min(median(lows), *values) if lows else min(values)
    high = max(median(highs), *values) if highs else max(values)
    return Quantity(median(values), low, high)


def _notes(run: FinishedRun) -> list[str]:
    source = run.records.outcomes.columns()["source"]
    alone = float((source == Source.AR).mean()) if len(source) else 0.0
    if run.setting.mode is Mode.AR or not alone:
        return []
    return [f"{run.name}: {alone:.1%} of the rounds went without the speculator, which was lost"]


def _speedups(group: Sequence[_Summarised], groups: Sequence[Sequence[_Summarised]]) -> dict[str, Quantity]:
    """Over AR and over SD of the same lookahead, at the same batch size and temperature: repeat by repeat."""
    found = {}
    for mode in (Mode.AR, Mode.SD):
        setting = group[0].run.setting
        bases = next((other for other in groups if _is_base(other[0].run.setting, setting, mode)), group)
        if bases is not group:
            ratios = [_speedup(one, base) for one, base in zip(group, bases, strict=False)]
            found[f"speedup_over_{mode}"] = _over_repeats(ratios)
    return found


def _speedup(one: _Summarised, base: _Summarised) -> Quantity:
    """The ratio of the output rates. Its 95 % interval is that of other prompts, which the two share: so it is
    narrower than either rate's."""
    rates = [summarised.quantities.get("tokens_per_s", Quantity(math.nan)).value for summarised in (one, base)]
    ratio = rates[0] / rates[1]
    parts, base_parts = _parts(one.run.records), _parts(base.run.records)
    count = len(parts)
    if count < _FEWEST_REQUESTS or len(base_parts) != count:
        return Quantity(ratio)
    error = math.sqrt(count / (count - 1) * float(np.sum((parts - base_parts) ** 2)))
    return Quantity(ratio, ratio * math.exp(-_Z * error), ratio * math.exp(_Z * error))


def _parts(records: Records) -> NDArray[np.float64]:
    """[requests] how each one moves the logarithm of the rate: its share of the tokens less its share of the time."""
    requests = records.requests.columns()
    order = np.argsort(requests["request_id"])
    tokens = requests["output_tokens"][order].astype(np.float64)
    seconds = (requests["finish_s"] - requests["admitted_s"])[order]
    parts: NDArray[np.float64] = tokens / tokens.sum() - seconds / seconds.sum()
    return parts


def _is_base(candidate: RunSetting, setting: RunSetting, mode: Mode) -> bool:
    if candidate.mode is not mode or candidate.batch_size != setting.batch_size:
        return False
    lookaheads = candidate.drafting.num_speculative_tokens, setting.drafting.num_speculative_tokens
    return candidate.temperature == setting.temperature and (mode is Mode.AR or lookaheads[0] == lookaheads[1])
