"""What `ssdsim measure` says of its runs: three tables, or one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ssdsim.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from ssdsim.calibration.hit_curves import CurveEstimate
    from ssdsim.measurement import FinishedRun
    from ssdsim.quantities import Quantity
    from ssdsim.run_summary import CombinationSummary

_RATES = {
    "tokens_per_s": "tokens/s",
    "speedup_over_ar": "x AR",
    "speedup_over_sd": "x SD",
    "mean_acceptance_length": "tokens per round",
    "cache_hit_rate": "hit rate",
    "hit_rate_after_draft": "after a hit",
    "hit_rate_after_fallback": "after a miss",
}
_BUDGET = {
    "round_s": "round",
    "lookup_s": "look-up",
    "fallback_s": "drafting",
    "prefill_s": "prefill",
    "reply_s": "reply",
    "verify_s": "verify",
    "accept_s": "accept",
    "outcome_s": "outcome",
    "build_wait_s": "late build",
    "host_s": "host",
}
_BESIDE = {
    "build_s": "build",
    "glue_s": "glue",
    "tree_s": "tree",
    "store_s": "store",
    "verifier_wait_s": "verifier waits",
    "speculator_wait_s": "speculator waits",
}
"""Columns of the tables: short heads, since there are many."""


def show(runs: Sequence[FinishedRun]) -> None:
    """Rates and hits, acceptance per position, and the time of a round."""
    from ssdsim.run_summary import drift, summarise_runs

    summaries = summarise_runs(runs)
    print_table(_title(runs), ["combination", *_RATES.values()], _rows(summaries, _RATES, _with_bounds))
    positions = _acceptance_names(summaries)
    if positions:
        heads = ["combination", *(name.removeprefix("acceptance_prob_") for name in positions)]
        drafted = [s for s in summaries if any(name in s.quantities for name in positions)]
        print_table("acceptance per position (conditional)", heads, _rows(drafted, positions, _with_bounds))
    title = "ms per round, one after the other (drafting: what the verifier waits for)"
    print_table(title, ["combination", *_BUDGET.values()], _rows(summaries, _BUDGET, _value))
    beside = [summary for summary in summaries if summary.setting.mode != "ar"]
    if beside:
        title = "ms per round, beside verification (build: glue, tree and store), and the waits of both sides"
        print_table(title, ["combination", *_BESIDE.values()], _rows(beside, _BESIDE, _value))
    _show_curves(runs)
    print_line(_bounds_told(summaries))
    anchors = drift(runs)
    if anchors is not None:
        low, high = (100 * (bound / anchors.value - 1) for bound in (anchors.low or 0, anchors.high or 0))
        print_line(f"anchors: {anchors.value:.4g} tokens/s, {low:+.1f} % to {high:+.1f} %")
    for note in (note for summary in summaries for note in summary.notes):
        print_line(note)


def print_document(runs: Sequence[FinishedRun]) -> None:
    """Everything of every combination."""
    from ssdsim.run_summary import drift, summarise_runs

    about = runs[0].records.about
    anchors = drift(runs)
    print_json(
        {
            "verb": "measure",
            **{name: about[name] for name in ("models", "prompts", "max_tokens", "seed", "machine", "versions")},
            "anchors": None if anchors is None else anchors._asdict(),
            "combinations": [_plain(summary, runs) for summary in summarise_runs(runs)],
        }
    )


def _plain(summary: CombinationSummary, runs: Sequence[FinishedRun]) -> dict[str, Any]:
    from ssdsim.cli.observation_report import plain_curve

    curves = _curves(summary.setting.name, runs)
    return {
        "name": summary.setting.name,
        **summary.setting.plain(),
        "num_runs": summary.num_runs,
        "quantities": {name: quantity._asdict() for name, quantity in summary.quantities.items()},
        "hit_curves": [
            {"after": after, "at": at, **(plain_curve(curve) or {})} for (after, at), curve in curves.items()
        ],
        "notes": list(summary.notes),
    }


def _show_curves(runs: Sequence[FinishedRun]) -> None:
    """Every fan-out's hit rate, from the ranks of the bonus tokens, whatever fan-out was run."""
    from ssdsim.cli.observation_report import SHOWN_FAN_OUTS, law_text

    rows = []
    for name in dict.fromkeys(run.setting.name for run in runs):
        for (after, at), curve in _curves(name, runs).items():
            hits = [curve.at(fan_out) for fan_out in SHOWN_FAN_OUTS]
            cells = ["-" if quantity is None else f"{quantity.value:.3f}" for quantity in hits]
            rows.append([name, f"{after}, {at}".replace("_", " "), *cells, law_text(curve)])
    if rows:
        heads = ["combination", "bonus token", *(f"F={fan_out}" for fan_out in SHOWN_FAN_OUTS), "1 - c F^-r"]
        print_table("hit probability by fan-out", heads, rows, words=2)


def _curves(name: str, runs: Sequence[FinishedRun]) -> dict[tuple[str, str], CurveEstimate]:
    from ssdsim.calibration.hit_curves import hit_curves_of
    from ssdsim.calibration.runs import Run

    return hit_curves_of([Run.of(run.records, run.name) for run in runs if run.setting.name == name])


def _title(runs: Sequence[FinishedRun]) -> str:
    about = runs[0].records.about
    models, prompts, machine = about["models"], about["prompts"], about["machine"]
    loads = [run.records.about["load_before"]["load_average"][0] for run in runs]
    return (
        f"{models['target']} / {models['draft']} ({models['dtype']}), {prompts['num_prompts']} prompts of "
        f"{prompts['source']}, at most {about['max_tokens']} tokens each; {machine['cpu']}, "
        f"{machine['num_allowed_cores']} cores, load {min(loads):.1f} to {max(loads):.1f}"
    )


def _bounds_told(summaries: Sequence[CombinationSummary]) -> str:
    if any(summary.num_runs > 1 for summary in summaries):
        return "±: what other prompts would give, and what the repeats gave"
    return "±: what other prompts would give; how far the machine moves shows with --repeat 3 --interleave"


def _acceptance_names(summaries: Sequence[CombinationSummary]) -> list[str]:
    names = {name for s in summaries for name in s.quantities if name.startswith("acceptance_prob_")}
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]))


def _rows(
    summaries: Sequence[CombinationSummary], names: Iterable[str], cell: Callable[[str, Quantity | None], str]
) -> list[list[str]]:
    return [[s.setting.name, *(cell(name, s.quantities.get(name)) for name in names)] for s in summaries]


def _value(name: str, quantity: Quantity | None) -> str:
    from ssdsim.quantities import label_of

    return label_of(name).show(None if quantity is None else quantity.value)


def _with_bounds(name: str, quantity: Quantity | None) -> str:
    from ssdsim.quantities import label_of

    value = _value(name, quantity)
    if quantity is None or quantity.low is None or quantity.high is None:
        return value
    return f"{value} ±{label_of(name).show((quantity.high - quantity.low) / 2)}"
