"""Cost terms and round costs: linear in what they say, tables exact on their grid, nothing for nobody."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from ssdsim.costs.models import ComponentCosts, RatioCosts
from ssdsim.costs.terms import ConstantTerm, LinearTerm, SumTerm, TableTerm

LINEAR = LinearTerm(base_s=1.0, per_sequence_s=0.1, per_query_token_s=0.01, per_context_token_s=0.001)
TABLE = TableTerm(
    axes=("sequences", "query_tokens"), grid=((1, 4, 8), (1, 16)), seconds=(1.0, 2.0, 1.5, 3.0, 2.0, 5.0)
)
TERMS = [ConstantTerm(seconds=2.0), LINEAR, TABLE, SumTerm(terms=(LINEAR, TABLE), scale=2.0)]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.kind)
def test_without_sequences_a_term_takes_no_time(term) -> None:
    assert term(0, 0, 0) == 0.0
    assert term(np.array([0, 3]), np.array([0, 12]), 100)[0] == 0.0


@pytest.mark.parametrize("term", TERMS, ids=lambda term: term.kind)
def test_a_term_of_arrays_is_the_array_of_terms(term) -> None:
    sequences, queries, context = np.array([[1], [5], [9]]), np.array([1, 7, 40]), np.array([10.0, 100.0, 1000.0])
    whole = np.broadcast_to(term(sequences, queries, context), (3, 3))
    for i, b in enumerate(sequences[:, 0]):
        for j in range(3):
            assert whole[i, j] == pytest.approx(float(term(b, queries[j], context[j])), rel=1e-14)


def test_linear_adds_what_its_fields_say() -> None:
    assert LINEAR(4, 20, 500) == pytest.approx(1.0 + 4 * 0.1 + 20 * 0.01 + 4 * 500 * 0.001)


def test_a_table_is_exact_on_its_grid_and_linear_in_between() -> None:
    assert TABLE(4, 16, 0) == 3.0
    assert TABLE(1, 8.5, 0) == pytest.approx(1.5)  # halfway between 1 and 2
    assert TABLE(6, 16, 0) == pytest.approx(4.0)  # halfway between 3 and 5


def test_beyond_its_grid_a_table_goes_on_with_its_last_slope_and_says_so() -> None:
    assert TABLE(12, 16, 0) == pytest.approx(5.0 + (5.0 - 3.0))
    assert TABLE(0.5, 1, 0) == pytest.approx(1.0)
    assert TABLE.covers(np.array([4, 12]), 16, 0).tolist() == [True, False]


def test_a_table_with_one_point_on_an_axis_is_constant_along_it() -> None:
    term = TableTerm(axes=("sequences",), grid=((4,),), seconds=(2.0,))
    assert term(np.array([1, 4, 100]), 1, 1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "fields",
    [
        {"axes": ("sequences",), "grid": ((1, 1),), "seconds": (1.0, 2.0)},
        {"axes": ("sequences", "sequences"), "grid": ((1, 2), (1, 2)), "seconds": (1.0,) * 4},
        {"axes": ("sequences",), "grid": ((1, 2), (1, 2)), "seconds": (1.0,) * 4},
        {"axes": ("sequences",), "grid": ((1, 2),), "seconds": (1.0,)},
        {"axes": ("sequences",), "grid": ((1, 2),), "seconds": (1.0, -1.0)},
        {"axes": ("sequences",), "grid": ((1, 2),), "seconds": (1.0, float("nan"))},
    ],
)
def test_a_table_that_is_not_a_grid_is_refused(fields) -> None:
    with pytest.raises(ValidationError):
        TableTerm(**fields)


def test_ratios_are_multiples_of_one_verification_whatever_the_width() -> None:
    costs = RatioCosts(unit_s=2.0, build=0.8, jit=0.2, sd_draft=0.5, round_trip=0.1)
    assert costs.verify_s(8, 48, 1000) == 2.0
    assert costs.tree_s(24, 5, 100) == pytest.approx(1.6)
    assert costs.jit_s(3, 5, 100) == pytest.approx(0.4)
    assert costs.sd_draft_s(3, 5, 100) == pytest.approx(1.0)
    assert costs.reply_s(1, 6) + costs.outcome_s(1) == pytest.approx(0.2)
    assert costs.tree_s(0, 5, 100) == costs.jit_s(0, 5, 100) == 0.0


def test_verification_of_ratios_can_grow_with_its_width() -> None:
    costs = RatioCosts(build=0.8, jit=0.2, sd_draft=0.5, verify_per_query_token=0.01)
    assert costs.verify_s(2, 2, 0) == 1.0
    assert costs.verify_s(2, 12, 0) == pytest.approx(1.1)


def test_components_multiply_steps_and_take_the_tree_step_where_no_chain_step_is_known() -> None:
    step = LinearTerm(base_s=0.001, per_sequence_s=0.0001)
    costs = ComponentCosts(verify=LINEAR, draft_step=ConstantTerm(seconds=0.002), tree_step=step)
    assert costs.tree_s(24, 5, 0) == pytest.approx(5 * 0.0034)
    assert costs.jit_s(4, 5, 0) == pytest.approx(5 * 0.0014)
    assert costs.sd_draft_s(4, 6, 0) == pytest.approx(6 * 0.002)
    own = costs.model_copy(update={"jit_step": ConstantTerm(seconds=0.003)})
    assert own.jit_s(4, 5, 0) == pytest.approx(5 * 0.003)
    assert costs.host_s(4) == costs.reply_s(4, 20) == costs.store_s(9) == 0.0


def test_a_chain_takes_its_start_and_its_steps_and_none_nothing() -> None:
    """Start .5 + .1 a row, steps of .2 + .01 a row, on each of the three ways to draft."""
    start = {"kind": "linear", "base_s": 0.5, "per_sequence_s": 0.1}
    step = {"kind": "linear", "base_s": 0.2, "per_sequence_s": 0.01}
    terms = {
        f"{name}_{part}": term
        for name in ("draft", "jit", "tree")
        for part, term in (("start", start), ("step", step))
    }
    costs = ComponentCosts.model_validate(
        {"kind": "components", "verify": {"kind": "constant", "seconds": 1.0}, **terms}
    )
    for chain in (costs.sd_draft_s, costs.jit_s, costs.tree_s):
        assert chain(np.array([0, 1, 4]), 5, 100).tolist() == pytest.approx([0.0, 0.6 + 5 * 0.21, 0.9 + 5 * 0.24])
        assert chain(4, np.array([0, 1]), 100).tolist() == pytest.approx([0.0, 0.9 + 0.24])
