"""Fallback: where the fast one overtakes, when to draft just in time, what n-grams buy."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ssdsim.errors import DomainError
from ssdsim.theory import fallback
from ssdsim.theory.acceptance import mean_acceptance_length
from ssdsim.theory.fallback import CriticalBatchSize
from ssdsim.theory.hit_curve import AllAccepted, PowerLaw
from ssdsim.theory.speedup import ssd_speedup, stationary_cache_hit_rate

LENGTH_AT_5 = float(mean_acceptance_length(0.8, 5))
ALL_ACCEPTED = AllAccepted(0.8, PowerLaw(1.0, 0.5))


def test_one_hit_rate_for_both_policies_misplaces_the_crossing() -> None:
    # THEORY 3: a = .8, c = .5, K = 5, r = .5, B = 12, T_j = .2; misses .2695 (4.5) and .1 * 11^-.5 (4.3)
    p_p, p_b = 1 - 0.2695, 1 - 0.1 / math.sqrt(11)
    pi = float(stationary_cache_hit_rate(p_p, p_b))
    printed = fallback.critical_batch_size_printed(pi, 0.2, LENGTH_AT_5, 1.0)
    assert printed.kind == "finite"
    assert printed.batch_size == pytest.approx(11.6, abs=0.05)
    assert fallback.critical_batch_size_printed(p_p, 0.2, LENGTH_AT_5, 1.0).kind == "always_slow"
    consistent = fallback.critical_batch_size(p_p, p_b, 0.2, LENGTH_AT_5, 1.0)
    assert consistent.batch_size == pytest.approx(9.1, abs=0.05)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    p_p=st.floats(0.05, 0.99),
    p_b=st.floats(0.05, 1.0),
    t_j=st.floats(0.01, 2.0),
    e_b=st.floats(1.0, 3.0),
    b=st.integers(1, 60),
)
def test_below_the_critical_batch_the_slow_fallback_is_faster_and_above_it_slower(p_p, p_b, t_j, e_b, b) -> None:
    e_p = 3.5
    critical = fallback.critical_batch_size(p_p, p_b, t_j, e_p, e_b)
    slow = ssd_speedup(p_p, e_p, e_p, 0.5, t_j, b)
    fast = ssd_speedup(stationary_cache_hit_rate(p_p, p_b), e_p, e_b, 0.5, 0.0, b)
    assume(abs(slow - fast) > 1e-9)
    assert (slow > fast) == (b < critical.limit)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(p=st.floats(0.05, 0.99), t_p=st.floats(0.01, 1.0), e_b=st.floats(1.0, 3.0), b=st.integers(1, 60))
def test_the_printed_form_solves_the_papers_own_comparison(p, t_p, e_b, b) -> None:
    e_p = 3.5
    critical = fallback.critical_batch_size_printed(p, t_p, e_p, e_b)
    slow, fast = ssd_speedup(p, e_p, e_p, t_p, t_p, b), ssd_speedup(p, e_p, e_b, t_p, 0.0, b)
    assume(abs(slow - fast) > 1e-9)
    assert (slow > fast) == (b < critical.limit)


def test_edges_where_nothing_crosses() -> None:
    # p = 1: no round ever waits; T = 0: waiting is free; p = 0: every round waits
    assert fallback.critical_batch_size_printed(1.0, 0.5, 3.0, 1.0) == ("tie", None)
    assert fallback.critical_batch_size(0.5, 0.5, 0.0, 3.0, 1.0) == ("always_slow", None)
    assert fallback.critical_batch_size(0.5, 0.5, 0.0, 3.0, 3.0) == ("tie", None)
    assert fallback.critical_batch_size_printed(0.0, 0.5, 3.0, 1.0) == ("always_slow", None)
    assert fallback.critical_batch_size_printed(0.0, 1.0, 3.0, 2.0) == ("always_fast", None)
    assert fallback.critical_batch_size_printed(0.0, 0.5, 3.0, 2.0) == ("tie", None)  # 3 / 1.5 = 2


def test_the_limit_is_what_a_policy_compares_the_batch_with() -> None:
    assert CriticalBatchSize("finite", 5.4).limit == 5.4
    assert CriticalBatchSize("always_slow", None).limit == math.inf
    assert CriticalBatchSize("always_fast", 0.4).limit == 0.0
    assert CriticalBatchSize("tie", None).limit == 0.0


def test_slow_is_right_when_many_miss() -> None:
    # Delta = (3.69 - 1)/(1 - .8 + .99) = 2.26; b g T_j / Delta = 8 * 3.2 * .2 / 2.26 = 2.27 -> 3
    advantage = fallback.primary_advantage(3.69, 1.0, 0.8, 0.99)
    assert advantage == pytest.approx(2.69 / 1.19)
    assert fallback.miss_threshold_start(8, 3.2, 0.2, advantage) == 3
    thresholds = [fallback.miss_threshold_start(b, 3.2, 0.2, advantage) for b in (1, 4, 16, 64)]
    assert thresholds == sorted(thresholds)


def test_the_threshold_stays_between_always_and_never() -> None:
    assert fallback.miss_threshold_start(4, 3.0, 0.0, 2.0) == 1
    assert fallback.miss_threshold_start(4, 3.0, 50.0, 2.0) == 5
    assert fallback.miss_threshold_start(4, 3.0, 0.1, 0.0) == 5


@pytest.mark.parametrize(("x", "p_b", "rate"), [(0.3, 0.958, 3.297), (0.5, 0.933, 3.385), (0.7, 0.908, 3.554)])
def test_an_n_gram_fallback_trades_hits_for_longer_rounds(x, p_b, rate) -> None:
    # THEORY 6.3: K = 5, r = 1, B = 12, b = 1 (p_p = 1 - .2008 of 4.5), five n-gram tokens
    quality = fallback.ngram_fallback(x, 5, 12, ALL_ACCEPTED)
    assert quality.hit_prob == pytest.approx(p_b, abs=5e-4)
    assert sum(quality.fan_out) == 12
    pi = stationary_cache_hit_rate(1 - 0.2008, quality.hit_prob)
    assert ssd_speedup(pi, LENGTH_AT_5, quality.mean_acceptance_length, 0.5, 0.0) == pytest.approx(rate, abs=1e-3)


def test_proposing_nothing_is_an_n_gram_of_length_zero() -> None:
    quality = fallback.ngram_fallback((), 0, 12, ALL_ACCEPTED)
    assert (quality.mean_acceptance_length, quality.fan_out) == (1.0, (12,))
    assert quality.hit_prob == pytest.approx(0.991, abs=5e-4)  # THEORY 4.3


@pytest.mark.parametrize(
    "call",
    [
        lambda: fallback.critical_batch_size_printed(0.7, 1.2, 3.0, 1.0),
        lambda: fallback.critical_batch_size_printed(1.1, 0.5, 3.0, 1.0),
        lambda: fallback.critical_batch_size_printed([0.5], 0.5, 3.0, 1.0),
        lambda: fallback.critical_batch_size(1.0, 0.0, 0.5, 3.0, 1.0),
        lambda: fallback.critical_batch_size(0.5, 0.5, -0.1, 3.0, 1.0),
        lambda: fallback.critical_batch_size(0.5, 0.5, 0.1, 0.9, 1.0),
        lambda: fallback.primary_advantage(3.0, 1.0, 1.0, 0.0),
        lambda: fallback.miss_threshold_start(0, 3.0, 0.1, 1.0),
        lambda: fallback.ngram_fallback([0.5], 2, 12, ALL_ACCEPTED),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
