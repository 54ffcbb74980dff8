"""`ssdsim evaluate`: AR, SD and SSD by several methods, side by side, with the gaps between the methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    load,
    parse_methods,
)
from ssdsim.cli.output import (
    complain,
    print_caveats,
    print_json,
    print_line,
    print_table,
    scenario_facts,
    show_quantity,
)

if TYPE_CHECKING:
    from ssdsim.evaluate import Answer, Method
    from ssdsim.scenario import Mode, Scenario

EXAMPLE = "Example: ssdsim evaluate --pair qwen3-32b --set batch_size=4 --method exact --method sim"

_RATES = ("tokens_per_s", "tokens_per_s_per_request", "tokens_per_s_per_device")
_ROUND = ("round_s", "window_s")
_SHOWN = {
    "ar": (*_RATES, *_ROUND),
    "sd": (*_RATES, "speedup_over_ar", "mean_acceptance_length", *_ROUND, "fallback_s"),
    "ssd": (
        *_RATES,
        "speedup_over_ar",
        "speedup_over_sd",
        "mean_acceptance_length",
        "cache_hit_rate",
        "hit_rate_after_draft",
        "hit_rate_after_fallback",
        "prob_all_hit",
        *_ROUND,
        "build_s",
        "build_wait_s",
        "fallback_s",
        "overhead_s",
    ),
}
"""What the table shows of each mode; `--json` has everything."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("evaluate", epilog=EXAMPLE)(evaluate)


def evaluate(
    scenario: ScenarioFile = None,
    pair: Pair = None,
    sets: Sets = None,
    method: Methods = None,
    uncertainty: WithUncertainty = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Answer a scenario for AR, SD and SSD by several methods, side by side (default: paper and exact)."""
    chosen = load(scenario, pair, sets, seed)
    methods = parse_methods(method, ("paper", "exact"))
    answers, refusals = _answers(chosen, methods)
    if uncertainty:
        from ssdsim.uncertainty import with_uncertainty

        answers = with_uncertainty(answers, seed=chosen.run.seed)
    if as_json:
        print_json(_document(chosen, methods, answers, refusals))
    else:
        _show(chosen, methods, answers, quiet=quiet)
    for (name, mode), reason in refusals.items():
        if not quiet:
            complain(f"{name}, {mode}: {reason}")


def _answers(scenario: Scenario, methods: Sequence[Method]) -> tuple[list[Answer], dict[tuple[Method, Mode], str]]:
    """What the methods answer, and why some do not."""
    from ssdsim.errors import DomainError
    from ssdsim.evaluate import evaluate as answer_of
    from ssdsim.evaluate import with_speedups
    from ssdsim.scenario import Mode

    answers: list[Answer] = []
    refusals: dict[tuple[Method, Mode], str] = {}
    for method in methods:
        found = []
        for mode in Mode:
            try:
                found.append(answer_of(scenario, method, mode))
            except DomainError as error:
                refusals[method, mode] = str(error)
        answers.extend(with_speedups(found))
    if not answers:
        raise DomainError("--method", "none of the methods covers this scenario", "; ".join(refusals.values()))
    return answers, refusals


def _show(scenario: Scenario, methods: Sequence[Method], answers: Sequence[Answer], *, quiet: bool) -> None:
    from ssdsim.evaluate import Method
    from ssdsim.quantities import label_of

    by_key = {(answer.mode, answer.method): answer for answer in answers}
    reference = Method.EXACT if Method.EXACT in methods else methods[0]
    others = [method for method in methods if method is not reference]
    rows = []
    for mode, names in _SHOWN.items():
        here = {m: by_key[key] for m in methods if (key := (mode, m)) in by_key}
        for name in names:
            found = {m: answer.quantities[name] for m, answer in here.items() if name in answer.quantities}
            label = label_of(name)
            cells = [show_quantity(name, found.get(method)) for method in methods]
            gaps = [_percent(found.get(method), found.get(reference)) for method in others]
            rows.append([mode if name == names[0] else "", label.title, *cells, *gaps])
        rows.append([""] * (2 + len(methods) + len(others)))
    heads = ["", "", *map(str, methods), *(f"{method} vs {reference}" for method in others)]
    print_table(scenario_facts(scenario), heads, rows[:-1], words=2)
    print_caveats(scenario)
    for note in dict.fromkeys(f"{a.method}: {n}" for a in answers for n in a.notes if not quiet):
        if "extrapolated" not in note:
            print_line(note)


def _percent(quantity: Any, reference: Any) -> str:
    if quantity is None or reference is None or not reference.value:
        return "-"
    return f"{100 * (quantity.value / reference.value - 1):+.1f} %"


def _document(
    scenario: Scenario,
    methods: Sequence[Method],
    answers: Sequence[Answer],
    refusals: dict[tuple[Method, Mode], str],
) -> dict[str, Any]:
    from ssdsim.cli.output import heading

    return {
        **heading("evaluate", scenario),
        "methods": [str(method) for method in methods],
        "answers": [
            {
                "method": str(answer.method),
                "mode": str(answer.mode),
                "quantities": {name: quantity._asdict() for name, quantity in answer.quantities.items()},
                "notes": list(answer.notes),
            }
            for answer in answers
        ],
        "refusals": [
            {"method": str(method), "mode": str(mode), "reason": reason}
            for (method, mode), reason in refusals.items()
        ],
    }
