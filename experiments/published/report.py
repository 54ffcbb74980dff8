"""The study as Markdown tables (stdout, and `docs/published.md`) and as CSV files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from experiments.published import ridge, rows, study
from experiments.published.ridge import ModelRidgePoint, RowsRidgePoint
from experiments.published.study import Anatomy, Case, Comparison, Effects
from ssdsim.validation.errors import Point
from ssdsim.validation.report import error_table

ROWS_RIDGE_S = (24e-3, 26e-3, 28e-3, 30e-3, 32e-3)
MODEL_RIDGE_S = (30.2e-3, 30.6e-3, 31e-3, 31.5e-3, 32e-3)

UNCALIBRATED, CALIBRATED = "uncalibrated", "calibrated"
_RATE = "tokens_per_s"

CASES = (study.LLAMA, study.QWEN)

NAMES = {
    "humaneval": "HumanEval",
    "ultrafeedback": "UltraFeedback",
    "alpaca": "Alpaca",
    "gsm8k": "GSM8K",
    None: "mean",
}

Table = tuple[list[str], list[list[str]]]
"""Headings and cells."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything the study finds; `effects` and `comparisons` by profile name."""

    effects: dict[str, Effects]
    comparisons: dict[str, list[Comparison]]
    rows_ridge: list[RowsRidgePoint]
    model_ridge: list[ModelRidgePoint]
    shortest_sd_round_s: tuple[float, float]
    """With latencies as assumed, and at the low ends of their ranges."""
    anatomies: list[Anatomy]
    """Of Qwen at K=4 and K=7."""


def run() -> Results:
    """Run the whole study; takes some seconds."""
    effects = {case.name: study.sensitivities(case) for case in CASES}
    qwen = study.QWEN.calibrated_profile()
    return Results(
        effects=effects,
        comparisons={case.name: study.compare(case, effects[case.name]) for case in CASES},
        rows_ridge=ridge.rows_ridge(ROWS_RIDGE_S),
        model_ridge=ridge.model_ridge(MODEL_RIDGE_S),
        shortest_sd_round_s=(
            ridge.shortest_sd_round_s(low_latencies=False),
            ridge.shortest_sd_round_s(low_latencies=True),
        ),
        anatomies=[study.anatomy(qwen, k) for k in (4, 7)],
    )


def tables(results: Results) -> dict[str, Table]:
    """Every table of the study by name."""
    found: dict[str, Table] = {}
    for case in CASES:
        found[f"{case.name}: tokens per second"] = comparison_table(case, results.comparisons[case.name])
        points = held_out_points(case, results.comparisons[case.name])
        title = f"{case.name}: errors over {len(points)} held-out rows"
        found[title] = error_table(points, [UNCALIBRATED, CALIBRATED], {})
        found[f"{case.name}: what each assumption moves"] = effects_table(results.effects[case.name])
    found["llama-3.1-70b: the ridge in the rows"] = rows_ridge_table(results.rows_ridge)
    found["llama-3.1-70b: the ridge in the model"] = model_ridge_table(results.model_ridge)
    found["qwen3-32b: why more lookahead is slower"] = anatomy_table(results.anatomies)
    return found


def remark(results: Results) -> str:
    """What the ridge in the model ends at."""
    assumed, low = (f"{seconds * 1e3:.1f} ms" for seconds in results.shortest_sd_round_s)
    return (
        f"Below an SD round of {assumed} ({low} with look-up, accepting and messages at their low ends) not even a\n"
        "cache that always hits explains HumanEval's SSD row.\n"
    )


def markdown(found: dict[str, Table]) -> str:
    """The tables as Markdown."""
    return "\n".join(f"### {name}\n\n{_markdown_table(table)}" for name, table in found.items())


