"""A study as plain data (JSON), as Markdown, and as a picture: the same numbers, and the command that made them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ssdsim.evaluate import Method
from ssdsim.quantities import label_of
from ssdsim.validation.errors import (
    MetricError,
    Point,
    error_without_drift,
    errors_by_metric,
    latency_alone,
    mean_causes,
)
from ssdsim.validation.predictions import METHODS, METRICS, SHARES
from ssdsim.validation.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = tuple[list[str], list[list[str]]]
"""Headings and lines."""

GATED = "tokens_per_s"
"""The metric that `--max-error` looks at, predicted by `sim`."""
_REPLAY = "replay"
_COLOURS = {"paper": "tab:orange", "exact": "tab:blue", "sim": "tab:green"}


def document(study: Study, command: str) -> dict[str, Any]:
    """Everything, as one JSON document."""
    return {
        "verb": "validate",
        "version": version("ssdsim"),
        "command": command,
        "about": study.about,
        "num_held_out": len(study.points),
        "repeats": study.repeats,
        "num_calibration_runs": study.calibration.num_runs,
        "errors": {m: _plain_errors(errors_by_metric(study.points, m)) for m in map(str, METHODS)},
        "replay_errors": _plain_errors(errors_by_metric(study.replayed, _REPLAY)),
        "latency_errors": {
            str(m): _plain_errors(errors_by_metric(study.latency, str(m))) for m in (Method.EXACT, Method.SIM)
        },
        "causes": mean_causes(study.points),
        "latency_alone_error": latency_alone(study.points),
        "sim_error_without_drift": error_without_drift(study.points, Method.SIM),
        "noise": None if study.drift is None else study.drift._asdict(),
        "choices": [choice._asdict() for choice in study.choices],
        "transfer": [vars(transfer) for transfer in study.transfers],
        "warnings": list(study.calibration.warnings),
        "points": [point.plain() for point in study.points],
    }


def gate_error(study: Study) -> float:
    """Mean absolute error of the simulator's rate over the held-out points."""
    return errors_by_metric(study.points, Method.SIM)[GATED].mean


def tables(study: Study) -> dict[str, Table]:
    """Every table of the report by its title."""
    noise = {} if study.drift is None else study.drift.noise
    found = {
        f"errors over {len(study.points)} held-out points": error_table(study.points, list(map(str, METHODS)), noise),
        "what a miss in tokens/s comes from": causes_table(study),
        "held-out points": points_table(study.points),
    }
    if study.replayed:
        title = f"acceptance alone: ranks replayed at {len(study.replayed)} greedy held-out points"
        found[title] = error_table(study.replayed, [_REPLAY], noise)
    if study.latency:
        title = f"latency alone: acceptance and hits drawn from a known law at {len(study.latency)} points"
        found[title] = error_table(study.latency, [str(Method.EXACT), str(Method.SIM)], noise)
    if study.choices:
        found["is the best configuration found?"] = choices_table(study)
    if study.transfers:
        found["prompts predicting other prompts"] = transfer_table(study)
    return found


def error_table(points: Sequence[Point], methods: Sequence[str], noise: Mapping[str, float]) -> Table:
    """Mean, median and worst absolute error per metric and method, beside what the measurements themselves know:
    the machine's `noise` from run to run, and the bounds (95 %) that a run's own requests and rounds leave open."""
    by_method = {method: errors_by_metric(points, method) for method in methods}
    lines: list[list[str]] = []
    for metric in METRICS:
        for method in methods:
            if (error := by_method[method].get(metric)) is not None:
                own = [p.sampling[metric] for p in points if metric in p.sampling]
                cells = [_share(metric, v) for v in (error.mean, error.median, error.worst, error.bias)]
                first = "" if any(line[0] == label_of(metric).text for line in lines) else label_of(metric).text
                known = [_share(metric, noise.get(metric)), _share(metric, fmean(own) if own else None)]
                lines.append([first, method, *cells, *known, str(error.num_points), error.worst_point])
    heads = ["metric", "method", "mean", "median", "worst", "bias", "run-to-run", "sampling", "points", "worst point"]
    return heads, lines


def causes_table(study: Study) -> Table:
    """Mean absolute size of each cause of a miss."""
    names = {
        "total": "the whole miss of `exact`",
        "acceptance": "acceptance",
        "hits": "hit curves",
        "latency": "latency",
        "drift": "drift of the machine",
        "together": "of these together",
        "model": "left with all of the run's own numbers",
    }
    lines = [[names[name], f"{100 * size:.2f} %"] for name, size in mean_causes(study.points).items()]
    if (alone := latency_alone(study.points)) is not None:
        lines.append(["error with the run's own acceptance and hits: latency alone", f"{100 * alone:.2f} %"])
    if (without := error_without_drift(study.points, Method.SIM)) is not None and study.drift is not None:
        lines.append(["error of `sim` with the drift taken out", f"{100 * without:.2f} %"])
    return ["cause", "mean size"], lines


def points_table(points: Sequence[Point]) -> Table:
    """Measured and simulated numbers of every held-out point."""
    shown = ("tokens_per_s", "mean_acceptance_length", "cache_hit_rate", "tpot_p99_s")
    lines = []
    for point in points:
        cells = []
        for metric in shown:
            measured, predicted = point.measured.get(metric), point.predicted.get("sim", {}).get(metric)
            label = label_of(metric)
            cells += [label.show(measured), label.show(predicted)]
        lines.append([point.name, *cells])
    heads = [head for metric in shown for head in (f"{label_of(metric).title} measured", "sim")]
    return ["point", *heads], lines


