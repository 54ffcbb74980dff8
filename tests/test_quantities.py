"""Quantities look the same everywhere: one label, one unit, four significant digits."""

from __future__ import annotations

import math

import pytest

from ssdsim.quantities import Quantity, label_of


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("round_s", 0.0209542, "20.95"),
        ("tokens_per_s", 1234567.8, "1,234,568"),
        ("tokens_per_s", 54.70001, "54.70"),
        ("cache_hit_rate", 0.95281, "0.9528"),
        ("cache_hit_rate", 0.0, "0"),
        ("build_wait_s", 1e-9, "0.00000"),
        ("round_s", None, "-"),
        ("round_s", math.nan, "-"),
    ],
)
def test_values_are_shown_in_the_unit_of_their_label(name: str, value: float | None, shown: str) -> None:
    assert label_of(name).show(value) == shown


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("round_s", "round (ms)"),
        ("cache_hit_rate", "cache hit rate"),
        ("ttft_s", "time to first token (ms)"),
        ("glue_s", "glue (ms)"),
        ("requests_per_s", "requests (1/s)"),
        ("draft_acceptance_rate", "draft acceptance rate"),
    ],
)
def test_every_quantity_has_a_title_with_its_unit(name: str, title: str) -> None:
    assert label_of(name).title == title


def test_scaling_takes_the_bounds_along() -> None:
    assert Quantity(2.0, 1.0, 4.0).scaled(3.0) == Quantity(6.0, 3.0, 12.0)
    assert Quantity(2.0).scaled(3.0) == Quantity(6.0, None, None)
