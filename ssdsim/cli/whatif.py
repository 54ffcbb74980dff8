"""`ssdsim whatif`: before and after a change, and which term of the round moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ssdsim.cli.options import AsJson, Pair, Quiet, ScenarioFile, Seed, WithUncertainty, load, parse_methods
from ssdsim.cli.output import (
    heading,
    print_caveats,
    print_json,
    print_line,
    print_table,
    scenario_facts,
    show_quantity,
)

if TYPE_CHECKING:
    from ssdsim.planning.whatif import WhatIf

EXAMPLE = "Example: ssdsim whatif --given batch_size=8 --set fallback.kind=none"

_SHOWN = (
    "tokens_per_s",
    "tokens_per_s_per_request",
    "tokens_per_s_per_device",
    "speedup_over_ar",
    "speedup_over_sd",
    "mean_acceptance_length",
    "cache_hit_rate",
    "prob_all_hit",
    "round_s",
    "window_s",
    "build_wait_s",
    "fallback_s",
    "overhead_s",
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("whatif", epilog=EXAMPLE)(whatif)


def whatif(
    scenario: ScenarioFile = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="A change; may be repeated.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--given", metavar="PATH=VALUE", help="An override that holds before and after."),
    ] = None,
    pair: Pair = None,
    method: Annotated[str, typer.Option(metavar="METHOD", help="exact or sim.")] = "exact",
    uncertainty: WithUncertainty = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare a scenario with a changed one, in absolute and percent, and say why they differ."""
    from ssdsim.errors import InputError
    from ssdsim.planning.whatif import what_if

    if not sets:
        raise InputError("--set: say what changes, for instance --set drafting.num_speculative_tokens=4")
    before = load(scenario, pair, given, seed)
    after = load(scenario, pair, [*(given or []), *sets], seed)
    result = what_if(before, after, parse_methods([method], ())[0], uncertainty=uncertainty)
    if as_json:
        print_json(_document(result, sets))
        return
    _show(result, sets)
    if not quiet:
        print_caveats(after)


def _show(result: WhatIf, changes: list[str]) -> None:
    from ssdsim.quantities import label_of

    before, after = result.before.quantities, result.after.quantities
    rows = []
    for name in _SHOWN:
        if name in before and name in after:
            label, old, new = label_of(name), before[name].value, after[name].value
            difference = label.show(new - old) if new < old else f"+{label.show(new - old)}"
            cells = [show_quantity(name, quantities[name]) for quantities in (before, after)]
            rows.append([label.title, *cells, difference, _percent(new, old)])
    title = f"{scenario_facts(result.before.scenario)}\nchanged: {', '.join(changes)}"
    print_table(title, ["", "before", "after", "change", "percent"], rows)
    print_line(_reason(result))
    whole = result.before.tokens_per_s
    reasons = [
        [part.term, f"{part.tokens_per_s:+.2f}", f"{100 * part.tokens_per_s / whole:+.2f} %"]
        for part in result.contributions
    ]
    if reasons:
        total = result.after.tokens_per_s - whole
        reasons.append(["together", f"{total:+.2f}", f"{100 * total / whole:+.2f} %"])
        print_table("why the rate of the batch changed", ["term", "tokens/s", "percent"], reasons)


def _reason(result: WhatIf) -> str:
    """One sentence with the term that moved most."""
    old, new = result.before.tokens_per_s, result.after.tokens_per_s
    change = f"The batch's rate goes from {old:,.4g} to {new:,.4g} tokens/s ({100 * (new / old - 1):+.1f} %)"
    moved = max(result.contributions, key=lambda part: abs(part.tokens_per_s), default=None)
    if moved is None or not moved.tokens_per_s:
        return f"{change}."
    return f"{change}; what moved most is the {moved.term} ({100 * moved.tokens_per_s / old:+.1f} %)."


def _percent(new: float, old: float) -> str:
    return f"{100 * (new / old - 1):+.1f} %" if old else "-"


def _document(result: WhatIf, changes: list[str]) -> dict[str, object]:
    before, after = result.before.quantities, result.after.quantities
    both = [name for name in before if name in after]
    return {
        **heading("whatif", result.after.scenario),
        "method": str(result.after.method),
        "changes": changes,
        "before": {name: quantity._asdict() for name, quantity in before.items()},
        "after": {name: quantity._asdict() for name, quantity in after.items()},
        "change": {name: after[name].value - before[name].value for name in both},
        "change_percent": {
            name: 100 * (after[name].value / before[name].value - 1) for name in both if before[name].value
        },
        "contributions": [part._asdict() for part in result.contributions],
        "reason": _reason(result),
    }
