"""Saguaro sampling: Theorem 15 holds for a fixed set and fails for the algorithm; Theorem 19's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory import sampling
from ssdsim.theory.acceptance import mean_acceptance_length_per_position

# Theorem 19
P_TARGET, P_DRAFT, CONSTANT = [0.48, 0.48, 0.02, 0.02], [0.49, 0.49, 0.01, 0.01], 47 / 147


def enumerated(p_target, p_draft, fan_out, downweight, exclude_rejected) -> tuple[float, float]:
    """Acceptance and P(rejected and hit), by going through every drafted and every bonus token."""
    order = sorted(range(len(p_draft)), key=lambda token: (-p_draft[token], token))
    weights = np.array([p * (downweight if t in order[:fan_out] else 1.0) for t, p in enumerate(p_draft)])
    proposal, target = weights / weights.sum(), np.asarray(p_target)
    accept = float(np.minimum(proposal, target).sum())
    residual = np.maximum(target - proposal, 0.0) / max(1.0 - accept, 1e-300)
    hit = 0.0
    for sent in range(len(p_draft)):
        rejected = max(proposal[sent] - target[sent], 0.0)
        cache = [t for t in order if t != sent or not exclude_rejected][:fan_out]
        hit += rejected * residual[cache].sum()
    return accept, hit


@pytest.mark.parametrize("exclude_rejected", [True, False])
@pytest.mark.parametrize("fan_out", [0, 1, 2, 4, 5])
def test_statistics_agree_with_enumerating_every_token(fan_out, exclude_rejected) -> None:
    rng = np.random.default_rng(11)
    for p_target, p_draft in zip(rng.dirichlet(np.ones(5), 40), rng.dirichlet(np.ones(5), 40), strict=True):
        c = float(rng.uniform(0.05, 1.0))
        stats = sampling.saguaro_stats(p_target, p_draft, fan_out, c, exclude_rejected=exclude_rejected)
        assert tuple(stats) == pytest.approx(enumerated(p_target, p_draft, fan_out, c, exclude_rejected), abs=1e-12)


def test_contexts_are_leading_axes() -> None:
    rng = np.random.default_rng(12)
    p_target, p_draft = rng.dirichlet(np.ones(6), (3, 2)), rng.dirichlet(np.ones(6), (3, 2))
    together = sampling.saguaro_stats(p_target, p_draft, 2, 0.4)
    alone = sampling.saguaro_stats(p_target[2, 1], p_draft[2, 1], 2, 0.4)
    assert np.shape(together.acceptance_prob) == (3, 2)
    assert together.hit_prob_on_rejection[2, 1] == pytest.approx(alone.hit_prob_on_rejection)


def test_theorem_19_needs_the_exclusion_rule() -> None:
    raw = sampling.saguaro_stats(P_TARGET, P_DRAFT, 2, 1.0)
    assert raw.acceptance_prob == pytest.approx(0.98)
    assert raw.hit_prob_on_rejection == pytest.approx(0.5)
    without_exclusion = sampling.saguaro_stats(P_TARGET, P_DRAFT, 2, 1.0, exclude_rejected=False)
    assert without_exclusion.hit_prob_on_rejection == pytest.approx(0.0)
    saguaro = sampling.saguaro_stats(P_TARGET, P_DRAFT, 2, CONSTANT)
    assert saguaro.acceptance_prob == pytest.approx(0.98)
    assert saguaro.hit_prob_on_rejection == pytest.approx(1.0)


def test_theorem_19_per_round_gains_five_points() -> None:
    # THEORY 1: both hit rates are conditional on rejection, 2 % of positions; per round, K = 5: .9158 -> .9638.
    # At K the two favourites of the target are cached: .96.
    contexts = [np.tile(p, (6, 1)) for p in (P_TARGET, P_DRAFT)]
    raw = sampling.round_stats(*contexts, [2] * 6, 1.0)
    saguaro = sampling.round_stats(*contexts, [2] * 6, CONSTANT)
    assert raw.hit_prob == pytest.approx(0.9158, abs=5e-5)
    assert saguaro.hit_prob == pytest.approx(0.9638, abs=5e-5)
    assert raw.hit_prob_by_position[-1] == pytest.approx(0.96)


def test_theorem_15_a_fixed_set_is_monotone() -> None:
    rng = np.random.default_rng(13)
    p_target, p_draft = rng.dirichlet(np.ones(5), 300), rng.dirichlet(np.ones(5), 300)
    cached = rng.random((300, 5)) < 0.5  # any set, not only the favourites
    masses = [sampling.fixed_set_residual(p_target, p_draft, cached, float(c)) for c in np.linspace(0.02, 1.0, 50)]
    assert (np.diff([mass.inside for mass in masses], axis=0) <= 1e-12).all()
    assert (np.diff([mass.outside for mass in masses], axis=0) >= -1e-12).all()


def test_with_a_fixed_set_the_whole_round_is_monotone_too() -> None:
    # THEORY 5, strengthening: although acceptance changes with C
    rng = np.random.default_rng(14)
    p_target, p_draft = rng.dirichlet(np.ones(4), (500, 3)), rng.dirichlet(np.ones(4), (500, 3))
    hits = [
        sampling.round_stats(p_target, p_draft, [1, 2, 1], float(c), exclude_rejected=False).hit_prob
        for c in np.linspace(0.02, 1.0, 40)
    ]
    assert (np.diff(hits, axis=0) <= 1e-12).all()


def test_counterexample_with_the_rejected_token_excluded() -> None:
    # THEORY 5: lower C, LOWER hit rate
    p_target, p_draft = [0.2, 0.5, 0.3], [0.5, 0.3, 0.2]
    hits = [
        sampling.saguaro_stats(p_target, p_draft, 1, c).hit_prob_on_rejection for c in (1.0, 0.4, 0.26, 0.25, 0.2)
    ]
    assert hits == pytest.approx([0.667, 0.833, 0.267, 0.0, 1.0], abs=5e-4)


def test_under_the_algorithm_violations_are_no_rare_accident() -> None:
    # THEORY 5 found 930 of 3000 random pairs. At such a share, fewer than 20 % of 1000 has probability < 1e-12.
    rng = np.random.default_rng(15)
    p_target, p_draft = rng.dirichlet(np.ones(4), 1000), rng.dirichlet(np.ones(4), 1000)
    hits = [
        sampling.saguaro_stats(p_target, p_draft, 1, float(c)).hit_prob_on_rejection
        for c in np.linspace(0.02, 1.0, 80)
    ]
    violated = (np.diff(hits, axis=0) > 1e-9).any(axis=0)
    assert violated.mean() > 0.2


def test_the_bonus_position_misses_by_acceptance_outside_the_set_and_by_residual() -> None:
    # THEORY 4.3: 1 - p_t(S) = [alpha - sum_S min(p_t, p_d)] + (1 - alpha)(1 - g(S)), for any set S
    rng = np.random.default_rng(17)
    p_target, p_draft = rng.dirichlet(np.ones(6), 200), rng.dirichlet(np.ones(6), 200)
    in_set = rng.random((200, 6)) < 0.5
    shared = np.minimum(p_target, p_draft)
    alpha = shared.sum(-1)
    residual = sampling.fixed_set_residual(p_target, p_draft, in_set, 1.0)
    missed = (alpha - (shared * in_set).sum(-1)) + (1 - alpha) * (1 - residual.hit_prob)
    np.testing.assert_allclose(1 - (p_target * in_set).sum(-1), missed, atol=1e-12)


def test_ties_are_broken_by_token_id_and_the_choice_matters() -> None:
    # THEORY 5: p_d = (.4, .4, .2), F = 1: the set is {0}, never {1}
    assert sampling.cached_mask([0.4, 0.4, 0.2], 1).tolist() == [True, False, False]
    towards_1 = sampling.fixed_set_residual([0.2, 0.6, 0.2], [0.4, 0.4, 0.2], [True, False, False], 1.0)
    towards_0 = sampling.fixed_set_residual([0.2, 0.6, 0.2], [0.4, 0.4, 0.2], [False, True, False], 1.0)
    assert (towards_1.hit_prob, towards_0.hit_prob) == (0.0, 1.0)


def test_where_nothing_is_rejected_the_conditional_hit_rate_is_undefined() -> None:
    p = [0.5, 0.25, 0.25]
    assert np.isnan(sampling.saguaro_stats(p, p, 1, 1.0).hit_prob_on_rejection)
    assert np.isnan(sampling.fixed_set_residual(p, p, [True, False, False], 1.0).hit_prob)
    assert sampling.round_stats([p, p], [p, p], [1, 1], 1.0).hit_prob == 0.5


def test_with_the_whole_vocabulary_cached_the_constant_is_irrelevant() -> None:
    for c in (0.1, 1.0):
        stats = sampling.saguaro_stats(P_TARGET, P_DRAFT, 4, c)
        assert tuple(stats) == pytest.approx((0.98, 0.02))


def test_the_search_finds_the_best_constant_of_a_dense_grid() -> None:
    rng = np.random.default_rng(16)

    def useful(stats: sampling.RoundStats) -> float:
        """Hits bought with acceptance: tokens per round of a hit, times the hit rate."""
        return float(np.mean(stats.hit_prob * mean_acceptance_length_per_position(stats.acceptance_prob)))

    for _ in range(4):
        p_target, p_draft = rng.dirichlet(np.ones(4), 3), rng.dirichlet(np.ones(4), 3)
        found = sampling.best_downweight(p_target, p_draft, [1, 1, 2], useful)
        dense = max(
            useful(sampling.round_stats(p_target, p_draft, [1, 1, 2], float(c))) for c in np.linspace(0, 1, 401)
        )
        assert found.value >= dense - 1e-9
        assert useful(sampling.round_stats(p_target, p_draft, [1, 1, 2], found.downweight)) == found.value


def test_the_search_skips_the_constant_that_leaves_no_mass() -> None:
    found = sampling.best_downweight([[0.7, 0.3]] * 2, [[0.6, 0.4]] * 2, [2, 1], lambda stats: stats.hit_prob)
    assert 0.0 < found.downweight <= 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: sampling.saguaro_distribution([0.6, 0.4], 2, 0.0),
        lambda: sampling.saguaro_distribution([0.6, 0.4], 1, 1.2),
        lambda: sampling.saguaro_distribution([0.6, 0.4], 3, 0.5),
        lambda: sampling.saguaro_distribution([0.6, 0.4], 1.5, 0.5),
        lambda: sampling.saguaro_stats([0.6, 0.4], [0.3, 0.3, 0.4], 1, 0.5),
        lambda: sampling.fixed_set_residual([0.6, 0.4], [0.4, 0.6], [1, 0], 0.5),
        lambda: sampling.round_stats([[0.6, 0.4]], [[0.4, 0.6]], [1, 1], 0.5),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
