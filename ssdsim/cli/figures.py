"""`ssdsim figures`: draw the paper's figures and ours, from embedded data or from results; captions on stdout.

The pictures are drawn by the package `figures`, which this package does not import: it is found behind the entry
points `ssdsim.verbs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ssdsim.cli.options import AsJson, Quiet, Seed
from ssdsim.cli.output import complain, print_json, print_line, remark

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLE = "Example: ssdsim figures timeline batch_size --from runs/first --out results/figures"

DEFAULT_OUT = Path("results/figures")
_FORMATS = ("png", "svg", "pdf")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("figures", epilog=EXAMPLE)(figures)


def figures(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which figures; all of them if none is named.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RESULTS",
            help="A folder with runs (of `simulate --out` or `measure`), profiles and validation reports.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Pictures, their data (CSV) and index.md go here.")
    ] = DEFAULT_OUT,
    formats: Annotated[
        list[str] | None, typer.Option("--format", metavar="png|svg|pdf", help="May be repeated (png and svg).")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only name the figures.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draw figures, each with the numbers behind it and a caption that says what they rest on.

    Without --from, everything is drawn from embedded profiles, published rows and fresh simulations.
    """
    from ssdsim.extensions import load_extension

    gallery: Any = load_extension("ssdsim.verbs", "figures")
    if list_only:
        _list(gallery, as_json=as_json)
        return
    chosen = _formats(formats)
    _check_folder(out)
    written = gallery.draw_figures(
        names or (),
        source,
        out,
        chosen,
        seed=seed or 0,
        on_done=lambda figure: remark(f"drew {figure.name}", quiet=quiet or figure.skipped is not None),
    )
    for figure in written:
        if figure.skipped is not None:
            complain(f"skipped {figure.skipped}")
    _report(written, source, out, as_json=as_json)


def _list(gallery: Any, *, as_json: bool) -> None:
    if as_json:
        print_json({"verb": "figures", "figures": [{"name": n, "subject": s} for n, s in gallery.FIGURES.items()]})
        return
    for name, subject in gallery.FIGURES.items():
        print_line(f"{name:<18}{subject}")


def _formats(formats: list[str] | None) -> tuple[str, ...]:
    from ssdsim.errors import InputError

    chosen = tuple(dict.fromkeys(formats or _FORMATS[:2]))
    for name in chosen:
        if name not in _FORMATS:
            raise InputError(f"--format {name}: must be one of {', '.join(_FORMATS)}")
    return chosen


def _check_folder(out: Path) -> None:
    from ssdsim.errors import InputError

    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: exists and is not a folder")


def _report(written: Sequence[Any], source: Path | None, out: Path, *, as_json: bool) -> None:
    from importlib.metadata import version

    if as_json:
        figures = [{**f._asdict(), "files": [str(path) for path in f.files]} for f in written]
        heading = {"verb": "figures", "version": version("ssdsim"), "from": str(source) if source else None}
        print_json({**heading, "figures": figures})
        return
    for figure in written:
        if figure.skipped is None:
            print_line(f"{figure.name}: {figure.caption}\n")
    print_line(f"{sum(figure.skipped is None for figure in written)} figures in {out}; see {out / 'index.md'}")
