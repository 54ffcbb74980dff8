"""Draft devices: what they can build, and the joint optimum of THEORY 7.3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exact_systems import ALL_ACCEPTED, CURVE

from ssdsim.errors import DomainError
from ssdsim.theory.acceptance import outcome_weights
from ssdsim.theory.draft_devices import DraftPair, DraftPass, DraftSearch, joint_optimum, miss_prob, sd_rate
from ssdsim.theory.fan_out import effective_positions
from ssdsim.theory.hit_curve import PowerLaw

PAIR = DraftPair(
    acceptance_prob=0.8, rejection_curve=CURVE, all_accepted_curve=ALL_ACCEPTED, window_s=1.0, target_gpus=4
)
DRAFT = DraftPass(step_s=0.06, branch_s=0.0015)
"""t0 and t1 of THEORY 3's row "p_hit fixed while b grows on one draft GPU"; no free branches."""
LOOKAHEADS, BUDGETS = range(1, 16), range(1, 41)
BEST_SD = sd_rate(0.8, LOOKAHEADS, DRAFT, 1.0)


@pytest.mark.parametrize(
    ("batch_size", "num_tokens", "budget", "over_sd"),
    [(1, 8, 34, 1.40), (4, 6, 13, 1.16), (16, 7, 2, 1.00), (64, 5, 1, 0.97)],
)
def test_one_draft_device_gains_less_and_less_as_the_batch_grows(
    batch_size: int, num_tokens: int, budget: int, over_sd: float
) -> None:
    """THEORY 7.3 and 3: builds that end within the window, as the paper demands; per GPU 4 of 5 remain."""
    search = DraftSearch(lookaheads=LOOKAHEADS, budgets=BUDGETS, late_builds=False)
    plan = joint_optimum(PAIR, DRAFT, search, batch_size=batch_size)
    assert (plan.num_speculative_tokens, plan.speculation_budget) == (num_tokens, budget)
    assert plan.rate_per_sequence / BEST_SD == pytest.approx(over_sd, abs=0.005)
    assert plan.rate_per_gpu == pytest.approx(plan.rate_per_sequence * batch_size / 5)
    assert plan.build_s <= 1.0


def test_a_slightly_late_build_can_be_the_best_one() -> None:
    plan = joint_optimum(PAIR, DRAFT, DraftSearch(lookaheads=LOOKAHEADS, budgets=BUDGETS), batch_size=4)
    assert plan.build_s > 1.0
    on_time = DraftSearch(lookaheads=LOOKAHEADS, budgets=BUDGETS, late_builds=False)
    assert plan.rate_per_sequence > joint_optimum(PAIR, DRAFT, on_time, batch_size=4).rate_per_sequence


def test_more_devices_raise_the_rate_of_a_sequence_but_not_that_of_a_gpu() -> None:
    search = DraftSearch(lookaheads=LOOKAHEADS, budgets=BUDGETS, num_draft_devices=(1, 2, 4))
    assert joint_optimum(PAIR, DRAFT, search, batch_size=8).num_draft_devices == 4
    assert joint_optimum(PAIR, DRAFT, search, batch_size=8, per_gpu=True).num_draft_devices == 1


def test_the_largest_budget_that_fits_fills_the_window_exactly() -> None:
    draft = DraftPass(step_s=0.05, branch_s=0.002, free_branches=16)
    for num_tokens, batch_size, devices in ((4, 1, 1), (6, 8, 2), (9, 3, 4)):
        budget = draft.max_budget(num_tokens, batch_size, 1.0, devices)
        assert draft.build_s(num_tokens, batch_size * budget / devices) == pytest.approx(1.0)
    assert draft.max_budget(30, 1, 1.0) == 0.0


def test_branches_within_the_free_width_cost_nothing() -> None:
    draft = DraftPass(step_s=0.05, branch_s=0.002, free_branches=16)
    assert draft.build_s(4, 16) == draft.build_s(4, 0) == pytest.approx(0.25)
    assert draft.jit_s(4) == pytest.approx(0.2)


def test_misses_fall_with_devices_as_the_power_law_says() -> None:
    """c (N_eff b / (G B_1))^r: doubling G halves them at r = 1, and takes a factor sqrt 2 at r = .5."""
    positions = effective_positions(outcome_weights([0.8] * 5), 1.0)
    one, two = (miss_prob(0.5, 1.0, positions, 4, 96, devices) for devices in (1, 2))
    assert one == pytest.approx(0.5 * positions * 4 / 96)
    assert two == pytest.approx(one / 2)
    assert miss_prob(0.5, 0.5, positions, 4, 96, 1) / miss_prob(0.5, 0.5, positions, 4, 96, 2) == pytest.approx(
        2**0.5
    )
    assert miss_prob(1.0, 1.0, positions, 4, 1, 1) == 1.0


def test_a_curve_that_is_not_concave_is_allocated_by_dynamic_programming() -> None:
    """The law c = 1 gives nothing at F = 1: the integer optimum of K = 5, r = 1, B = 6 misses .648 (THEORY 3)."""
    law = PowerLaw(exponent=1.0)
    paper = replace(PAIR, rejection_curve=law, all_accepted_curve=law)
    search = DraftSearch(lookaheads=(5,), budgets=(6,), fallbacks=("jit",))
    plan = joint_optimum(paper, DraftPass(step_s=0.1, branch_s=1e-9), search, batch_size=1)
    tokens = (1 - 0.8**6) / 0.2
    assert plan.rate_per_sequence == pytest.approx(tokens / (1 + 0.648 * 0.5), rel=1e-3)


def test_an_empty_search_and_impossible_times_are_refused() -> None:
    with pytest.raises(DomainError, match="search"):
        joint_optimum(PAIR, DRAFT, DraftSearch(lookaheads=(), budgets=BUDGETS), batch_size=1)
    with pytest.raises(DomainError, match="step_s"):
        DraftPass(step_s=0.0, branch_s=0.001)
    with pytest.raises(DomainError, match="budgets"):
        joint_optimum(PAIR, DRAFT, DraftSearch(lookaheads=(3,), budgets=(0,)), batch_size=1)
