"""What the verbs print: results on stdout (a table or one JSON document), everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ssdsim.quantities import Quantity
    from ssdsim.scenario import Scenario

_WIDTH_OF_A_PIPE = 160
"""Columns of a table that does not go to a terminal, which would have a width."""


def complain(message: str) -> None:
    """An error or a warning: always shown."""
    typer.echo(message, err=True)


def remark(message: str, *, quiet: bool) -> None:
    """Something good to know that is no result."""
    if not quiet:
        typer.echo(message, err=True)


def print_json(document: Any) -> None:
    """The one document; what is not a finite number is null."""
    typer.echo(json.dumps(_plain(document), indent=2, allow_nan=False))


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> None:
    """A table whose first `words` columns are text and whose others are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(Text(head), justify="left" if number < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE, highlight=False)
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(table)


def print_line(text: str) -> None:
    """A line of the result."""
    typer.echo(text)


def show_quantity(name: str, quantity: Quantity | None) -> str:
    """The value in the unit of its label, with its bounds where it has any; a dash where there is none."""
    from ssdsim.quantities import label_of

    if quantity is None:
        return "-"
    label = label_of(name)
    value = label.show(quantity.value)
    return value if quantity.low is None else f"{value} [{label.show(quantity.low)}, {label.show(quantity.high)}]"


def print_caveats(scenario: Scenario) -> None:
    """What the numbers of a scenario rest on, as part of the result."""
    from ssdsim.caveats import caveats_of

    caveats = caveats_of(scenario)
    for kind, what in (("extrapolated", caveats.extrapolated), ("assumed", caveats.assumed)):
        if what:
            typer.echo(f"{kind}: {', '.join(what)}")


def scenario_facts(scenario: Scenario) -> str:
    """One line that says which scenario this is."""
    from ssdsim.distributions import mean_length

    pair, drafting, workload = scenario.pair, scenario.drafting, scenario.workload
    hardware = pair.hardware
    devices = f"{scenario.num_target_devices}+{scenario.num_speculator_devices} {hardware.target_device}"
    size = drafting.fan_out
    fan_out = size.values or (f"{size.per_position} per position" if size.per_position is not None else size.budget)
    output = workload.output_tokens
    length = f"{mean_length(output):g} tokens each" if output is not None else "endless requests"
    return (
        f"{pair.target} / {pair.draft} on {devices}: lookahead {drafting.num_speculative_tokens}, "
        f"fan-out {size.policy} {fan_out}, fallback {drafting.fallback.kind}, batch {workload.batch_size}, {length}"
    )


def heading(verb: str, scenario: Scenario) -> dict[str, Any]:
    """What every JSON document starts with: which verb, which version, which scenario, and what it rests on."""
    from importlib.metadata import version

    from ssdsim.caveats import caveats_of

    caveats = caveats_of(scenario)
    return {
        "verb": verb,
        "version": version("ssdsim"),
        "scenario": {**scenario.model_dump(mode="json", exclude={"pair"}), "pair": scenario.pair.name},
        "assumed": caveats.assumed,
        "extrapolated": caveats.extrapolated,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
