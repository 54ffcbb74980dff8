"""The second seed's cost relations."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory import systems


def test_step_speedup_and_headroom_are_one_statement() -> None:
    # S > 1 iff drafting costs less than the headroom H
    lengths = np.linspace(1.0, 4.0, 31)
    speedup = systems.sd_step_speedup(lengths, 10.0, 4, 1.0, 12.0)
    headroom = systems.headroom_s(lengths, 10.0, 12.0)
    np.testing.assert_array_equal(speedup > 1.0, headroom > 4.0)


def test_cost_per_token_is_the_step_over_the_length() -> None:
    cost = systems.step_cost_s(4.0, 12.0, 0.5)
    assert cost == 16.5
    assert systems.time_per_token_s(cost, 3.0) == 5.5


def test_an_overlapped_build_costs_only_what_outlives_verification() -> None:
    assert systems.overlapped_step_cost_s(12.0, 9.0) == 12.0
    assert systems.overlapped_step_cost_s(12.0, 15.0, fallback_s=1.0, link_s=0.5, control_s=0.25) == 16.75


def test_a_wide_step_gains_while_it_stays_below_a_narrow_ones() -> None:
    # dense layers: free widening gains A - 1 narrow steps; linear growth in q loses where q > A
    assert systems.wide_step_gain_s(3.0, 2.0, 2.0) == 4.0
    assert systems.wide_step_gain_s(3.0, 2.0, 5 * 2.0) < 0
    assert systems.verify_s(2.0, 1.0, 0.5) == 3.5


def test_reading_the_history_gains_below_a_times_one_step() -> None:
    assert systems.kv_read_gain(3.0, [1.0, 3.0, 5.0]).tolist() == [2.0, 0.0, -2.0]
    assert systems.discarded_fraction(3.0, 6) == 0.5


def test_fewer_synchronisations_gain_by_the_fixed_cost_and_lose_by_the_bytes() -> None:
    arguments = (3.0, 5, 10.0, 8.0, 2.0)
    narrow, wide = systems.comm_s(10.0, 8.0, 2.0), systems.comm_s(10.0, 5 * 8.0, 2.0)
    assert systems.comm_gain_s(*arguments) == pytest.approx(3.0 * narrow - wide)
    assert systems.comm_gain_s(1.0, 5, 10.0, 8.0, 2.0) < 0  # A = 1 never gains
    assert systems.comm_gain_s(5.0, 4, 10.0, 8.0, 2.0) > 0  # q counts drafts only and all were accepted


def test_an_moe_layer_waits_for_its_slowest_rank() -> None:
    assert systems.moe_s(1.0, [2.0, 5.0, 3.0], 1.0) == 7.0
    assert systems.moe_s(1.0, [[2.0, 5.0], [4.0, 1.0]], 1.0).tolist() == [7.0, 6.0]


def test_one_request_of_six_tokens_reads_five_times_the_experts() -> None:
    # THEORY 1: 128 experts, 8 per token: 8 -> 41 (x5.1) at b = 1, x1.15 at b = 32
    one, six = systems.expected_active_experts(128, 8, [1, 6])
    assert (one, six) == (pytest.approx(8.0), pytest.approx(41, abs=0.2))
    assert six / one == pytest.approx(5.1, abs=0.05)
    narrow, wide = systems.expected_active_experts(128, 8, [32, 32 * 6])
    assert wide / narrow == pytest.approx(1.15, abs=5e-3)


def test_the_equal_batch_form_is_the_same_product_with_a_true_step_gain() -> None:
    factors = systems.throughput_factors(48, 64, 3.0, 20.0, 18.0, 30.0)
    assert factors.total == pytest.approx(systems.throughput_ratio(48, 64, 3.0, 20.0, 30.0))
    assert factors.step_gain == pytest.approx(3.0 * 18.0 / 30.0)
    assert factors.concurrency == 0.75


@pytest.mark.parametrize(
    "call",
    [
        lambda: systems.comm_gain_s(0.5, 5, 10.0, 8.0, 2.0),
        lambda: systems.comm_gain_s(3.0, 5, 10.0, 8.0, 0.0),
        lambda: systems.comm_gain_s(3.0, 0, 10.0, 8.0, 2.0),
        lambda: systems.sd_step_speedup(3.0, 10.0, 4, 1.0, 0.0),
        lambda: systems.sd_step_speedup(3.0, 10.0, 4.5, 1.0, 12.0),
        lambda: systems.kv_read_gain(3.0, 0.5),
        lambda: systems.discarded_fraction(7.0, 6),
        lambda: systems.expected_active_experts(8, 9, 1),
        lambda: systems.throughput_ratio(0, 64, 3.0, 20.0, 30.0),
        lambda: systems.moe_s(1.0, [2.0, -1.0], 1.0),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
