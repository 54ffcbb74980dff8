"""Trees: outcomes are nodes, a chain is the special case."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory import acceptance, fan_out
from ssdsim.theory.hit_curve import PowerLaw
from ssdsim.theory.trees import TokenTree

# root -> 1, 2; 1 -> 3, 4; 3 -> 5
TREE = TokenTree(parents=(0, 0, 1, 1, 3), acceptance_prob=(0.6, 0.3, 0.5, 0.2, 0.9))


def test_a_chain_has_the_weights_and_the_length_of_ordinary_speculation() -> None:
    accept = [0.9, 0.8, 0.5]
    chain = TokenTree.chain(accept)
    np.testing.assert_allclose(chain.outcome_weights(), acceptance.outcome_weights(accept))
    assert chain.mean_acceptance_length() == pytest.approx(acceptance.mean_acceptance_length_per_position(accept))
    assert (chain.num_speculative_tokens, chain.num_query_tokens) == (3, 4)


def test_verification_ends_at_exactly_one_node() -> None:
    # by hand: reach 1, .6, .3, .3, .12, .27; ends there unless a child is accepted
    np.testing.assert_allclose(TREE.reach(), [1, 0.6, 0.3, 0.3, 0.12, 0.27])
    np.testing.assert_allclose(TREE.outcome_weights(), [0.1, 0.18, 0.3, 0.03, 0.12, 0.27])
    assert TREE.outcome_weights().sum() == pytest.approx(1.0)


def test_the_mean_length_counts_depth_plus_the_bonus_token() -> None:
    depth = np.array([0, 1, 1, 2, 2, 3])
    assert TREE.mean_acceptance_length() == pytest.approx(float(TREE.outcome_weights() @ (depth + 1)))


def test_a_second_branch_lengthens_a_chain() -> None:
    longer = TokenTree(parents=(0, 0), acceptance_prob=(0.8, 0.1))
    assert longer.mean_acceptance_length() > TokenTree.chain([0.8]).mean_acceptance_length()


def test_greedy_over_nodes_is_the_best_allocation() -> None:
    weights, curve, budget = TREE.outcome_weights(), PowerLaw(1.0, 0.5), 4
    best = max(
        fan_out.hit_prob(weights, curve, counts)
        for counts in itertools.product(range(budget + 1), repeat=6)
        if sum(counts) == budget
    )
    assert fan_out.hit_prob(weights, curve, fan_out.greedy(weights, curve, budget)) == pytest.approx(best)


def test_an_empty_tree_emits_the_bonus_token() -> None:
    nothing = TokenTree.chain([])
    assert nothing.outcome_weights().tolist() == [1.0]
    assert nothing.mean_acceptance_length() == 1.0


@pytest.mark.parametrize(
    ("parents", "accept"),
    [
        ((0, 2), (0.5, 0.5)),  # its own parent
        ((0, -1), (0.5, 0.5)),
        ((0,), (0.5, 0.5)),
        ((0, 0), (0.6, 0.5)),  # siblings exclude each other
        ((0,), (1.2,)),
        ((0.0,), (0.5,)),
    ],
)
def test_what_is_not_a_tree_is_refused(parents, accept) -> None:
    with pytest.raises(DomainError):
        TokenTree(parents, accept)
