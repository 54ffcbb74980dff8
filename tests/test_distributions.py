"""Length distributions: exact law and samples agree, because samples are drawn from that very law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ssdsim.distributions import Constant, Empirical, Geometric, LogNormal, Uniform, mean_length, sample_lengths

LAWS = [
    Constant(value=7),
    Uniform(low=3, high=9),
    Geometric(mean=20.0, max=64),
    LogNormal(mean=100.0, cv=1.2, max=512),
    Empirical(values=(5, 2, 5, 9), weights=(1.0, 2.0, 3.0, 4.0)),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_a_law_is_a_distribution_over_increasing_positive_lengths(law) -> None:
    values, probs = law.pmf()
    assert values[0] >= 1
    assert np.all(np.diff(values) > 0)
    assert np.all(probs >= 0)
    assert probs.sum() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_equally_spaced_uniforms_reproduce_the_law(law) -> None:
    """n midpoints: the share of a value differs from its probability by at most 1/n at each end of its interval."""
    values, probs = law.pmf()
    n = 100_000
    drawn = sample_lengths(law, (np.arange(n) + 0.5) / n)
    shares = np.array([(drawn == value).mean() for value in values])
    assert np.abs(shares - probs).max() <= 2 / n
    assert drawn.mean() == pytest.approx(mean_length(law), rel=1e-3)


@given(st.floats(0, 1, exclude_max=True))
def test_any_uniform_gives_a_length_of_the_law(uniform: float) -> None:
    for law in LAWS:
        assert sample_lengths(law, [uniform])[0] in law.pmf()[0]


def test_means_follow_from_the_parameters() -> None:
    assert mean_length(Uniform(low=3, high=9)) == pytest.approx(6)
    assert mean_length(Empirical(values=(5, 2, 5, 9), weights=(1.0, 2.0, 3.0, 4.0))) == pytest.approx(6.0)
    assert mean_length(Geometric(mean=20.0, max=5000)) == pytest.approx(20.0)
    stop = 1 / 20
    assert mean_length(Geometric(mean=20.0, max=64)) == pytest.approx((1 - (1 - stop) ** 64) / stop)
    assert mean_length(LogNormal(mean=100.0, cv=0.5, max=5000)) == pytest.approx(100.0, rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(value=0),
        lambda: Constant(value=True),
        lambda: Uniform(low=3, high=2),
        lambda: Geometric(mean=0.5, max=8),
        lambda: LogNormal(mean=10.0, cv=0.0, max=8),
        lambda: Empirical(values=()),
        lambda: Empirical(values=(1, 2), weights=(1.0,)),
        lambda: Empirical(values=(1, 2), weights=(1.0, -1.0)),
        lambda: Constant(value=3, extra=1),
    ],
)
def test_impossible_laws_are_refused(make) -> None:
    with pytest.raises(ValidationError):
        make()
