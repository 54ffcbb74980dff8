"""`ssdsim sweep`: a grid over any scenario or profile field; table, file and picture; can be stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssdsim.cli.options import (
    AsJson,
    Methods,
    Pair,
    Quiet,
    ScenarioFile,
    Seed,
    Sets,
    WithUncertainty,
    load_data,
    parse_methods,
)
from ssdsim.cli.output import complain, print_json, print_line, print_table, remark
from ssdsim.cli.progress import Progress

if TYPE_CHECKING:
    from ssdsim.planning.crossing import Crossing
    from ssdsim.planning.plan import SweepPlan
    from ssdsim.planning.results import Columns
    from ssdsim.planning.store import FileStore, MemoryStore

EXAMPLE = (
    "Example: ssdsim sweep --over num_speculative_tokens=1:8 --over batch_size=1:64:2x --over mode=ar,sd,ssd "
    "--out sweep.parquet --figure sweep.png"
)
DEFAULT_AXES = (
    "mode=ar,sd,ssd",
    "drafting.num_speculative_tokens=1:7",
    "drafting.fan_out.per_position=1,3,8",
    "workload.batch_size=1,4,16,64",
)
DEFAULT_FIGURE = Path("results/sweep.png")

_MAX_TABLE_ROWS = 60
_MAX_ERRORS_SHOWN = 5


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("sweep", epilog=EXAMPLE)(sweep)


def sweep(
    scenario: ScenarioFile = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="PATH=VALUES",
            help="An axis: 1,2,4 or 1:64:2x (factor), 0.5:0.9:0.1 (step), 0:1:5n (count). "
            "'a=1,2; b=3,4' moves fields together. Axes are combined.",
        ),
    ] = None,
    pair: Pair = None,
    sets: Sets = None,
    method: Methods = None,
    uncertainty: WithUncertainty = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Results: .parquet, .csv or .json.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="A picture (.png, .svg, .pdf).")
    ] = None,
    quantity: Annotated[str, typer.Option(help="What the table and the picture show.")] = "tokens_per_s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be computed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished sweep in --out.")] = False,
    engine: Annotated[str, typer.Option(help="local, ray or dask.")] = "local",
    workers: Annotated[int | None, typer.Option(help="Processes; one per core if absent.")] = None,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate every combination of the axes.

    Without --over: lookahead, fan-out and batch size, for AR, SD and SSD, with a picture in results/sweep.png.
    """
    from ssdsim.planning.crossing import crossing_of
    from ssdsim.planning.plan import make_plan
    from ssdsim.planning.results import plain_rows

    if not over and figure is None and not dry_run:
        figure = DEFAULT_FIGURE
        figure.parent.mkdir(exist_ok=True)
    methods = parse_methods(method, ("exact",))
    data = load_data(scenario, pair, sets, seed)
    plan = make_plan(data, over or list(DEFAULT_AXES), methods, uncertainty=uncertainty)
    _check(plan, quantity, figure, resume=resume, out=out)
    if dry_run:
        _announce(plan, as_json=as_json)
        return
    table = _run(plan, out, engine, workers, resume=resume, quiet=quiet)
    _report_failures(table)
    view_figure = _draw(plan, table, quantity, figure) if figure is not None else None
    crossing = crossing_of(plan, table)
    if as_json:
        print_json({"verb": "sweep", **plan.about(), "rows": plain_rows(table), "crossing": _plain(crossing)})
    else:
        _show(plan, table, quantity)
        for line in crossing.lines() if crossing is not None else ():
            print_line(line)
    for path in (out, view_figure):
        if path is not None:
            remark(f"wrote {path}", quiet=quiet)


def _plain(crossing: Crossing | None) -> dict[str, Any] | None:
    """The crossing as plain data."""
    if crossing is None:
        return None
    theory = crossing.theory
    return {
        "printed": theory.printed._asdict(),
        "consistent": theory.consistent._asdict(),
        "scanned": theory.scanned,
        "found": [found._asdict() for found in crossing.found],
    }


def _check(plan: SweepPlan, quantity: str, figure: Path | None, *, resume: bool, out: Path | None) -> None:
    """Refuse before the sweep what could only fail after it."""
    from ssdsim.errors import InputError
    from ssdsim.quantities import LABELS

    if quantity not in LABELS:
        raise InputError(f"--quantity {quantity}: must be one of {', '.join(LABELS)}")
    if figure is not None and (figure.suffix not in {".png", ".svg", ".pdf"} or not figure.parent.is_dir()):
        raise InputError(f"--figure {figure}: must end in .png, .svg or .pdf and lie in a folder that exists")
    if resume and out is None:
        raise InputError("--resume: say which sweep with --out FILE")


