"""`ssdsim validate`: measure, calibrate, predict what was not calibrated on, and say how far off that was."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsim.cli.measure import DEFAULT_PAIR, TokenProgress
from ssdsim.cli.options import AsJson, Quiet, Seed
from ssdsim.cli.output import complain, print_json, print_line, print_table, remark
from ssdsim.cli.progress import Progress

if TYPE_CHECKING:
    from ssdsim.validation.grid import GridName
    from ssdsim.validation.simulated import Execute
    from ssdsim.validation.study import Study

EXAMPLE = "Example: ssdsim validate --pair tiny --out validation --grid small --max-error 0.10"
_EXIT_NOT_MET = 1


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("validate", epilog=EXAMPLE)(validate)


def validate(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Runs, profile and report go here.")],
    pair: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"A built-in pair (default: {DEFAULT_PAIR}).")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="SOURCE", help="Instead: see `measure`.")] = None,
    draft: Annotated[str | None, typer.Option(metavar="SOURCE", help="The draft that goes with --target.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    simulate: Annotated[
        str | None,
        typer.Option("--simulate", metavar="NAME|FILE", help="No executor: simulate runs of this profile instead."),
    ] = None,
    grid: Annotated[str, typer.Option(metavar="small|full", help="How many points.")] = "full",
    max_error: Annotated[
        float | None,
        typer.Option("--max-error", help="Exit with 1 if `sim` is off by more than this in tokens/s on average."),
    ] = None,
    prompts: Annotated[str, typer.Option(metavar="FILE|built-in", help="JSON lines with `prompt`.")] = "built-in",
    num_prompts: Annotated[int, typer.Option(help="Prompts of every run.")] = 24,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of every request.")] = 96,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of every point; their means are what was measured.")] = 1,
    threads: Annotated[int, typer.Option(help="Of each of the two roles.")] = 1,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure a grid of points, calibrate on a part of them, predict the rest, and report the errors.

    An interrupted validation goes on where it stopped when it is called again with the same options.
    """
    from ssdsim.measurement import ModelSource, Texts
    from ssdsim.validation.grid import validation_grid
    from ssdsim.validation.report import document, gate_error, save
    from ssdsim.validation.study import plan_of, run_study

    chosen = validation_grid(_grid_name(grid))
    models = ModelSource(
        pair=pair if pair is not None or target is not None else DEFAULT_PAIR, target=target, draft=draft, dtype=dtype
    )
    texts = Texts(prompts=prompts, num_prompts=num_prompts, max_tokens=max_tokens, ignore_eos=True, seed=seed or 0)
    plan = plan_of(chosen, models, texts, out, num_threads=threads, repeats=repeat)
    study = run_study(chosen, plan, _executor(simulate), TokenProgress(quiet=quiet), _PredictionProgress(quiet=quiet))
    command = shlex.join(["ssdsim", *sys.argv[1:]])
    written = save(study, out, command)
    if as_json:
        print_json(document(study, command))
    else:
        _show(study)
    remark(f"written: {', '.join(path.name for path in written)} in {out}", quiet=quiet or as_json)
    _gate(gate_error(study), max_error)


class _PredictionProgress:
    """A line on stderr that counts predicted points from when the first one is done."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._line = quiet, Progress(0, "points predicted", quiet=True)

    def __call__(self, done: int, total: int) -> None:
        if done == 1:
            self._line = Progress(total, "points predicted", quiet=self._quiet)
        self._line.advance(1)
        if done == total:
            self._line.end()


def _grid_name(text: str) -> GridName:
    from ssdsim.errors import InputError
    from ssdsim.validation.grid import GridName

    if text not in list(GridName):
        raise InputError(f"--grid {text}: must be one of {', '.join(GridName)}")
    return GridName(text)


def _executor(simulate: str | None) -> Execute:
    from ssdsim.extensions import load_extension

    if simulate is None:
        execute: Execute = load_extension("ssdsim.verbs", "measure")
        return execute
    from ssdsim.catalog import load_profile
    from ssdsim.profile import PairProfile
    from ssdsim.schema import validate as checked
    from ssdsim.validation.simulated import simulated_measurement

    return simulated_measurement(checked(PairProfile, load_profile(simulate), source=simulate))


def _show(study: Study) -> None:
    from ssdsim.validation.report import tables

    for title, (heads, rows) in tables(study).items():
        print_table(title, heads, rows)
    if study.drift is not None:
        noise, trend = 100 * study.drift.noise["tokens_per_s"], 100 * study.drift.trend_per_hour
        print_line(
            f"machine: {noise:.1f} % from run to run, {trend:+.1f} % per hour ({study.drift.num_anchors} anchors)"
        )
    for warning in study.calibration.warnings:
        print_line(f"profile: {warning}")


def _gate(error: float, max_error: float | None) -> None:
    """Exit 1 where the promised accuracy is not met."""
    if max_error is not None and not error <= max_error:
        complain(f"tokens/s: `sim` is off by {100 * error:.1f} % on average, more than {100 * max_error:.1f} %")
        raise typer.Exit(_EXIT_NOT_MET)