def choices_table(study: Study) -> Table:
    """Whether `sweep` would have picked the right point, and how far two measured points are apart by chance."""
    chance = "-"
    if study.drift is not None:
        chance = f"{100 * study.drift.noise['tokens_per_s'] * math.sqrt(2 / study.repeats):.1f} %"
    lines = []
    for c in study.choices:
        lost = f"{100 * c.regret:.1f} %"
        lines.append([str(c.batch_size), f"{c.temperature:g}", str(c.num_points), c.chosen, c.best, lost, chance])
    heads = ["batch", "temperature", "points", "predicted best", "measured best", "lost by following it"]
    return [*heads, "by chance (1 sd)"], lines


def transfer_table(study: Study) -> Table:
    """Errors of one kind's behaviour on another kind."""
    lines = [
        [
            t.calibrated_on,
            t.predicted,
            f"{100 * t.acceptance_length_error:.1f} %",
            _share("cache_hit_rate", t.hit_rate_error),
            str(t.num_runs),
        ]
        for t in study.transfers
    ]
    return ["calibrated on", "predicted", "acceptance length", "hit rate", "runs"], lines


def markdown(study: Study, command: str) -> str:
    """The report to read."""
    return "\n".join(_paragraphs(study, command))


def _paragraphs(study: Study, command: str) -> Iterator[str]:
    averaged = f" A point's measured numbers are the means of {study.repeats} runs." if study.repeats > 1 else ""
    yield f"# Accuracy of {study.calibration.profile.name}\n"
    yield (
        f"Measured and predicted by ssdsim {version('ssdsim')}: {study.calibration.num_runs} runs calibrate the "
        f"profile, {len(study.points)} others, which it has not seen, are predicted. All runs serve the same "
        f"prompts; points of both parts are shuffled in time, and an anchor is repeated between them.{averaged}\n"
    )
    yield f"    {command}\n"
    yield from (f"- {key}: {_inline(value)}" for key, value in study.about.items())
    yield ""
    if study.drift is not None:
        drift = study.drift
        trend, error = 100 * drift.trend_per_hour, 100 * drift.trend_error
        yield (
            f"The anchor ran {drift.num_anchors} times in {drift.hours:.2f} hours: its rate scatters by "
            f"{100 * drift.noise['tokens_per_s']:.1f} % from run to run and changes by {trend:+.1f} % ± {error:.1f} "
            "% per hour. No prediction can be better than that scatter.\n"
        )
    for title, table in tables(study).items():
        yield f"## {title[0].upper()}{title[1:]}\n"
        yield markdown_table(table)
    yield "## What the profile warns of\n"
    yield from (f"- {warning}" for warning in study.calibration.warnings or ("nothing",))
    yield ""


def markdown_table(table: Table) -> str:
    """A table in Markdown."""
    heads, lines = table
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *lines))


def picture(study: Study) -> Figure:
    """Predicted over measured rate for every method, the causes of the misses, and the anchor's rate over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    rates, causes = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    for method in map(str, METHODS):
        known = [p for p in study.points if GATED in p.predicted.get(method, {})]
        errors = [100 * (p.predicted[method][GATED] / p.measured[GATED] - 1) for p in known]
        rates.plot(
            [p.measured[GATED] for p in known], errors, "o", ms=4, alpha=0.8, color=_COLOURS[method], label=method
        )
    rates.axhline(0.0, color="black", lw=0.8)
    if study.drift is not None:
        noise = 100 * study.drift.noise[GATED]
        rates.axhspan(-noise, noise, color="black", alpha=0.1, lw=0, label="run-to-run noise")
    rates.set(xscale="log", xlabel="measured tokens/s", ylabel="error of the prediction (%)")
    rates.legend(frameon=False)
    sizes = mean_causes(study.points)
    causes.barh(list(sizes)[::-1], [100 * size for size in sizes.values()][::-1], color="tab:blue")
    causes.set(xlabel="mean size in log tokens/s (%)", title="what a miss of `exact` comes from")
    return figure


def save(study: Study, folder: Path, command: str) -> list[Path]:
    """Write report.json, report.md and report.svg into `folder`."""
    from matplotlib import rc_context

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"report.{suffix}" for suffix in ("json", "md", "svg")]
    paths[0].write_text(json.dumps(document(study, command), indent=1, sort_keys=True) + "\n")
    paths[1].write_text(markdown(study, command))
    with rc_context({"svg.hashsalt": "ssdsim", "svg.fonttype": "none"}):
        picture(study).savefig(paths[2], metadata={"Date": None})
    return paths


def _plain_errors(errors: dict[str, MetricError]) -> dict[str, Any]:
    return {metric: error._asdict() for metric, error in errors.items()}


def _share(metric: str, value: float | None) -> str:
    """A relative error in per cent, that of a share in points."""
    if value is None:
        return "-"
    return f"{100 * value:.1f} points" if metric in SHARES else f"{100 * value:.1f} %"


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_inline(item)}" for key, item in value.items() if item not in (None, [], {}))
    return ", ".join(map(_inline, value)) if isinstance(value, list | tuple) else str(value)