def _announce(plan: SweepPlan, *, as_json: bool) -> None:
    if as_json:
        counts = {"points": plan.grid.size, "rows": plan.num_rows}
        print_json({"verb": "sweep", "dry_run": True, **plan.about(), **counts})
        return
    for axis in plan.grid.axes:
        shown = [", ".join(map(str, step)) for step in axis.values]
        middle = shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-2:]]
        print_line(f"{', '.join(axis.names)}: {len(axis)} values ({'; '.join(middle)})")
    print_line(f"{plan.grid.size:,} points by {', '.join(plan.methods)}: {plan.num_rows:,} rows")


def _run(
    plan: SweepPlan, out: Path | None, engine: str, workers: int | None, *, resume: bool, quiet: bool
) -> Columns:
    from ssdsim.errors import InputError
    from ssdsim.planning.engines import EngineKind, open_engine
    from ssdsim.planning.store import FileStore, MemoryStore
    from ssdsim.planning.sweep import run_sweep, useful_workers

    if engine not in list(EngineKind):
        raise InputError(f"--engine {engine}: must be one of {', '.join(EngineKind)}")
    store: FileStore | MemoryStore = FileStore(plan, out, resume=resume) if out is not None else MemoryStore(plan)
    progress = Progress(plan.num_rows, "rows", quiet=quiet)
    progress.take_over(len(store.finished_rows()))
    try:
        with open_engine(EngineKind(engine), useful_workers(plan, workers)) as opened:
            table = run_sweep(plan, store, opened, progress.advance)
    except KeyboardInterrupt:
        if out is not None:
            complain(f"interrupted; finished rows are kept, go on with --out {out} --resume")
        raise
    finally:
        progress.end()
    return table


def _report_failures(table: Columns) -> None:
    """How many rows have no answer, and the commonest reasons; raises where no row has one."""
    from collections import Counter

    from ssdsim.errors import InputError

    reasons = Counter(error for error in table["error"].tolist() if error is not None)
    if not reasons:
        return
    shown = [f"  {count} x {reason}" for reason, count in reasons.most_common(_MAX_ERRORS_SHOWN)]
    more = f"\n  and {len(reasons) - len(shown)} other reasons" if len(reasons) > len(shown) else ""
    message = f"{reasons.total():,} of {len(table['error']):,} rows have no answer:\n" + "\n".join(shown) + more
    if reasons.total() == len(table["error"]):
        raise InputError(message)
    complain(f"warning: {message}")


def _draw(plan: SweepPlan, table: Columns, quantity: str, figure: Path) -> Path:
    from ssdsim.planning.views import view_of
    from ssdsim.plotting.sweep import draw_sweep

    draw_sweep(view_of(plan, table, quantity), figure, title=_title(plan, table))
    return figure


def _title(plan: SweepPlan, table: Columns) -> str:
    """Which pair, and what its numbers rest on."""
    from ssdsim.caveats import caveats_of
    from ssdsim.errors import InputError

    ok = [i for i, status in enumerate(table["status"][:1000].tolist()) if status == "ok"]
    try:
        scenario = plan.scenario(ok[0] // len(plan.methods) if ok else 0)
    except InputError:
        return str(plan.base["pair"].get("name", ""))
    caveats = caveats_of(scenario)
    texts = set(table["extrapolated"].tolist()) - {None}
    beyond = sorted({what for text in texts for what in text.split(", ")})
    words = [f"partly assumed ({len(caveats.assumed)} numbers)"] if caveats.assumed else []
    words += [f"partly extrapolated ({', '.join(beyond)})"] if beyond else []
    pairs = {name for name in plan.grid.columns if name == "pair"}
    who = "several pairs" if pairs else f"{scenario.pair.target} / {scenario.pair.draft}"
    return f"{who}: {'; '.join(words)}" if words else who


def _show(plan: SweepPlan, table: Columns, quantity: str) -> None:
    from ssdsim.planning.views import view_of
    from ssdsim.quantities import label_of

    view, label = view_of(plan, table, quantity), label_of(quantity)
    rows: list[list[str]] = []
    for p, panel in enumerate(view.panel_values):
        for i, x in enumerate(view.x_values):
            names = [_named(value) for value, head in ((panel, view.panel_name), (x, view.x_name)) if head]
            rows.append([*names, *(label.show(float(value)) for value in view.values[p, :, i])])
    heads = [head for head in (view.panel_name, view.x_name) if head]
    shown = rows[:_MAX_TABLE_ROWS]
    title = f"{label.title}; {_title(plan, table)}"
    print_table(title, [*heads, *(line.label for line in view.lines)], shown, words=max(len(heads), 1))
    if len(shown) < len(rows):
        print_line(f"{len(rows) - len(shown):,} more lines: write them with --out FILE")


def _named(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
