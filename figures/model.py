"""What the models say of a pair, in the forms that pictures ask for: single answers, sweeps, the best drafting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ssdsim.evaluate import Answer, Method, evaluate
from ssdsim.planning.engines import EngineKind, open_engine
from ssdsim.planning.plan import make_plan
from ssdsim.planning.results import Columns
from ssdsim.planning.store import MemoryStore
from ssdsim.planning.sweep import run_sweep
from ssdsim.profile import PairProfile
from ssdsim.scenario import Mode, Scenario
from ssdsim.scenario_files import complete, overridden, scenario_from

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
LOOKAHEADS = tuple(range(1, 8))
FAN_OUTS = (1, 2, 3)
FALLBACKS = ("jit", "none")

Pair = str | Mapping[str, Any]
"""The name of an embedded profile, or a profile's plain data."""
Overrides = Mapping[str, Any]
"""Field path (or its unambiguous ending) to value."""


class Choice(NamedTuple):
    """A drafting at a batch size."""

    mode: Mode
    batch_size: int
    lookahead: int = 0
    fan_out: int = 0
    fallback: str = ""

    @property
    def text(self) -> str:
        """In a caption."""
        return f"K={self.lookahead}" + (f", F={self.fan_out}, {self.fallback}" if self.mode is Mode.SSD else "")


def scenario(pair: Pair, overrides: Overrides | None = None) -> Scenario:
    """The default scenario of a pair with overrides."""
    return scenario_from({"pair": pair}, list((overrides or {}).items()))


def exact(pair: Pair, mode: Mode, overrides: Overrides | None = None) -> Answer:
    """The exact model's answer."""
    return evaluate(scenario(pair, overrides), Method.EXACT, mode)


def sweep(
    pair: Pair, axes: Mapping[str, Sequence[Any]], overrides: Overrides | None = None, method: Method = Method.EXACT
) -> Columns:
    """Every combination of `axes` (full field paths), answered by one method; a row without answer holds NaN."""
    data, problems = overridden(complete({"pair": pair}), list((overrides or {}).items()))
    if problems:
        raise ValueError("; ".join(problems))
    plan = make_plan(data, [f"{path}={','.join(map(str, values))}" for path, values in axes.items()], [method])
    with open_engine(EngineKind("local"), 1) as engine:
        return run_sweep(plan, MemoryStore(plan), engine)


def choices(pair: Pair, mode: Mode, batch_sizes: Sequence[int] = BATCH_SIZES) -> dict[Choice, float]:
    """Tokens per second of every drafting: K up to 7, for SSD F up to 3 and jit or no fallback."""
    axes: dict[str, Sequence[Any]] = {"workload.batch_size": batch_sizes}
    if mode is not Mode.AR:
        axes["drafting.num_speculative_tokens"] = LOOKAHEADS
    if mode is Mode.SSD:
        axes |= {"drafting.fan_out.per_position": FAN_OUTS, "drafting.fallback.kind": FALLBACKS}
    table = sweep(pair, axes, {"mode": mode.value})
    columns = (table[path].tolist() for path in axes)
    rates = table["tokens_per_s"].tolist()
    return {Choice(mode, *key): rate for *key, rate in zip(*columns, rates, strict=True)}


def fastest(rates: Mapping[Choice, float]) -> dict[int, Choice]:
    """The fastest drafting at each batch size."""
    best: dict[int, Choice] = {}
    for choice, rate in rates.items():
        if choice.batch_size not in best or rate > rates[best[choice.batch_size]]:
            best[choice.batch_size] = choice
    return best


def at(table: Columns, column: str, **wanted: Any) -> float:
    """The value of a column in the one row of a sweep where the last parts of the paths have the wanted values."""
    mask = np.ones(len(table["status"]), dtype=bool)
    for ending, value in wanted.items():
        path = next(name for name in table if name.rpartition(".")[2] == ending)
        mask &= table[path] == value
    return float(table[column][mask].item())


def known_lookahead(profile: PairProfile, at_most: int) -> int:
    """The longest lookahead up to `at_most` at which acceptance is known under all conditions of `profile`."""
    known = [behaviour.acceptance.per_position for behaviour in profile.behaviours]
    return min([at_most, *(len(positions) for positions in known if isinstance(positions, tuple))])
