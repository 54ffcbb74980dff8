"""What-if: the contributions add up, and each goes to the term that was changed."""

from __future__ import annotations

import pytest
from toy_scenarios import toy, toy_pair

from ssdsim.evaluate import Method
from ssdsim.planning.whatif import TERMS, what_if

COSTS = {
    "kind": "components",
    "verify": {"kind": "linear", "base_s": 0.02, "per_query_token_s": 1e-4},
    "draft_step": {"kind": "constant", "seconds": 0.001},
    "tree_step": {"kind": "linear", "base_s": 0.001, "per_sequence_s": 1e-5},
    "host": {"kind": "constant", "seconds": 0.002},
}


def case(acceptance: float = 0.8, **overrides):
    settings = {"fallback__kind": "jit", "workload__batch_size": 2, **overrides}
    return toy(toy_pair(costs=COSTS, acceptance=acceptance), **settings)


CHANGES = {
    "lookahead": {"drafting__num_speculative_tokens": 2},
    "fan-out": {"drafting__fan_out__per_position": 5},
    "batch": {"workload__batch_size": 8},
    "fallback": {"fallback__kind": "none"},
    "mode": {"mode": "sd"},
    "to AR": {"mode": "ar"},
    "late build": {"pair__costs__tree_step__base_s": 0.03},
    "finite": {"workload__output_tokens": 20},
    "all at once": {
        "drafting__num_speculative_tokens": 3,
        "workload__batch_size": 4,
        "pair__costs__host__seconds": 0.0,
        "pair__costs__verify__base_s": 0.01,
    },
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("backwards", [False, True])
def test_contributions_add_up_to_the_whole_change(change, backwards: bool) -> None:
    pair = (case(), case(**change))
    result = what_if(*(reversed(pair) if backwards else pair))
    assert tuple(part.term for part in result.contributions) == TERMS
    total = result.after.tokens_per_s - result.before.tokens_per_s
    assert abs(total) > 0
    assert sum(part.tokens_per_s for part in result.contributions) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("term", "change"),
    [
        ("window", {"pair__costs__verify__base_s": 0.03}),
        ("host", {"pair__costs__host__seconds": 0.005}),
        ("build", {"pair__costs__glue": {"kind": "constant", "seconds": 0.05}}),
        ("fallback", {"pair__costs__jit_step": {"kind": "constant", "seconds": 0.004}}),
    ],
)
def test_changing_one_cost_moves_its_term_and_no_other(term: str, change) -> None:
    result = what_if(case(pair__costs__jit_step={"kind": "constant", "seconds": 0.001}), case(**change))
    if term != "fallback":
        result = what_if(case(), case(**change))
    moved = {part.term for part in result.contributions if abs(part.tokens_per_s) > 1e-9}
    assert moved == {term}


def test_a_better_cache_shows_as_hit_rate_with_what_it_costs_in_the_build() -> None:
    result = what_if(case(), case(drafting__fan_out__per_position=6))
    by_term = dict(result.contributions)
    assert by_term["hit rate"] > 0
    assert by_term["acceptance"] == pytest.approx(0.0, abs=1e-9)
    assert by_term["host"] == pytest.approx(0.0, abs=1e-9)


def test_better_acceptance_shows_as_acceptance_first() -> None:
    result = what_if(case(), case(acceptance=0.9))
    by_term = dict(result.contributions)
    assert by_term["acceptance"] > 0
    assert max(by_term, key=lambda term: abs(by_term[term])) == "acceptance"


def test_nothing_changed_is_nothing_contributed() -> None:
    result = what_if(case(), case())
    assert all(part.tokens_per_s == 0 for part in result.contributions)


def test_simulated_scenarios_are_explained_in_the_same_terms() -> None:
    run = {"workload__output_tokens": 50, "workload__num_requests": 60}
    result = what_if(case(**run), case(fallback__kind="none", **run), Method.SIM)
    total = result.after.tokens_per_s - result.before.tokens_per_s
    assert sum(part.tokens_per_s for part in result.contributions) == pytest.approx(total, rel=1e-9)


def test_a_method_that_does_not_tell_the_parts_gives_no_reasons() -> None:
    assert what_if(case(), case(workload__batch_size=4), Method.PAPER).contributions == ()
