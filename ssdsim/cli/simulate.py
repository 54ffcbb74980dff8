"""`ssdsim simulate`: play a scenario event by event; percentiles on stdout, tables, trace and timeline on disk."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssdsim.cli.options import AsJson, Pair, Quiet, ScenarioFile, Seed, Sets, load
from ssdsim.cli.output import heading, print_caveats, print_json, print_table, remark, scenario_facts
from ssdsim.cli.progress import Progress

if TYPE_CHECKING:
    from ssdsim.quantities import Quantity
    from ssdsim.scenario import Scenario

EXAMPLE = "Example: ssdsim simulate --set batch_size=8 --out run --timeline run/timeline.png"

_SAMPLED_EVERY = 16
_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
_PERCENTILES = (50, 90, 99)


class TableFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"


class SinkKind(StrEnum):
    ALL = "all"
    SAMPLE = "sample"
    AGGREGATE = "aggregate"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("simulate", epilog=EXAMPLE)(simulate)


def simulate(
    scenario: ScenarioFile = None,
    pair: Pair = None,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the tables here.")] = None,
    table_format: Annotated[TableFormat, typer.Option("--format", help="Of the tables.")] = TableFormat.PARQUET,
    trace: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write a Chrome / Perfetto trace.")] = None,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the first rounds of verifier and speculator.")
    ] = None,
    sink: Annotated[
        SinkKind, typer.Option(help=f"Rows to keep: all, every {_SAMPLED_EVERY}th round, or sums only.")
    ] = SinkKind.ALL,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate one mode of a scenario (its `mode`): quantities with 95 % bounds, and percentiles over requests."""
    chosen = load(scenario, pair, sets, seed)
    _check_outputs(sink, out, trace, timeline)
    result = _run(chosen, sink, quiet=quiet)
    quantities = result.quantities()
    written = _write(result.records, out, table_format, trace, timeline)
    if as_json:
        document = {name: quantity._asdict() for name, quantity in quantities.items()}
        files = [str(path) for path in written]
        print_json({**heading("simulate", chosen), "mode": chosen.mode, "quantities": document, "files": files})
        return
    _show(chosen, quantities)
    print_caveats(chosen)
    for path in written:
        remark(f"wrote {path}", quiet=quiet)


def _check_outputs(sink: SinkKind, out: Path | None, trace: Path | None, timeline: Path | None) -> None:
    """Refuse what cannot be written before the run, not after it."""
    from ssdsim.errors import InputError

    if sink is SinkKind.AGGREGATE and (trace or timeline):
        raise InputError("--sink aggregate: keeps no rounds to draw; use --sink all for a trace or a timeline")
    for option, path in (("--trace", trace), ("--timeline", timeline)):
        if path is not None and not path.parent.is_dir() and path.parent != out:
            raise InputError(f"{option} {path}: there is no folder {path.parent}")
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: exists and is not a folder")


def _run(scenario: Scenario, sink: SinkKind, *, quiet: bool) -> Any:
    from ssdsim.sim import Aggregates, AllRows, Sample
    from ssdsim.sim import simulate as run

    sinks: dict[SinkKind, Any] = {
        SinkKind.ALL: AllRows(),
        SinkKind.SAMPLE: Sample(every=_SAMPLED_EVERY),
        SinkKind.AGGREGATE: Aggregates(),
    }
    progress = Progress(None, "rounds", quiet=quiet)
    result = run(scenario, sink=sinks[sink], progress=progress.reach)
    progress.end()
    return result


def _write(
    records: Any, out: Path | None, table_format: TableFormat, trace: Path | None, timeline: Path | None
) -> list[Path]:
    written: list[Path] = []
    if out is not None:
        written += records.write(out, f".{table_format}")
    if trace is not None:
        from ssdsim.plotting.chrome_trace import write_chrome_trace

        write_chrome_trace(records, trace)
        written.append(trace)
    if timeline is not None:
        from ssdsim.plotting.timeline import draw_timeline

        draw_timeline(records, timeline)
        written.append(timeline)
    return written


def _show(scenario: Scenario, quantities: dict[str, Quantity]) -> None:
    from ssdsim.quantities import label_of

    means = [name for name in quantities if not name.startswith(_LATENCIES_AND_TERMS)]
    rows = [
        [label_of(n).title, label_of(n).show(q.value), label_of(n).show(q.low), label_of(n).show(q.high)]
        for n in means
        for q in (quantities[n],)
    ]
    title = f"{scenario.mode.upper()}: {scenario_facts(scenario)}"
    print_table(title, ["", "value", "low", "high"], rows)
    latencies = [
        [label_of(name).title, *(_latency(quantities, name, percent) for percent in (None, *_PERCENTILES))]
        for name in _LATENCIES
        if name in quantities
    ]
    if latencies:
        print_table("over requests", ["", "mean", *(f"p{p}" for p in _PERCENTILES)], latencies)


_LATENCIES_AND_TERMS = (
    "ttft_",
    "tpot_",
    "itl_",
    "e2e_",
    "lookup_s",
    "reply_s",
    "outcome_s",
    "glue_s",
    "tree_s",
    "store_s",
)
"""Shown in the second table, or parts of what is shown."""


def _latency(quantities: dict[str, Quantity], name: str, percent: int | None) -> str:
    from ssdsim.quantities import label_of

    key = name if percent is None else f"{name.removesuffix('_s')}_p{percent}_s"
    return label_of(key).show(quantities[key].value if key in quantities else None)
