"""One scalar from one observation."""

from __future__ import annotations

import math

import pytest

from ssdsim.errors import DomainError
from ssdsim.planning.scalar_fit import calibrate_scalar


def test_the_observed_value_is_predicted_at_the_scalar_found() -> None:
    assert calibrate_scalar(math.exp, 2.0, 0.0, 1.0) == pytest.approx(math.log(2.0), abs=1e-8)


def test_a_falling_prediction_serves_as_well() -> None:
    assert calibrate_scalar(lambda x: 1 / x, 4.0, 0.1, 1.0) == pytest.approx(0.25, abs=1e-8)


def test_an_end_of_the_bracket_is_an_answer() -> None:
    assert calibrate_scalar(lambda x: x, 1.0, 1.0, 2.0) == 1.0


def test_what_no_value_in_the_range_explains_is_refused_with_what_can_be_reached() -> None:
    with pytest.raises(DomainError, match=r"predictions at the ends of the bracket, 1 and 2: widen \[1, 2\]"):
        calibrate_scalar(lambda x: x, 3.0, 1.0, 2.0)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_an_empty_or_infinite_bracket_is_refused(low: float, high: float) -> None:
    with pytest.raises(DomainError, match="two finite numbers"):
        calibrate_scalar(lambda x: x, 1.0, low, high)


def test_a_prediction_that_is_no_number_is_refused() -> None:
    with pytest.raises(DomainError, match="observed"):
        calibrate_scalar(lambda x: math.nan, 1.0, 0.0, 2.0)