def save(found: dict[str, Table], folder: Path) -> list[Path]:
    """Write each table as a CSV file into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (headings, lines) in found.items():
        written.append(folder / f"{name.replace(': ', '_').replace(' ', '_')}.csv")
        with written[-1].open("w", newline="") as file:
            csv.writer(file).writerows([headings, *lines])
    return written


def comparison_table(case: Case, comparisons: list[Comparison]) -> Table:
    """Published rates beside predicted ones."""
    headings = ["K", "prompts", "published", "uncalibrated (low .. central .. high)", "calibrated", "error"]
    k, kinds = case.calibrated_on
    fitted = (k, None) if len(kinds) > 1 else (k, kinds[0])
    lines = [
        [
            str(c.row[0]),
            NAMES[c.row[1]],
            f"{c.published:.1f}",
            f"{c.low:.1f} .. {c.uncalibrated:.1f} .. {c.high:.1f}",
            f"{c.calibrated:.1f}",
            "calibrated on it" if c.row == fitted else _percent(c.error),
        ]
        for c in comparisons
    ]
    return headings, [*lines, *_ratio_line(comparisons)]


def held_out_points(case: Case, comparisons: list[Comparison]) -> list[Point]:
    """The rows of single data sets that the scalar was not calibrated on, as the validation of a measured pair holds
    its points; the means over data sets are no rows of their own."""
    k, kinds = case.calibrated_on
    return [
        Point(
            name=f"K={c.row[0]}, {NAMES[c.row[1]]}",
            mode="ssd",
            batch_size=1,
            temperature=0.0,
            measured={_RATE: c.published},
            predicted={UNCALIBRATED: {_RATE: c.uncalibrated}, CALIBRATED: {_RATE: c.calibrated}},
            swapped={},
        )
        for c in comparisons
        if c.row[1] is not None and not (c.row[0] == k and c.row[1] in kinds)
    ]


def _ratio_line(comparisons: list[Comparison]) -> list[list[str]]:
    means = {c.row[0]: c for c in comparisons if c.row[1] is None}
    if len(means) < 2:
        return []
    low, high = means[min(means)], means[max(means)]
    observed, predicted, fitted = (
        getattr(high, field) / getattr(low, field) for field in ("published", "uncalibrated", "calibrated")
    )
    error = _percent(fitted / observed - 1)
    label = f"{max(means)}/{min(means)}"
    return [[label, "mean", f"{observed:.3f}", f"{predicted:.3f}", f"{fitted:.3f}", error]]


def effects_table(effects: Effects) -> Table:
    """Mean change of the SSD rows at either end of each assumption's range."""
    lines = [[name, _percent(low.mean), _percent(high.mean)] for name, (low, high) in effects.items()]
    return ["assumption", "at its low end", "at its high end"], lines


def rows_ridge_table(points: list[RowsRidgePoint]) -> Table:
    """The eight rates alone."""
    headings = [
        "SD round (ms)",
        "SSD round (ms)",
        "SD / SSD",
        *(f"a {NAMES[kind]}" for kind in rows.PROMPT_KINDS),
        "rms",
    ]
    lines = [
        [
            f"{p.sd_round_s * 1e3:.1f}",
            f"{p.ssd_round_s * 1e3:.1f}",
            f"{p.sd_round_s / p.ssd_round_s:.2f}",
            *(f"{a:.3f}" for a in p.acceptance_prob),
            f"{100 * p.rms_error:.2f} %",
        ]
        for p in points
    ]
    return headings, lines


def model_ridge_table(points: list[ModelRidgePoint]) -> Table:
    """What each SD round implies."""
    headings = ["SD round (ms)", "miss_prefactor", "hit rate", *(NAMES[kind] for kind in rows.PROMPT_KINDS)]
    lines = [
        [
            f"{p.sd_round_s * 1e3:.1f}",
            f"{p.miss_prefactor:.2f}",
            f"{p.hit_rate:.2f}",
            *(_percent(error) for error in p.errors),
        ]
        for p in points
    ]
    return headings, lines


def anatomy_table(found: list[Anatomy]) -> Table:
    """Where a round's time goes."""
    headings = [
        "K",
        "window (ms)",
        "build (ms)",
        "target waits (ms)",
        "implied hit rate",
        "tok/s",
        "tok/s, build hidden",
    ]
    lines = [
        [
            str(a.lookahead),
            f"{a.window_s * 1e3:.2f}",
            f"{a.build_s * 1e3:.2f}",
            f"{a.target_wait_s * 1e3:.2f}",
            f"{a.hit_rate:.3f}",
            f"{a.rate:.1f}",
            f"{a.rate_if_build_were_hidden:.1f}",
        ]
        for a in found
    ]
    return headings, lines


def _percent(change: float) -> str:
    """A signed percentage; what rounds to nothing has no sign."""
    text = f"{100 * change:+.1f}"
    return f"{'0.0' if text in {'+0.0', '-0.0'} else text} %"


def _markdown_table(table: Table) -> str:
    headings, lines = table
    rule = ["---"] * len(headings)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, rule, *lines))
