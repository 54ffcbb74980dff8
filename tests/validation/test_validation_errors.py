"""Errors, causes, drift and choices on numbers that are small enough to check by hand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from ssdsim.validation.errors import (
    Point,
    causes_of,
    choices,
    drift_of,
    error_of,
    error_without_drift,
    errors_by_metric,
    log_rate_at,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)


def point(name: str, measured: float, predicted: float, **fields: object) -> Point:
    """A point of which only the rate is known."""
    defaults = {"mode": "ssd", "batch_size": 1, "temperature": 0.0, "swapped": {}}
    return Point(
        name=name,
        measured={"tokens_per_s": measured},
        predicted={"exact": {"tokens_per_s": predicted}},
        **{**defaults, **fields},
    )


def anchors(rates: list[float]) -> list[tuple[datetime, dict[str, float]]]:
    """One anchor every half hour."""
    return [(_START + timedelta(minutes=30 * i), {"tokens_per_s": rate}) for i, rate in enumerate(rates)]


def test_rates_are_compared_by_ratio_and_shares_by_difference() -> None:
    assert error_of("tokens_per_s", 110.0, 100.0) == pytest.approx(0.1)
    assert error_of("cache_hit_rate", 0.55, 0.50) == pytest.approx(0.05)


def test_errors_are_summed_up_over_points() -> None:
    points = [point("a", 100, 110), point("b", 100, 98), point("c", 100, 100)]
    found = errors_by_metric(points, "exact")["tokens_per_s"]
    assert found.mean == pytest.approx(0.04)
    assert found.median == pytest.approx(0.02)
    assert (found.worst, found.worst_point) == (pytest.approx(0.1), "a")
    assert found.bias == pytest.approx(0.08 / 3)
    assert found.num_points == 3


def test_a_method_that_refuses_a_point_is_not_judged_there() -> None:
    refused = Point(
        name="b",
        mode="ssd",
        batch_size=1,
        temperature=0.0,
        measured={"tokens_per_s": 1.0},
        predicted={"exact": {}},
        swapped={},
    )
    assert errors_by_metric([point("a", 100, 90), refused], "exact")["tokens_per_s"].num_points == 1
    assert errors_by_metric([refused], "exact") == {}


def test_the_causes_of_a_miss_add_up_to_it() -> None:
    swapped = {"acceptance": 104.0, "hits": 99.0, "latency": 95.0, "all": 97.0}
    causes = causes_of(point("a", 96.0, 100.0, swapped=swapped, drift=-0.02))
    parts = [causes[name] for name in ("acceptance", "hits", "latency", "drift", "together", "model")]
    assert sum(parts) == pytest.approx(causes["total"]) == pytest.approx(math.log(0.96))
    assert causes["latency"] == pytest.approx(math.log(0.95) + 0.02)


def test_the_drift_can_be_taken_out_of_an_error() -> None:
    # The machine was twice as slow then, which the prediction does not know.
    slowed = point("a", 50.0, 100.0, drift=math.log(0.5))
    assert errors_by_metric([slowed], "exact")["tokens_per_s"].mean == pytest.approx(1.0)
    assert error_without_drift([slowed], "exact") == pytest.approx(0.0)
    assert error_without_drift([slowed], "paper") is None


def test_drift_is_found_and_told_from_noise() -> None:
    steady = drift_of(anchors([100.0 * math.exp(-0.1 * i / 2) for i in range(5)]))
    assert steady.trend_per_hour == pytest.approx(-0.1)
    assert steady.noise["tokens_per_s"] == pytest.approx(0.0, abs=1e-12)
    shaken = drift_of(anchors([100.0, 102.0, 98.0, 102.0, 98.0, 100.0]))
    assert shaken.noise["tokens_per_s"] > 0.015
    assert abs(shaken.trend_per_hour) < 2 * shaken.trend_error


def test_two_anchors_are_too_few_for_a_trend() -> None:
    assert drift_of(anchors([100.0, 101.0])) is None


def test_the_machine_is_judged_by_the_anchors_around_a_run() -> None:
    found = log_rate_at(_START + timedelta(minutes=15), anchors([100.0, 110.0, 50.0]))
    assert found == pytest.approx((math.log(100) + math.log(110)) / 2)


def test_a_choice_costs_what_the_chosen_point_is_slower() -> None:
    points = [point("a", 100, 120), point("b", 104, 110), point("c", 50, 60), point("d", 300, 10, batch_size=4)]
    (choice,) = choices(points, "exact")
    assert (choice.chosen, choice.best, choice.num_points) == ("a", "b", 3)
    assert choice.regret == pytest.approx(4 / 104)
