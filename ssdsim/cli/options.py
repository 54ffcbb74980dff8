"""The options that verbs share, and the scenario that they lead to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ssdsim.scenario import Scenario

ScenarioFile = Annotated[
    Path | None,
    typer.Argument(metavar="[SCENARIO]", help="A scenario file (.yaml, .toml, .json); the default one if absent."),
]
Pair = Annotated[
    str | None,
    typer.Option("--pair", metavar="NAME|FILE", help="An embedded profile (see `ssdsim catalog list`) or a file."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override any scenario or profile field; may be repeated."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of all random streams (run.seed).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress and no remarks on stderr.")]
WithUncertainty = Annotated[
    bool,
    typer.Option(
        "--uncertainty", help="Bounds (95 %) from how surely the profile's numbers are known; takes longer."
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", metavar="METHOD", help="paper, exact, sim or real; may be repeated."),
]


def load(scenario: Path | None, pair: str | None, sets: list[str] | None, seed: int | None) -> Scenario:
    """The validated scenario that the shared options describe; raises `InputError`."""
    from ssdsim.scenario_files import load_scenario

    return load_scenario(scenario, pair=pair, overrides=_overrides(sets, seed))


def load_data(scenario: Path | None, pair: str | None, sets: list[str] | None, seed: int | None) -> dict[str, Any]:
    """The complete plain data that the shared options describe, not yet validated: a sweep may mend it."""
    from ssdsim.errors import ScenarioError
    from ssdsim.scenario_files import complete, overridden, parse_override, read_document

    data = read_document(scenario) if scenario is not None else {}
    if pair is not None:
        data["pair"] = pair
    whole, problems = overridden(complete(data), [parse_override(text) for text in _overrides(sets, seed)])
    if problems:
        raise ScenarioError(problems)
    return whole


def parse_methods(methods: list[str] | None, default: tuple[str, ...]) -> tuple[Any, ...]:
    """The methods by name; raises `InputError` for an unknown one."""
    from ssdsim.errors import InputError
    from ssdsim.evaluate import Method

    chosen = methods or default
    known = [str(method) for method in Method]
    for name in chosen:
        if name not in known:
            raise InputError(f"--method {name}: must be one of {', '.join(known)}")
    return tuple(dict.fromkeys(Method(name) for name in chosen))


def _overrides(sets: list[str] | None, seed: int | None) -> list[str]:
    return [*(sets or []), *([f"run.seed={seed}"] if seed is not None else [])]
