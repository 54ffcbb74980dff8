"""Hit curves: h(0) = 0, never decreasing, integers only, and concave exactly where the condition says."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory.fan_out import max_concave_prefactor
from ssdsim.theory.hit_curve import AllAccepted, HitCurve, PowerLaw, ShiftedPowerLaw, Table, curves_by_position

CURVES = [
    PowerLaw(1.0),
    PowerLaw(0.5, 0.4),
    ShiftedPowerLaw(2.0, 3.0),
    Table((0.0, 0.6, 0.7, 0.75)),
    AllAccepted(0.8, PowerLaw(1.0, 0.5)),
]


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_starts_at_zero_never_falls_and_stays_below_one(curve: HitCurve) -> None:
    values = np.asarray(curve.hit_prob(np.arange(200)))
    assert values[0] == 0.0
    assert (np.diff(values) >= 0).all()
    assert values[-1] <= 1.0


@pytest.mark.parametrize("curve", CURVES)
def test_increments_add_up_to_the_curve(curve: HitCurve) -> None:
    np.testing.assert_allclose(np.cumsum(curve.increments(20)), curve.hit_prob(np.arange(1, 21)), atol=1e-15)
    assert curve.increments(0).size == 0


@pytest.mark.parametrize("curve", CURVES)
def test_a_scalar_gives_a_float_and_an_array_its_shape(curve: HitCurve) -> None:
    assert type(curve.hit_prob(2)) is float
    assert np.shape(curve.hit_prob([[1, 2], [3, 0]])) == (2, 2)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("bad", [-1, 0.5, 2.0, True, [1, -1], float("nan")])
def test_a_fan_out_is_a_non_negative_integer(curve: HitCurve, bad) -> None:
    with pytest.raises(DomainError, match="fan_out"):
        curve.hit_prob(bad)


@pytest.mark.parametrize("curve", CURVES)
def test_equal_curves_are_one_key(curve: HitCurve) -> None:
    assert {curve: 1}[type(curve)(*(getattr(curve, name) for name in curve.__slots__))] == 1


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_a_power_law_is_concave_up_to_the_largest_concave_prefactor(exponent: float) -> None:
    edge = max_concave_prefactor(exponent)
    assert PowerLaw(exponent, edge).is_concave(50)
    assert not PowerLaw(exponent, edge + 1e-6).is_concave(50)
    # THEORY 4.2 quotes .774, .667, .607 for these exponents (the first is .7735)
    assert edge == pytest.approx({0.5: 0.774, 1.0: 0.667, 1.5: 0.607}[exponent], abs=6e-4)


def test_the_paper_law_is_never_concave_and_the_shifted_law_always() -> None:
    for exponent in (0.1, 1.0, 5.0):
        assert not PowerLaw(exponent).is_concave(3)
        assert ShiftedPowerLaw(exponent, 0.3).is_concave(100)


def test_the_all_accepted_position_starts_at_the_acceptance_and_then_meets_the_residual() -> None:
    # THEORY 4.3, a = .8, c = .5, r = 1: miss 1-a at F = 1, then (1-a) c (F-1)^-r
    curve = AllAccepted(0.8, PowerLaw(1.0, 0.5))
    np.testing.assert_allclose(1 - np.asarray(curve.hit_prob([1, 2, 3, 12])), [0.2, 0.1, 0.05, 0.1 / 11])


def test_a_table_holds_its_last_value_and_says_how_far_it_was_measured() -> None:
    table = Table([0.0, 0.6, 0.7])  # type: ignore[arg-type]
    assert table.hit_prob([2, 3, 100]).tolist() == [0.7, 0.7, 0.7]
    assert table.max_measured_fan_out == 2
    assert hash(table) == hash(Table((0.0, 0.6, 0.7)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: PowerLaw(0.0),
        lambda: PowerLaw(1.0, 0.0),
        lambda: PowerLaw(1.0, 1.2),
        lambda: PowerLaw(float("nan")),
        lambda: PowerLaw(True),
        lambda: ShiftedPowerLaw(1.0, 0.0),
        lambda: ShiftedPowerLaw(-1.0, 1.0),
        lambda: Table(()),
        lambda: Table((0.1, 0.5)),
        lambda: Table((0.0, 0.5, 0.4)),
        lambda: Table((0.0, 1.1)),
        lambda: AllAccepted(1.1, PowerLaw(1.0)),
        lambda: AllAccepted([0.5], PowerLaw(1.0)),
    ],
)
def test_what_is_not_a_curve_is_refused(build) -> None:
    with pytest.raises(DomainError):
        build()


def test_one_curve_serves_every_position_and_a_list_must_fit() -> None:
    law = PowerLaw(1.0)
    assert curves_by_position(law, 3) == (law, law, law)
    with pytest.raises(DomainError, match="curves"):
        curves_by_position([law, law], 3)
