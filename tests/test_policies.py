"""Policies: allocations sum to the budget and follow their rule; the fallback rules choose as stated."""

from __future__ import annotations

import math

import pytest

from ssdsim.errors import DomainError
from ssdsim.policies import allocate_fan_out, choose_fallback
from ssdsim.theory.hit_curve import AllAccepted, PowerLaw, Table

LAW = PowerLaw(1.0, 0.5)
ALL_ACCEPTED = AllAccepted(0.8, LAW)


@pytest.mark.parametrize(
    ("policy", "expected"),  # THEORY 4.5, K = 5, r = 1, B = 24
    [
        ("uniform", (4, 4, 4, 4, 4, 4)),
        ("geometric", (4, 4, 4, 3, 3, 6)),
        ("optimal", (5, 4, 4, 4, 3, 4)),
    ],
)
def test_the_three_policies_on_the_table_of_theory(policy, expected) -> None:
    assert allocate_fan_out(policy, 5, 24, [0.8] * 5, LAW, ALL_ACCEPTED) == expected
    assert allocate_fan_out(policy, 5, 24, 0.8, LAW, ALL_ACCEPTED) == expected


@pytest.mark.parametrize("policy", ["uniform", "geometric", "optimal"])
@pytest.mark.parametrize("budget", [0, 1, 7, 40])
def test_every_policy_spends_exactly_the_budget(policy, budget) -> None:
    allocation = allocate_fan_out(policy, 3, budget, [0.9, 0.7, 0.4], LAW, ALL_ACCEPTED)
    assert sum(allocation) == budget
    assert len(allocation) == 4
    assert all(type(count) is int for count in allocation)


def test_after_proposing_nothing_the_whole_budget_lies_at_the_only_position() -> None:
    assert allocate_fan_out("optimal", 0, 12, (), LAW, ALL_ACCEPTED) == (12,)


def test_optimal_is_exact_where_greedy_would_stall() -> None:
    # the first candidate is worthless, two are certain: whole pairs go to the likelier outcomes
    cliff = Table((0.0, 0.0, 1.0))
    assert allocate_fan_out("optimal", 2, 4, [0.5, 0.5], cliff, cliff) == (2, 2, 0)


def test_geometric_needs_a_power_law_and_says_what_to_use_instead() -> None:
    with pytest.raises(DomainError, match="optimal"):
        allocate_fan_out("geometric", 1, 4, [0.5], Table((0.0, 0.5)), ALL_ACCEPTED)


@pytest.mark.parametrize(
    "bad",
    [
        {"policy": "best"},
        {"num_speculative_tokens": -1},
        {"budget": 2.5},
        {"acceptance_prob": [0.5]},
        {"acceptance_prob": [0.5, 1.5]},
    ],
)
def test_allocations_outside_the_domain_are_refused(bad) -> None:
    good = {
        "policy": "optimal",
        "num_speculative_tokens": 2,
        "budget": 4,
        "acceptance_prob": [0.5, 0.5],
        "rejection_curve": LAW,
        "all_accepted_curve": ALL_ACCEPTED,
    }
    with pytest.raises(DomainError):
        allocate_fan_out(**(good | bad))


@pytest.mark.parametrize("kind", ["jit", "none", "random", "ngram"])
def test_a_plain_fallback_is_its_own_action(kind) -> None:
    assert choose_fallback(kind, 3, 8) == kind


def test_threshold_drafts_just_in_time_when_enough_requests_miss() -> None:
    assert [choose_fallback("threshold", misses, 8, threshold=3) for misses in (1, 2, 3, 8)] == [
        "none",
        "none",
        "jit",
        "jit",
    ]


def test_auto_drafts_just_in_time_below_the_critical_batch_size() -> None:
    assert choose_fallback("auto", 1, 5, critical_batch_size=5.4) == "jit"
    assert choose_fallback("auto", 1, 6, critical_batch_size=5.4) == "none"
    assert choose_fallback("auto", 1, 10**6, critical_batch_size=math.inf) == "jit"
    assert choose_fallback("auto", 1, 1, critical_batch_size=0.0) == "none"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("threshold", {}),
        ("threshold", {"threshold": -1}),
        ("auto", {}),
        ("auto", {"critical_batch_size": math.nan}),
    ],
)
def test_a_rule_without_its_number_is_refused(kind, arguments) -> None:
    with pytest.raises(DomainError):
        choose_fallback(kind, 1, 4, **arguments)


def test_an_unknown_fallback_is_refused_with_the_choices() -> None:
    with pytest.raises(DomainError, match="ngram"):
        choose_fallback("retry", 1, 4)  # type: ignore[arg-type]
