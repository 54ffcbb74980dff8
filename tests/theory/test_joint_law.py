"""Count laws against enumeration of every outcome of a small batch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory.joint_law import (
    batch_slots,
    binomial_terms,
    joint_counts,
    joint_counts_of_rows,
    misses_given_drafted,
)


def enumerated(rows: np.ndarray, counted: list[list[int]]) -> np.ndarray:
    """The joint law of counts, by listing the class of every slot."""
    slots, classes = rows.shape
    law = np.zeros((slots + 1,) * len(counted))
    for outcome in product(range(classes), repeat=slots):
        where = tuple(sum(o in members for o in outcome) for members in counted)
        law[where] += np.prod([rows[slot, o] for slot, o in enumerate(outcome)])
    return law


@pytest.mark.parametrize("counted", [[[0]], [[0, 1], [1, 3]], [[0, 1], [1], [3, 4]]])
def test_joint_counts_are_what_enumeration_of_all_outcomes_gives(counted: list[list[int]]) -> None:
    class_prob = np.array([[0.1, 0.2, 0.3, 0.25, 0.15], [0.5, 0.0, 0.1, 0.2, 0.1]])  # the second sums to .9
    law = joint_counts(4, class_prob, counted)
    for point, probs in enumerate(class_prob):
        assert law[point] == pytest.approx(enumerated(np.tile(probs, (4, 1)), counted), abs=1e-15)


def test_rows_that_differ_give_the_poisson_binomial_law() -> None:
    rows = np.random.default_rng(3).dirichlet(np.ones(4), size=5)
    assert joint_counts_of_rows(rows, [[0, 1], [1, 3]]) == pytest.approx(
        enumerated(rows, [[0, 1], [1, 3]]), abs=1e-15
    )


def test_binomial_terms_sum_to_the_power_of_the_sum_even_for_the_largest_batch() -> None:
    first, second = np.array([0.3, 0.02, 1.0, 0.0]), np.array([0.6, 0.98, 0.0, 1.0])
    for slots in (1, 7, 64, 1000):
        terms = binomial_terms(slots, first, second)
        assert terms.sum(axis=-1) == pytest.approx((first + second) ** slots, rel=1e-12)


def test_misses_given_drafted_mix_two_binomials() -> None:
    hit_p, hit_b = np.array([0.7, 1.0]), np.array([0.2, 0.4])
    law = misses_given_drafted(3, hit_p, hit_b)
    for point, n in product(range(2), range(4)):
        rows = np.array([[hit, 1 - hit] for hit in [hit_p[point]] * n + [hit_b[point]] * (3 - n)])
        assert law[point, n] == pytest.approx(enumerated(rows, [[1]]), abs=1e-15)


@pytest.mark.parametrize("batch_size", [0, -1, 1001, True, 2.0])
def test_batches_outside_1_to_1000_are_refused(batch_size: object) -> None:
    with pytest.raises(DomainError, match="batch_size"):
        batch_slots(batch_size)
