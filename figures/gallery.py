"""All figures by name: how they are found, drawn and written, and the page that shows them with their captions.

This module is the entry point `figures` of the group `ssdsim.verbs`, by which `ssdsim figures` comes here. A script
is imported when its picture is wanted, since each needs another part of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from figures.drawing import Drawing
from figures.inputs import Results
from ssdsim.errors import InputError
from ssdsim.plotting.style import style

FIGURES: dict[str, str] = {
    "timeline": "SD and SSD on one clock (Fig. 1 left, middle)",
    "batch_size": "speed against batch size",
    "accuracy": "predicted against measured and published",
    "end_to_end": "AR, SD and SSD by data set (Fig. 1 right, 7 left, 11, 12)",
    "cache_geometry": "how policies spend the speculation budget (Fig. 2)",
    "miss_rate": "miss rate against fan-out, and the hit rate it makes (Fig. 3, 10)",
    "fan_out_policies": "uniform, geometric and optimal fan-out over temperature (Fig. 4)",
    "saguaro": "acceptance against hits under Saguaro sampling (Fig. 5)",
    "fallback": "fallbacks against batch size, draft devices at batch 16 (Fig. 6)",
    "pareto": "throughput against latency (Fig. 7 right, 13)",
    "attention_mask": "what the branches of a build see (Fig. 8)",
    "methods": "one question, four methods: paper, exact, simulated, measured",
    "round_budget": "where a round's time goes",
}
"""Name to subject; `figures.NAME` draws it."""


class Written(NamedTuple):
    """One figure on disk, or why it is not there."""

    name: str
    files: tuple[Path, ...]
    caption: str
    skipped: str | None = None


def draw_figures(
    names: Sequence[str],
    source: Path | None,
    out: Path,
    formats: Iterable[str] = ("png", "svg"),
    *,
    seed: int = 0,
    on_done: Callable[[Written], None] = lambda _: None,
) -> list[Written]:
    """Draw the named figures (all where none is named) into `out`, with a page `index.md` of pictures and captions.

    A figure whose needs are not installed is skipped with its reason, unless it was asked for by name: then its
    `InputError` is raised, as it is for an unknown name or an unreadable `source`.
    """
    chosen = _known(names)
    results = Results.read(source, seed) if source is not None else Results(seed=seed)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in chosen:
        written.append(_one(name, results, out, tuple(formats), required=bool(names)))
        on_done(written[-1])
    (out / "index.md").write_text(_page(written))
    return written


def draw(name: str, results: Results) -> Drawing:
    """One figure in the common style."""
    with style():
        drawing: Drawing = import_module(f"figures.{name}").draw(results)
    return drawing


def _one(name: str, results: Results, out: Path, formats: tuple[str, ...], *, required: bool) -> Written:
    try:
        drawing = draw(name, results)
    except InputError as error:
        if required:
            raise
        return Written(name, (), "", skipped=str(error))
    with style():
        files = drawing.write(out, name, formats)
    return Written(name, tuple(files), drawing.caption)


def _known(names: Sequence[str]) -> list[str]:
    for name in names:
        if name not in FIGURES:
            near = get_close_matches(name, FIGURES, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"figure {name!r}: {hint}there are {', '.join(FIGURES)}")
    return list(dict.fromkeys(names)) or list(FIGURES)


def _page(written: Iterable[Written]) -> str:
    """Pictures and captions as Markdown."""
    parts = ["# Figures\n"]
    for figure in written:
        pictures = [path.name for path in figure.files if path.suffix in {".png", ".svg"}]
        if pictures:
            title = FIGURES[figure.name]
            data = next(path.name for path in figure.files if path.suffix == ".csv")
            parts.append(
                f"## {title[0].upper()}{title[1:]}\n\n![{title}]({pictures[0]})\n\n{figure.caption} [Data]({data})\n"
            )
    return "\n".join(parts)
