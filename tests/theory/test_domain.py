"""Domain checks: what is a number, and how a refusal names the culprit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ssdsim.errors import DomainError, InputError
from ssdsim.theory import domain


def test_scalars_come_back_as_python_numbers_and_arrays_as_float64_or_int64() -> None:
    assert type(domain.probability("p", 1)) is float
    assert type(domain.integer("K", np.int32(3), 0)) is int
    assert domain.non_negative("t_s", [0, 1]).dtype == np.float64
    assert domain.integer("F", np.array([1, 2], dtype=np.int16), 0).dtype == np.int64


@pytest.mark.parametrize("bad", [True, np.True_, math.nan, math.inf, -math.inf, "0.5", None, 0.5j, [True, 0.5]])
@pytest.mark.parametrize("check", [domain.probability, domain.non_negative, domain.positive])
def test_what_is_not_a_finite_number_is_refused(check, bad) -> None:
    with pytest.raises(DomainError, match=r"^x"):
        check("x", bad)


@pytest.mark.parametrize("bad", [True, 2.5, 2.0, math.nan, "2", None, 0, [1, 2.0], np.array([3.0])])
def test_an_integer_is_an_integer_and_not_a_float_that_looks_like_one(bad) -> None:
    with pytest.raises(DomainError, match="integer >= 1"):
        domain.integer("K", bad, 1)


def test_a_refusal_names_the_first_offending_entry() -> None:
    with pytest.raises(DomainError) as caught:
        domain.probability("acceptance_prob", [[0.5, 0.5], [0.5, 1.5]])
    assert caught.value.field == "acceptance_prob[1, 1]"
    assert caught.value.got == 1.5
    assert isinstance(caught.value, InputError)


def test_the_edges_belong_to_the_domain() -> None:
    assert domain.probability("p", [0.0, 1.0]).tolist() == [0.0, 1.0]
    assert domain.non_negative("t_s", 0.0) == 0.0
    assert domain.at_least("E", 1.0, 1.0) == 1.0
    with pytest.raises(DomainError, match="> 0"):
        domain.positive("t_s", [1.0, 0.0])


def test_a_distribution_has_entries_in_range_and_sums_to_one() -> None:
    assert domain.distribution("p", [[0.25, 0.75], [1.0, 0.0]]).shape == (2, 2)
    for bad in ([1.2, -0.2], [0.5, 0.4], [], 1.0):
        with pytest.raises(DomainError):
            domain.distribution("p", bad)


def test_shapes_are_checked_where_a_formula_takes_one_number_or_one_list() -> None:
    assert domain.vector("a", domain.probability("a", [0.5, 0.5]), 2).tolist() == [0.5, 0.5]
    for call in (
        lambda: domain.vector("a", domain.probability("a", [0.5]), 2),
        lambda: domain.vector("a", 0.5),
        lambda: domain.scalar("a", np.array([0.5])),
        lambda: domain.count("K", [1, 2], 0),
        lambda: domain.probability("a", [[0.5], [0.5, 0.5]]),
    ):
        with pytest.raises(DomainError):
            call()
