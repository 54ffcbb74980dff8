"""`ssdsim calibrate`: from the folders of runs to a profile, and what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssdsim.cli.options import AsJson, Quiet
from ssdsim.cli.output import complain, print_json, print_line, print_table, remark

if TYPE_CHECKING:
    from ssdsim.calibration.latency import CostsFit
    from ssdsim.calibration.profile_from_records import Calibration
    from ssdsim.profile import PairProfile

EXAMPLE = (
    "Example: ssdsim measure --mode ar,sd,ssd -K 2,4,8 --batch 1,4 --out runs/first; "
    "ssdsim calibrate runs/first --out mine.json; ssdsim evaluate --pair mine.json --uncertainty"
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("calibrate", epilog=EXAMPLE)(calibrate)


def calibrate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs, or folders that hold such folders.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The profile goes here (.json).")],
    name: Annotated[str | None, typer.Option(help="The profile's name (default: that of the file).")] = None,
    by_prompt_kind: Annotated[
        bool, typer.Option("--by-prompt-kind", help="Add a behaviour for each kind of prompt in mixed runs.")
    ] = False,
    rank_trace: Annotated[
        bool,
        typer.Option("--rank-trace", help="Keep the rank trace of greedy runs: `sim` replays it, others refuse it."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Turn the records of runs, measured or simulated, into a pair profile with the errors of its numbers."""
    from ssdsim.calibration.profile_from_records import calibrate as calibration_of
    from ssdsim.calibration.runs import read_runs
    from ssdsim.errors import InputError

    if out.suffix != ".json":
        raise InputError(f"--out {out}: a profile is written as .json")
    found = calibration_of(
        read_runs(runs), name=name or out.stem, by_prompt_kind=by_prompt_kind, with_trace=rank_trace
    )
    found.write(out)
    if as_json:
        print_json({"verb": "calibrate", **_document(found)})
    else:
        _show(found)
    for warning in found.warnings:
        if not quiet:
            complain(f"warning: {warning}")
    remark(f"{out}: {out.stat().st_size / 1024:.1f} kB", quiet=quiet or as_json)


def _document(found: Calibration) -> dict[str, Any]:
    from importlib.metadata import version

    return {
        "version": version("ssdsim"),
        "num_runs": found.num_runs,
        "profile": found.profile.model_dump(mode="json"),
        "warnings": list(found.warnings),
    }


def _show(found: Calibration) -> None:
    profile = found.profile
    print_line(f"{profile.name}: {profile.target} / {profile.draft} from {found.num_runs} runs")
    rows = [row for number in range(len(profile.behaviours)) for row in _behaviour_rows(profile, number)]
    print_table("how the pair behaves", ["", "", "estimate", "error (95 %)", "rests on"], rows, words=2)
    heads = ["phase", "form", "scatter", "misfit", "observations"]
    print_table("times", heads, _cost_rows(found.costs), words=2)
    if found.costs_when_sampled is not None:
        print_table("times above temperature 0", heads, _cost_rows(found.costs_when_sampled), words=2)


def _behaviour_rows(profile: PairProfile, number: int) -> list[list[str]]:
    """One line for every estimated number of a behaviour."""
    from ssdsim.scenario_files import value_at

    data, prefix = profile.model_dump(mode="json"), f"behaviours.{number}."
    conditions = profile.behaviours[number].when.model_dump(exclude_none=True)
    title = ", ".join(f"{key} {value}" for key, value in conditions.items() if key != "drafter")
    rows = []
    for group in profile.uncertainties:
        for path, error in zip(group.paths, group.standard_errors, strict=True):
            if path.startswith(prefix):
                value = value_at(data, tuple(path.split(".")))
                rows.append([title, path.removeprefix(prefix), f"{value:.4f}", f"±{1.96 * error:.4f}", ""])
                title = ""
    _add_sources(rows, profile, prefix)
    return rows


def _add_sources(rows: list[list[str]], profile: PairProfile, prefix: str) -> None:
    """What a part rests on, beside the first of its numbers."""
    for path, origin in profile.provenance.items():
        below = [row for row in rows if row[1].startswith(path.removeprefix(prefix))]
        if path.startswith(prefix) and below:
            below[0][4] = origin.source


def _cost_rows(costs: CostsFit) -> list[list[str]]:
    rows = []
    for name, fit in costs.terms.items():
        scatter, misfit = f"{100 * fit.noise:.1f} %", f"{100 * fit.misfit:.1f} %"
        rows.append([name, _form(fit.term.model_dump(mode="json")), scatter, misfit, f"{fit.num_observations:,}"])
    if costs.verify_contention != 1.0:
        rows.append(["verify_contention", f"x {costs.verify_contention:.3f} beside a build", "", "", ""])
    return rows


def _form(term: dict[str, Any]) -> str:
    """A cost term in words, milliseconds."""
    if term["kind"] == "constant":
        return f"{1e3 * term['seconds']:.4g} ms"
    if term["kind"] == "table":
        first, last = (1e3 * term["seconds"][i] for i in (0, -1))
        return f"table over {', '.join(term['axes'])}: {first:.4g} to {last:.4g} ms"
    if term["kind"] == "sum":
        return " + ".join(filter(None, map(_form, term["terms"])))
    units = {
        "base_s": "",
        "per_sequence_s": " per row",
        "per_query_token_s": " per query token",
        "per_context_token_s": " per token of context",
    }
    parts = [f"{1e3 * term[key]:.4g} ms{unit}" for key, unit in units.items() if term[key]]
    return " + ".join(parts)
