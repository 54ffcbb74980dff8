"""Fan-out allocation: Theorem 12 as printed, and the integer optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsim.errors import DomainError
from ssdsim.theory import fan_out
from ssdsim.theory.acceptance import outcome_weights, per_position
from ssdsim.theory.hit_curve import AllAccepted, PowerLaw, ShiftedPowerLaw, Table

ACCEPTANCE, PREFACTOR = 0.8, 0.5

# THEORY 4.5: K, r, B, Theorem 12 rounded, its miss, optimum with the all-accepted curve, its miss.
# (K = 7, r = 1, B = 16 is printed there with a first 2, which sums to 15; the printed miss is that of a 3.)
TABLE_4_5 = [
    (5, 0.5, 12, "2 2 2 2 1 3", 0.2729, "3 2 2 2 1 2", 0.2695),
    (5, 0.5, 24, "5 4 3 3 3 6", 0.1895, "5 5 4 3 3 4", 0.1846),
    (5, 1.0, 6, "1 1 1 1 1 1", 0.4017, "2 1 1 1 0 1", 0.3927),
    (5, 1.0, 12, "2 2 2 2 1 3", 0.2049, "2 2 2 2 2 2", 0.2008),
    (5, 1.0, 24, "4 4 4 3 3 6", 0.0983, "5 4 4 4 3 4", 0.0934),
    (5, 1.5, 8, "2 1 1 1 1 2", 0.3043, "2 2 2 1 0 1", 0.2849),
    (7, 1.0, 8, "1 1 1 1 1 1 1 1", 0.4371, "2 2 1 1 1 0 0 1", 0.4061),
    (7, 1.0, 16, "3 2 2 2 2 1 1 3", 0.2209, "3 2 2 2 2 2 1 2", 0.2150),
    (7, 1.0, 24, "4 3 3 3 3 2 2 4", 0.1402, "4 4 3 3 3 2 2 3", 0.1370),
    (7, 1.5, 24, "4 3 3 3 3 2 2 4", 0.0828, "4 4 3 3 3 2 2 3", 0.0808),
]


def weights_at(acceptance_prob: float, num_speculative_tokens: int) -> np.ndarray:
    return outcome_weights(per_position(acceptance_prob, num_speculative_tokens))


def with_all_accepted(curve: PowerLaw, acceptance_prob: float, num_speculative_tokens: int) -> list:
    return [curve] * num_speculative_tokens + [AllAccepted(acceptance_prob, curve)]


def brute_force(weights, curves, budget) -> float:
    compositions = (
        counts for counts in itertools.product(range(budget + 1), repeat=len(weights)) if sum(counts) == budget
    )
    return max(fan_out.hit_prob(weights, curves, counts) for counts in compositions)


@pytest.mark.parametrize(("K", "r", "B", "printed", "printed_miss", "best", "best_miss"), TABLE_4_5)
def test_table_of_allocations(K, r, B, printed, printed_miss, best, best_miss) -> None:
    weights = weights_at(ACCEPTANCE, K)
    curves = with_all_accepted(PowerLaw(r, PREFACTOR), ACCEPTANCE, K)
    theorem_12 = fan_out.round_largest_remainder(fan_out.geometric(ACCEPTANCE, K, r, B), B)
    assert " ".join(map(str, theorem_12)) == printed
    assert 1 - fan_out.hit_prob(weights, curves, theorem_12) == pytest.approx(printed_miss, abs=5.1e-5)
    for search in (fan_out.greedy, fan_out.dynamic_programming):
        allocation = search(weights, curves, B)
        assert 1 - fan_out.hit_prob(weights, curves, allocation) == pytest.approx(best_miss, abs=5.1e-5)
    assert " ".join(map(str, fan_out.greedy(weights, curves, B))) == best


def concave_curves() -> st.SearchStrategy:
    power = st.builds(
        lambda r, share: PowerLaw(r, share * float(fan_out.max_concave_prefactor(r))),
        st.floats(0.2, 3.0),
        st.floats(0.05, 1.0),
    )
    shifted = st.builds(ShiftedPowerLaw, st.floats(0.2, 3.0), st.floats(0.1, 5.0))
    return st.one_of(power, shifted)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    acceptance_prob=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3),
    curves=st.lists(concave_curves(), min_size=4, max_size=4),
    budget=st.integers(0, 7),
)
def test_for_concave_curves_greedy_equals_dynamic_programming_equals_brute_force(
    acceptance_prob, curves, budget
) -> None:
    weights = outcome_weights(acceptance_prob)
    curves = curves[: weights.size]
    best = brute_force(weights, curves, budget)
    for search in (fan_out.greedy, fan_out.dynamic_programming, fan_out.optimal):
        assert fan_out.hit_prob(weights, curves, search(weights, curves, budget)) == pytest.approx(best, abs=1e-12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    acceptance_prob=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=2),
    steps=st.lists(st.floats(0.0, 0.3), min_size=1, max_size=4),
    budget=st.integers(0, 7),
)
def test_for_any_curve_dynamic_programming_equals_brute_force(acceptance_prob, steps, budget) -> None:
    weights, curve = outcome_weights(acceptance_prob), Table((0.0, *np.minimum(np.cumsum(steps), 1.0)))
    best = brute_force(weights, curve, budget)
    for search in (fan_out.dynamic_programming, fan_out.optimal):
        assert fan_out.hit_prob(weights, curve, search(weights, curve, budget)) == pytest.approx(best, abs=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(acceptance_prob=st.floats(0.0, 1.0), exponent=st.floats(0.2, 3.0), budget=st.integers(0, 40))
def test_greedy_allocations_are_nested(acceptance_prob, exponent, budget) -> None:
    weights, curve = weights_at(acceptance_prob, 4), PowerLaw(exponent, 0.5)
    smaller, larger = (fan_out.greedy(weights, curve, b) for b in (budget, budget + 1))
    assert sum(smaller) == budget
    assert sum(np.subtract(larger, smaller)) == 1
    assert min(np.subtract(larger, smaller)) == 0


@pytest.mark.parametrize(
    ("budget", "rounded_miss", "best_miss"),
    [(6, 1.000, 0.648), (8, 0.736, 0.568), (12, 0.486, 0.450), (16, None, None), (24, None, None)],
)
def test_rounding_theorem_12_under_its_own_law_misses_more_than_the_integer_optimum(
    budget, rounded_miss, best_miss
) -> None:
    # THEORY 3, a = .8, K = 5, r = 1, c = 1; equal from B = 16 on
    weights, law = weights_at(0.8, 5), PowerLaw(1.0)
    rounded = fan_out.round_largest_remainder(fan_out.geometric(0.8, 5, 1.0, budget), budget)
    miss = 1 - fan_out.hit_prob(weights, law, rounded)
    best = 1 - fan_out.hit_prob(weights, law, fan_out.dynamic_programming(weights, law, budget))
    if rounded_miss is None:
        assert miss == pytest.approx(best, abs=1e-12)
    else:
        assert (miss, best) == (pytest.approx(rounded_miss, abs=5e-4), pytest.approx(best_miss, abs=5e-4))


def test_greedy_stalls_where_the_first_candidate_is_worthless() -> None:
    # THEORY 4.2: miss .817 against .450 at K = 5, r = 1, B = 12, c = 1; `optimal` sees it
    weights, law = weights_at(0.8, 5), PowerLaw(1.0)
    assert 1 - fan_out.hit_prob(weights, law, fan_out.greedy(weights, law, 12)) == pytest.approx(0.817, abs=5e-4)
    assert 1 - fan_out.hit_prob(weights, law, fan_out.optimal(weights, law, 12)) == pytest.approx(0.450, abs=5e-4)


@pytest.mark.parametrize(
    ("acceptance_prob", "budget", "printed", "best"),
    [(0.8, 12, 0.205, 0.201), (0.8, 24, 0.098, 0.093), (0.9, 24, 0.0683, 0.0610), (0.95, 24, 0.0466, 0.0347)],
)
def test_with_the_all_accepted_curve_theorem_12_is_worse_than_uniform(acceptance_prob, budget, printed, best) -> None:
    # THEORY 3, K = 5, r = 1, c = .5
    weights = weights_at(acceptance_prob, 5)
    curves = with_all_accepted(PowerLaw(1.0, 0.5), acceptance_prob, 5)

    def miss(allocation) -> float:
        return 1 - fan_out.hit_prob(weights, curves, allocation)

    rounded = miss(fan_out.round_largest_remainder(fan_out.geometric(acceptance_prob, 5, 1.0, budget), budget))
    digits = 5e-4 if printed > 0.07 else 5e-5
    assert rounded == pytest.approx(printed, abs=digits)
    assert miss(fan_out.optimal(weights, curves, budget)) == pytest.approx(best, abs=digits)
    assert rounded > miss(fan_out.uniform(5, budget))


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_the_closed_form_is_stationary_and_the_optimum_of_its_weights(exponent) -> None:
    allocation = fan_out.geometric(0.8, 5, exponent, 24.0)
    slopes = fan_out.power_law_slope(exponent, allocation)
    assert fan_out.stationarity_gap([0.8] * 5, slopes) < 1e-12
    np.testing.assert_allclose(fan_out.real_optimum(weights_at(0.8, 5), exponent, 24.0), allocation)
    moved = allocation + np.array([0.1, -0.1, 0, 0, 0, 0])
    assert fan_out.stationarity_gap([0.8] * 5, fan_out.power_law_slope(exponent, moved)) > 0.01


def test_a_common_prefactor_does_not_move_the_optimum_but_the_bonus_position_loses_its_boost() -> None:
    # THEORY 4.3: with c_K = (1-a) c the optimum continues the geometric series to K
    weights = weights_at(0.8, 5)
    np.testing.assert_allclose(
        fan_out.real_optimum(weights, 1.0, 24.0, 0.3), fan_out.real_optimum(weights, 1.0, 24.0)
    )
    plain = fan_out.real_optimum(weights, 1.0, 23.0, [0.5] * 5 + [0.1])
    np.testing.assert_allclose(plain[1:] / plain[:-1], 0.8**0.5)


def test_the_last_position_gets_more_than_its_neighbour_iff_acceptance_exceeds_one_half() -> None:
    for acceptance_prob in (0.3, 0.49, 0.51, 0.9):
        last_two = fan_out.geometric(acceptance_prob, 4, 1.0, 10.0)[-2:]
        assert (last_two[1] > last_two[0]) == (acceptance_prob > 0.5)


def test_limits_of_the_closed_form() -> None:
    assert fan_out.geometric(1.0, 3, 1.0, 8.0).tolist() == [0, 0, 0, 8]
    assert fan_out.geometric(0.0, 3, 1.0, 8.0).tolist() == [8, 0, 0, 0]
    # THEORY 1: entries below one occur, where the law is negative
    assert fan_out.geometric(0.8, 7, 0.5, 8.0).min() == pytest.approx(0.57, abs=5e-3)


def test_the_closed_form_is_vectorised() -> None:
    grid = fan_out.geometric(np.array([[0.2], [0.8]]), 5, np.array([0.5, 1.0, 2.0]), 24.0)
    assert grid.shape == (2, 3, 6)
    np.testing.assert_allclose(grid[1, 1], fan_out.geometric(0.8, 5, 1.0, 24.0))


@pytest.mark.parametrize(
    ("K", "expected"), [(5, {0.5: 5.58, 1.0: 5.68, 1.5: 5.75}), (7, {0.5: 7.46, 1.0: 7.59, 1.5: 7.66})]
)
def test_effective_positions_give_the_miss_of_the_real_optimum(K, expected) -> None:
    weights = weights_at(0.8, K)
    for exponent, quoted in expected.items():  # THEORY 4.4
        effective = fan_out.effective_positions(weights, exponent)
        assert effective == pytest.approx(quoted, abs=6e-3)
        optimum = fan_out.real_optimum(weights, exponent, 24.0)
        miss = float(np.sum(weights * optimum**-exponent))
        assert miss == pytest.approx((effective / 24.0) ** exponent, rel=1e-12)


def test_the_papers_law_overstates_the_misses_of_a_curve_with_prefactor() -> None:
    # THEORY 3: K = 5, B = 12, r = 1: Theorem 12's own law against c = .5 and the all-accepted curve, x2.4
    weights = weights_at(0.8, 5)
    curves = with_all_accepted(PowerLaw(1.0, 0.5), 0.8, 5)
    true_miss = 1 - fan_out.hit_prob(weights, curves, fan_out.optimal(weights, curves, 12))
    printed_miss = fan_out.effective_positions(weights, 1.0) / 12
    assert printed_miss / true_miss == pytest.approx(2.4, abs=0.05)


def test_largest_remainder_keeps_the_sum_and_exact_integers() -> None:
    assert fan_out.round_largest_remainder([1.5, 1.5, 1.0], 4) == (2, 1, 1)
    assert fan_out.round_largest_remainder([3 - 1e-12, 1 + 1e-12], 4) == (3, 1)
    with pytest.raises(DomainError, match="sum to the budget"):
        fan_out.round_largest_remainder([1.0, 1.0], 3)


def test_uniform_puts_the_remainder_at_the_front() -> None:
    assert fan_out.uniform(3, 10) == (3, 3, 2, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fan_out.greedy([0.5, 0.5], PowerLaw(1.0), 2.5),
        lambda: fan_out.greedy([0.5, 0.4], PowerLaw(1.0), 2),
        lambda: fan_out.dynamic_programming([0.5, 0.5], PowerLaw(1.0), -1),
        lambda: fan_out.hit_prob([0.5, 0.5], PowerLaw(1.0), [1]),
        lambda: fan_out.hit_prob([0.5, 0.5], [PowerLaw(1.0)], [1, 1]),
        lambda: fan_out.geometric(1.1, 3, 1.0, 8.0),
        lambda: fan_out.geometric(0.5, 3, 0.0, 8.0),
        lambda: fan_out.geometric(0.5, 2.5, 1.0, 8.0),
        lambda: fan_out.real_optimum([0.5, 0.5], 1.0, 8.0, [0.5]),
        lambda: fan_out.real_optimum([1.0, 0.0], 1.0, 8.0, [0.0, 0.5]),
        lambda: fan_out.uniform(-1, 4),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
