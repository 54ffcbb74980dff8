"""Speed-up results: as printed where printed, corrected where the print fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsim.errors import DomainError
from ssdsim.theory import speedup
from ssdsim.theory.acceptance import mean_acceptance_length

PROBABILITY, TIME, LENGTH = st.floats(0.0, 1.0), st.floats(0.0, 3.0), st.floats(1.0, 8.0)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


@QUICK
@given(p_p=PROBABILITY, p_b=st.floats(0.01, 1.0))
def test_the_stationary_hit_rate_balances_the_flow(p_p, p_b) -> None:
    p = speedup.stationary_cache_hit_rate(p_p, p_b)
    assert p * p_p + (1 - p) * p_b == pytest.approx(p, abs=1e-12)


def test_a_miss_that_never_recovers_absorbs_and_alternation_averages() -> None:
    assert speedup.stationary_cache_hit_rate(0.5, 0.0) == 0.0
    assert speedup.stationary_cache_hit_rate(0.0, 1.0) == 0.5
    assert speedup.stationary_cache_hit_rate(1.0, 0.1) == 1.0
    with pytest.raises(DomainError, match=r"backup_hit_prob\[1\]"):
        speedup.stationary_cache_hit_rate([0.5, 1.0], [0.0, 0.0])


@QUICK
@given(p=PROBABILITY, e_hit=LENGTH, e_miss=LENGTH, t_p=TIME, t_b=TIME, b=st.integers(1, 40))
def test_printed_and_slowest_member_agree_up_to_one_plus_the_fallback(p, e_hit, e_miss, t_p, t_b, b) -> None:
    printed = speedup.ssd_speedup(p, e_hit, e_miss, t_p, t_b, b)
    waiting = speedup.ssd_speedup_slowest_member(p, e_hit, e_miss, t_p, t_b, b)
    if b == 1 or max(1.0, t_p) <= 1.0 + t_b:
        assert printed == pytest.approx(waiting, rel=1e-9)
    else:
        assert printed >= waiting * (1 - 1e-12)


@pytest.mark.parametrize(("t_p", "b", "percent"), [(1.2, 2, 2.7), (1.2, 16, 14.5), (1.5, 2, 5.5), (1.5, 16, 34.0)])
def test_the_printed_batch_form_is_too_fast_where_a_hit_is_the_slow_case(t_p, b, percent) -> None:
    # THEORY 3: T_b = 0, a = .8, K = 5, c = .5, r = 1, B = 24, whose misses are .0934 (4.5) and .1/23 (4.3)
    p = speedup.stationary_cache_hit_rate(1 - 0.0934, 1 - 0.1 / 23)
    arguments = (p, mean_acceptance_length(0.8, 5), 1.0, t_p, 0.0, b)
    excess = speedup.ssd_speedup(*arguments) / speedup.ssd_speedup_slowest_member(*arguments) - 1
    assert 100 * excess == pytest.approx(percent, abs=0.1)


def test_a_large_batch_always_waits_for_the_fallback() -> None:
    limit = speedup.ssd_speedup_large_batch(0.8, 4.0, 1.0, 0.5)
    assert speedup.ssd_speedup(0.8, 4.0, 1.0, 0.9, 0.5, 500) == pytest.approx(limit, rel=1e-12)


@QUICK
@given(p=st.floats(0.01, 1.0), t=st.floats(0.01, 3.0))
def test_corollary_8_ssd_is_never_slower_if_a_miss_interrupts_the_build(p, t) -> None:
    assert speedup.ssd_over_sd(p, t) >= 1.0
    e = 3.0
    ratio = speedup.ssd_speedup(p, e, e, t, t) / speedup.sd_speedup(e, t)
    assert speedup.ssd_over_sd(p, t) == pytest.approx(ratio, rel=1e-12)


@QUICK
@given(p=PROBABILITY, t=st.floats(0.01, 3.0))
def test_without_preemption_ssd_loses_exactly_below_the_stated_hit_rate(p, t) -> None:
    loses = speedup.ssd_over_sd_without_preemption(p, t) < 1.0 - 1e-12
    assert loses == (t > 1.0 and p < 1.0 - 1.0 / t - 1e-12)


def test_without_preemption_the_quoted_losses() -> None:
    # THEORY 1, Corollary 8
    ratios = speedup.ssd_over_sd_without_preemption([0.4, 0.2], [2.0, 1.5])
    np.testing.assert_allclose(ratios, [0.938, 0.926], atol=5e-4)


@QUICK
@given(p=st.floats(0.01, 1.0), t=st.floats(0.01, 3.0))
def test_the_largest_round_trip_is_where_ssd_and_sd_meet(p, t) -> None:
    assert speedup.ssd_over_sd(p, t, speedup.max_round_trip(p, t)) == pytest.approx(1.0, rel=1e-12)


@QUICK
@given(p=PROBABILITY, lengths=st.tuples(LENGTH, LENGTH), e_sd=LENGTH, t=TIME)
def test_corollary_9_bounds_are_in_order(p, lengths, e_sd, t) -> None:
    bounds = speedup.ssd_over_sd_bounds(p, max(lengths), min(lengths), e_sd, t)
    assert list(bounds) == pytest.approx(sorted(bounds), rel=1e-12)
    exact = speedup.ssd_speedup(p, max(lengths), min(lengths), 0.5, 0.0) / speedup.sd_speedup(e_sd, t)
    assert bounds.exact == pytest.approx(exact, rel=1e-12)


def test_the_printed_lower_bound_is_a_fifth_below_the_tight_one() -> None:
    # THEORY 1, Corollary 9: p = .5, E_hit = 3.69
    bounds = speedup.ssd_over_sd_bounds(0.5, 3.69, 1.0, 3.69, 0.4)
    assert bounds.printed_lower / bounds.tight_lower == pytest.approx(1 - 0.21, abs=5e-3)


def test_batch_latency_takes_one_rate_or_one_per_request() -> None:
    # b = 2, enumerated: both hit .25 * 1.5, both miss .25 * 1, else 1.5
    assert speedup.mean_batch_latency(0.5, 2, 1.5, 1.0) == pytest.approx(1.375)
    assert speedup.mean_batch_latency([0.5, 0.5], 2, 1.5, 1.0) == pytest.approx(1.375)
    mixed = speedup.mean_batch_latency([0.9, 0.4], 2, 1.0, 1.8)
    assert mixed == pytest.approx(0.36 * 1.0 + 0.64 * 1.8)
    over_rates = speedup.mean_batch_latency([[0.5], [0.9]], 2, 1.5, 1.0)
    np.testing.assert_allclose(over_rates, [1.375, 0.01 * 1.0 + 0.99 * 1.5])


def test_any_dependence_lies_between_the_frechet_bounds() -> None:
    # THEORY 3: T_b = .8, p = .9, b = 16: 2.05 ... 3.42, and 2.23 if independent
    low, high = speedup.ssd_speedup_bounds(3.69, 0.9, 16, 0.8)
    assert (low, high) == (pytest.approx(2.05, abs=5e-3), pytest.approx(3.42, abs=5e-3))
    e_miss = 1.0
    independent = speedup.ssd_speedup(0.9, (3.69 - 0.1 * e_miss) / 0.9, e_miss, 0.5, 0.8, 16)
    assert independent == pytest.approx(2.23, abs=5e-3)


@QUICK
@given(alpha=st.floats(0.1, 50.0), beta=st.floats(0.1, 50.0), b=st.integers(1, 30))
def test_beta_binomial_dependence_is_the_product_and_respects_the_frechet_bounds(alpha, beta, b) -> None:
    all_hit = speedup.all_hit_beta_binomial(alpha, beta, b)
    steps = np.arange(b)
    assert all_hit == pytest.approx(np.prod((alpha + steps) / (alpha + beta + steps)), rel=1e-9)
    mean = alpha / (alpha + beta)
    low, high = speedup.all_hit_bounds(mean, b)
    assert low - 1e-12 <= all_hit <= high + 1e-12
    assert all_hit >= mean**b - 1e-12  # positive dependence


def test_arrays_give_the_same_as_their_entries() -> None:
    rng = np.random.default_rng(5)
    p, e_hit, e_miss = rng.random(50), 1 + 4 * rng.random(50), 1 + rng.random(50)
    t_p, t_b, b = 2 * rng.random(50), rng.random(50), rng.integers(1, 30, 50)
    for formula in (speedup.ssd_speedup, speedup.ssd_speedup_slowest_member):
        one_by_one = [
            formula(*map(float, row[:-1]), int(row[-1])) for row in zip(p, e_hit, e_miss, t_p, t_b, b, strict=True)
        ]
        np.testing.assert_allclose(formula(p, e_hit, e_miss, t_p, t_b, b), one_by_one, rtol=1e-12)
        assert type(formula(0.5, 3.0, 1.0, 0.5, 0.5, 2)) is float


@pytest.mark.parametrize(
    "call",
    [
        lambda: speedup.ssd_speedup(1.1, 4.0, 1.0, 0.9, 0.5),
        lambda: speedup.ssd_speedup(0.5, 0.9, 1.0, 0.9, 0.5),
        lambda: speedup.ssd_speedup(0.5, 4.0, 1.0, -0.1, 0.5),
        lambda: speedup.ssd_speedup(0.5, 4.0, 1.0, 0.9, float("nan")),
        lambda: speedup.ssd_speedup(0.5, 4.0, 1.0, 0.9, 0.5, 0),
        lambda: speedup.ssd_speedup(0.5, 4.0, 1.0, 0.9, 0.5, 1.5),
        lambda: speedup.ssd_over_sd_bounds(0.5, 3.0, 3.5, 3.0, 0.4),
        lambda: speedup.mean_batch_latency([0.9, 0.5], 3, 1.0, 1.8),
        lambda: speedup.ssd_speedup_bounds(3.0, 0.9, 4, 0.1, build_time=1.5),
        lambda: speedup.all_hit_beta_binomial(0.0, 1.0, 3),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
