"""Acceptance: three quantities kept apart, and what heterogeneity does to the mean length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsim.errors import DomainError
from ssdsim.theory import acceptance

POSITIONS = st.lists(st.floats(0.0, 1.0), min_size=0, max_size=8)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(acceptance_prob=POSITIONS)
def test_outcome_weights_are_a_distribution_whose_mean_is_the_acceptance_length(acceptance_prob) -> None:
    weights = acceptance.outcome_weights(acceptance_prob)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (weights >= -1e-15).all()
    mean = float(np.sum(weights * np.arange(1, weights.size + 1)))
    assert acceptance.mean_acceptance_length_per_position(acceptance_prob) == pytest.approx(mean, abs=1e-12)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(acceptance_prob=st.floats(0.0, 1.0), num_tokens=st.integers(0, 12))
def test_the_geometric_form_is_the_general_one_with_equal_positions(acceptance_prob, num_tokens) -> None:
    general = acceptance.mean_acceptance_length_per_position([acceptance_prob] * num_tokens)
    assert acceptance.mean_acceptance_length(acceptance_prob, num_tokens) == pytest.approx(general, rel=1e-12)


def test_certain_acceptance_emits_every_token_and_the_limit_is_smooth() -> None:
    assert acceptance.mean_acceptance_length(1.0, 7) == 8.0
    assert acceptance.mean_acceptance_length(1 - 1e-14, 7) == pytest.approx(8.0, rel=1e-12)
    assert acceptance.mean_acceptance_length(0.0, 7) == 1.0


def test_the_mean_length_rises_with_acceptance_and_with_lookahead() -> None:
    grid = acceptance.mean_acceptance_length(np.linspace(0, 1, 50)[:, None], np.arange(1, 9))
    assert (np.diff(grid, axis=0) > 0).all()
    assert (np.diff(grid, axis=1) >= 0).all()


def test_accepted_over_drafted_is_not_the_acceptance_probability() -> None:
    # THEORY 1: a = .8, K = 5 reports .538
    length = acceptance.mean_acceptance_length(0.8, 5)
    rate = acceptance.draft_acceptance_rate(length, 5)
    assert rate == pytest.approx(0.538, abs=5e-4)
    assert acceptance.acceptance_prob_from_draft_acceptance_rate(rate, 5) == pytest.approx(0.8, abs=1e-12)


def test_conversions_are_inverse() -> None:
    conditional = [0.9, 0.8, 0.5]
    rates = acceptance.survival(conditional)[1:]
    np.testing.assert_allclose(rates, [0.9, 0.72, 0.36])
    np.testing.assert_allclose(acceptance.acceptance_prob_from_rates(rates), conditional)
    assert acceptance.acceptance_prob_from_rates([0.5, 0.0, 0.0]).tolist() == [0.5, 0.0, 0.0]


def test_positions_are_the_last_axis() -> None:
    grid = np.array([[0.9, 0.8], [0.5, 0.5]])
    assert acceptance.outcome_weights(grid).shape == (2, 3)
    np.testing.assert_allclose(acceptance.mean_acceptance_length_per_position(grid), [2.62, 1.75])


def test_theorem_1_is_one_minus_the_total_variation_distance() -> None:
    rng = np.random.default_rng(3)
    p_target, p_draft = rng.dirichlet(np.ones(5), 20), rng.dirichlet(np.ones(5), 20)
    expected = 1 - 0.5 * np.abs(p_target - p_draft).sum(-1)
    np.testing.assert_allclose(acceptance.acceptance_prob(p_target, p_draft), expected)


def test_the_beta_quadrature_has_the_moments_of_the_beta_distribution() -> None:
    shape = acceptance.beta_shape(0.8, 0.12)
    nodes, weights = acceptance.beta_quadrature(*shape)
    mean = float(weights @ nodes)
    assert mean == pytest.approx(0.8, abs=1e-12)
    assert float(weights @ (nodes - mean) ** 2) == pytest.approx(0.12**2, abs=1e-12)


@pytest.mark.parametrize(("spread", "K", "percent"), [(0.12, 5, 4.6), (0.2, 5, 11.4), (0.12, 7, 8.0), (0.2, 7, 20.0)])
def test_acceptance_drawn_per_round_lengthens_the_mean(spread, K, percent) -> None:
    # THEORY 3, mean .8: the true rate against the plug-in value
    drawn = acceptance.mean_acceptance_length_beta(*acceptance.beta_shape(0.8, spread), K)
    gain = 100 * (drawn / acceptance.mean_acceptance_length(0.8, K) - 1)
    assert gain == pytest.approx(percent, abs=0.5 if K == 7 else 0.1)


@pytest.mark.parametrize(("spread", "percent"), [(0.12, -2.8), (0.2, -6.9)])
def test_acceptance_kept_by_a_request_shortens_the_mean(spread, percent) -> None:
    # THEORY 3, mean .8, K = 5
    kept = acceptance.harmonic_mean_acceptance_length_beta(*acceptance.beta_shape(0.8, spread), 5)
    assert 100 * (kept / acceptance.mean_acceptance_length(0.8, 5) - 1) == pytest.approx(percent, abs=0.05)


def two_regimes(mean_stay: float) -> list[list[float]]:
    leave = 1 / mean_stay
    return [[1 - leave, leave], [leave, 1 - leave]]


def test_the_clock_of_the_regime_decides_the_mean_length() -> None:
    # THEORY 7.1: acceptance .95 / .5, K = 5
    def length(mean_stay: float) -> float:
        return acceptance.mean_acceptance_length_regimes([0.95, 0.5], two_regimes(mean_stay), 5)

    assert length(2) == pytest.approx(acceptance.mean_acceptance_length(0.725, 5), rel=1e-12)  # no memory: 3.108
    assert length(5) == pytest.approx(2.98, abs=5e-3)
    assert length(20) == pytest.approx(2.90, abs=5e-3)
    lengths = acceptance.mean_acceptance_length(np.array([0.95, 0.5]), 5)
    assert length(1e6) == pytest.approx(2 / np.sum(1 / lengths), rel=1e-4)  # kept for ever: harmonic, 2.87
    assert np.mean(lengths) == pytest.approx(3.63, abs=5e-3)  # drawn per round


def test_one_regime_is_the_geometric_form() -> None:
    one = acceptance.mean_acceptance_length_regimes([0.8], [[1.0]], 5)
    assert one == pytest.approx(acceptance.mean_acceptance_length(0.8, 5), rel=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: acceptance.acceptance_prob([1.2, -0.2], [0.5, 0.5]),
        lambda: acceptance.acceptance_prob([0.5, 0.4], [0.5, 0.5]),
        lambda: acceptance.acceptance_prob([0.5, 0.5], [0.2, 0.3, 0.5]),
        lambda: acceptance.mean_acceptance_length(1.01, 5),
        lambda: acceptance.mean_acceptance_length(0.8, 2.5),
        lambda: acceptance.mean_acceptance_length(0.8, -1),
        lambda: acceptance.mean_acceptance_length(True, 5),
        lambda: acceptance.per_position([0.5, 0.5], 3),
        lambda: acceptance.survival(0.5),
        lambda: acceptance.acceptance_prob_from_rates([0.5, 0.6]),
        lambda: acceptance.draft_acceptance_rate(7.0, 5),
        lambda: acceptance.draft_acceptance_rate(0.5, 5),
        lambda: acceptance.draft_acceptance_rate(1.0, 0),
        lambda: acceptance.beta_shape(0.8, 0.41),
        lambda: acceptance.mean_acceptance_length_beta(0.0, 1.0, 3),
        lambda: acceptance.mean_acceptance_length_regimes([0.9, 0.5], [[1.0, 0.0], [0.0, 1.0]], 3),
        lambda: acceptance.mean_acceptance_length_regimes([0.9, 0.5], [[1.0]], 3),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()


@pytest.mark.parametrize(("mean", "sd"), [(0.8, 0.1), (0.5, 0.25), (0.95, 0.05)])
def test_the_spread_has_the_mean_and_deviation_asked_for(mean: float, sd: float) -> None:
    """Over a grid of 20,000 quantiles: a midpoint rule, good to 1e-4."""
    values = acceptance.acceptance_at_quantiles(np.array([mean]), sd, (np.arange(20_000) + 0.5) / 20_000)[:, 0]
    assert values.mean() == pytest.approx(mean, abs=1e-4)
    assert values.std() == pytest.approx(sd, abs=1e-3)


def test_certainty_has_no_spread() -> None:
    assert acceptance.acceptance_at_quantiles(np.array([1.0]), 0.1, np.array([0.0, 0.5]))[:, 0].tolist() == [1.0, 1.0]
    assert acceptance.acceptance_at_quantiles(np.array([0.0]), 0.1, np.array([0.0, 0.5]))[:, 0].tolist() == [0.0, 0.0]
