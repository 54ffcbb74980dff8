"""Threshold fallback: its limits are the static rules, its rates those of a simulation that looks at the batch."""

from __future__ import annotations

import numpy as np
import pytest
from exact_systems import drafted_rows, ratio_estimate, ratio_times, undrafted_rows

from ssdsim.errors import DomainError
from ssdsim.theory.renewal import SlotChain, endless_batch
from ssdsim.theory.row_law import slot_chain
from ssdsim.theory.threshold import threshold_estimate, threshold_policies

DRAFTED, UNDRAFTED = drafted_rows([2] * 6), undrafted_rows(12)
CHAIN = slot_chain(DRAFTED, UNDRAFTED)


def test_threshold_1_always_drafts_and_threshold_b_plus_1_never_does() -> None:
    fast, drafting = ratio_times(8, 1.1, 0.05), ratio_times(8, 1.1, 0.2)
    rates = threshold_policies(CHAIN, fast, drafting).rate_per_sequence
    always = endless_batch(slot_chain(DRAFTED, DRAFTED), drafting)
    never = endless_batch(CHAIN, fast)
    assert rates[0] == pytest.approx(always.rate_per_sequence, rel=1e-12)
    assert rates[-1] == pytest.approx(never.rate_per_sequence, rel=1e-12)


def test_the_hit_rate_falls_to_that_of_drafted_rows_as_more_misses_are_drafted() -> None:
    """A fallback that proposes nothing is followed by a hit almost surely (THEORY 4.3): p_b = .991 > p_p = .799."""
    policies = threshold_policies(CHAIN, ratio_times(8, 0.8, 0.0), ratio_times(8, 0.8, 0.2))
    assert policies.cache_hit_rate[0] == pytest.approx(float(DRAFTED.hit_rate))
    assert policies.cache_hit_rate[-1] == pytest.approx(float(CHAIN.cache_hit_rate))
    assert np.all(np.diff(policies.cache_hit_rate) > 0)


def test_a_threshold_between_beats_both_static_rules_when_drafting_costs_a_fifth() -> None:
    """THEORY 6.2: most is gained at T_j = .2-.35 and b = 4-8, up to 3.3 %."""
    policies = threshold_policies(CHAIN, ratio_times(8, 0.8, 0.0), ratio_times(8, 0.8, 0.2))
    better_static = max(policies.rate_per_sequence[0], policies.rate_per_sequence[-1])
    assert policies.best_threshold == 3
    assert 0.01 < policies.best_rate_per_sequence / better_static - 1 < 0.033


def test_the_estimate_is_one_policy_improvement_step_by_hand() -> None:
    """E_p - E_b = 2 and 1 - p_p + p_b = .8, so Delta = 2.5; fast rounds last 1 and pi = 1/2, so g = 2; with b = 6 and
    T_j = .3 that is 6 x 2 x .3 / 2.5 = 1.44, rounded up. Too dear, or worth nothing: never, 7."""
    chain = SlotChain(hit_after_draft=0.6, hit_after_fallback=0.4, tokens_drafted=3.0, tokens_fallback=1.0)
    worthless = SlotChain(hit_after_draft=0.6, hit_after_fallback=0.4, tokens_drafted=1.0, tokens_fallback=1.0)
    fast = ratio_times(6, 0.8, 0.0)
    assert threshold_estimate(chain, fast, 0.3) == 2.0
    assert threshold_estimate(chain, fast, 10.0) == 7.0
    assert threshold_estimate(worthless, fast, 0.3) == 7.0


def test_points_keep_their_shape() -> None:
    chain = SlotChain(
        hit_after_draft=np.full((2, 3), 0.7), hit_after_fallback=0.9, tokens_drafted=3.0, tokens_fallback=1.0
    )
    policies = threshold_policies(chain, ratio_times(4, 0.8, 0.0), ratio_times(4, 0.8, 0.2))
    assert policies.rate_per_sequence.shape == (2, 3, 5)
    assert policies.best_threshold.shape == (2, 3)


def test_two_batches_of_unequal_size_are_refused() -> None:
    with pytest.raises(DomainError, match="drafting"):
        threshold_policies(CHAIN, ratio_times(4, 0.8, 0.0), ratio_times(5, 0.8, 0.2))


def test_rows_that_alternate_for_ever_are_refused() -> None:
    chain = SlotChain(hit_after_draft=0.0, hit_after_fallback=1.0, tokens_drafted=3.0, tokens_fallback=1.0)
    with pytest.raises(DomainError, match="hit_after_draft"):
        threshold_policies(chain, ratio_times(4, 0.8, 0.0), ratio_times(4, 0.8, 0.2))


@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_the_rate_is_what_a_simulation_that_looks_at_the_batch_measures(threshold: int) -> None:
    """Error rate: |z| > 4.5 happens by chance in 7 of a million runs; a 1 % error would show as |z| > 6."""
    rng = np.random.default_rng(31)
    batch_size, replicas, build_s, drafting_s = 3, 400, 1.1, 0.35
    p_p, p_b = float(DRAFTED.hit_rate), float(UNDRAFTED.hit_rate)
    drafted = np.ones((replicas, batch_size), dtype=bool)
    tokens, seconds = np.zeros(replicas), np.zeros(replicas)
    for index in range(340):
        accepted = np.cumprod(rng.random((*drafted.shape, 5)) < 0.8, axis=-1).sum(axis=-1)
        # Given the row's source, tokens and look-up may be drawn apart: only their means enter a long-run rate.
        hit = rng.random(drafted.shape) < np.where(drafted, p_p, p_b)
        emitted = np.where(drafted, accepted, 0) + 1
        misses = (~hit).sum(axis=1)
        redraft = misses >= threshold
        fallback_s = np.where(redraft, drafting_s, 0.0)
        hit_s = np.where(misses < batch_size, max(1.0, build_s), 0.0)
        miss_s = np.where(misses > 0, 1.0 + fallback_s, 0.0)
        if index >= 40:
            tokens += emitted.mean(axis=1)
            seconds += np.maximum(hit_s, miss_s)
        drafted = hit | redraft[:, None]
    sampled = ratio_estimate(tokens, seconds)
    fast, drafting = ratio_times(3, build_s, 0.0), ratio_times(3, build_s, drafting_s)
    exact = threshold_policies(CHAIN, fast, drafting).rate_per_sequence[threshold - 1]
    assert abs(sampled.z(exact)) < 4.5
    assert abs(sampled.z(1.01 * exact)) > 6
