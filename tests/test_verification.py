"""Verification is lossless, and the same in NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ssdsim import verification
from ssdsim.errors import DomainError

NUM_ROWS, VOCABULARY = 200, 6


@pytest.fixture(params=["numpy", "torch"])
def to(request: pytest.FixtureRequest) -> Any:
    """Turns a NumPy array into one of the library under test."""
    return {"numpy": np.asarray, "torch": torch.from_numpy}[request.param]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def distributions(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows with exact zeros among them, so that every branch of the rule is met."""
    weights = rng.gamma(0.7, size=shape) * (rng.random(shape) < 0.8)
    weights[..., 0] += 1e-3
    return weights / weights.sum(axis=-1, keepdims=True)


def emitted(p_target: np.ndarray, p_draft: np.ndarray, to: Any) -> np.ndarray:
    """Law of the emitted token, `[N, V]`: every drafted token enumerated, accepted or replaced."""
    every_token = np.broadcast_to(np.arange(p_draft.shape[-1]), p_draft.shape).copy()
    target, draft = (to(np.repeat(p[:, None, :], p.shape[-1], axis=1)) for p in (p_target, p_draft))
    accept = np.asarray(verification.accept_probs(target, draft, to(every_token)))
    replacement = np.asarray(verification.residual(to(p_target), to(p_draft)))
    return p_draft * accept + (p_draft * (1 - accept)).sum(-1, keepdims=True) * replacement


def test_accepting_and_replacing_reproduce_the_target(to, rng) -> None:
    p_target, p_draft = distributions(rng, NUM_ROWS, VOCABULARY), distributions(rng, NUM_ROWS, VOCABULARY)
    np.testing.assert_allclose(emitted(p_target, p_draft, to), p_target, atol=1e-12)


@pytest.mark.parametrize("downweight", [0.0, 0.1, 0.5, 1.0])
def test_saguaro_sampling_is_lossless_too(to, rng, downweight) -> None:
    p_target, p_draft = distributions(rng, NUM_ROWS, VOCABULARY), distributions(rng, NUM_ROWS, VOCABULARY)
    cached = rng.random((NUM_ROWS, VOCABULARY)) < 0.4
    cached[:, 0] = False  # distributions() leaves mass at token 0, so C = 0 is defined
    reweighted = np.asarray(verification.saguaro_reweight(to(p_draft), to(cached), downweight))
    np.testing.assert_allclose(reweighted.sum(-1), 1.0, atol=1e-12)
    np.testing.assert_allclose(emitted(p_target, reweighted, to), p_target, atol=1e-12)


def test_acceptance_is_one_minus_the_total_variation_distance(to, rng) -> None:
    p_target, p_draft = distributions(rng, NUM_ROWS, VOCABULARY), distributions(rng, NUM_ROWS, VOCABULARY)
    accepted = verification.acceptance_prob(to(p_target), to(p_draft))
    distance = 0.5 * np.abs(p_target - p_draft).sum(-1)
    np.testing.assert_allclose(accepted, 1 - distance, atol=1e-12)


def test_equal_distributions_leave_the_target_as_residual(to) -> None:
    p = to(np.array([[0.25, 0.75, 0.0]]))
    assert verification.residual(p, p).tolist() == p.tolist()


def test_a_token_the_draft_could_not_draw_is_rejected(to) -> None:
    accept = verification.accept_probs(to(np.array([[1.0, 0.0]])), to(np.array([[0.0, 1.0]])), to(np.array([0])))
    assert accept.tolist() == [0.0]


def test_theorem_19_example_of_reweighting(to) -> None:
    p_draft, cached = to(np.array([0.49, 0.49, 0.01, 0.01])), to(np.array([True, True, False, False]))
    reweighted = verification.saguaro_reweight(p_draft, cached, 47 / 147)
    np.testing.assert_allclose(reweighted, [0.47, 0.47, 0.03, 0.03], atol=1e-12)


def test_reweighting_refuses_a_constant_outside_its_range_or_an_empty_row(to) -> None:
    p_draft, cached = to(np.array([0.6, 0.4])), to(np.array([True, True]))
    for downweight in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(DomainError, match="downweight"):
            verification.saguaro_reweight(p_draft, cached, downweight)


def test_unequal_vocabularies_are_refused(to) -> None:
    with pytest.raises(DomainError, match="vocabulary"):
        verification.residual(to(np.array([0.5, 0.5])), to(np.array([0.2, 0.3, 0.5])))


def ranked_by_hand(logits: list[float], fan_out: int, exclude: int | None) -> list[int]:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    return [token for token in order if token != exclude][:fan_out]


@pytest.mark.parametrize("fan_out", [0, 1, 2, 5, 11])
def test_top_tokens_rank_by_logit_then_by_token(to, rng, fan_out) -> None:
    # Half of the rows have many ties: small integers; -inf marks a masked token.
    logits = np.concatenate([rng.normal(size=(30, 12)), rng.integers(0, 3, (30, 12)).astype(float)])
    logits[::7, 3] = -np.inf
    exclude = rng.integers(0, 12, size=60)
    plain = verification.top_tokens(to(logits), fan_out)
    excluding = verification.top_tokens(to(logits), fan_out, exclude=to(exclude))
    for row in range(60):
        assert plain[row].tolist() == ranked_by_hand(logits[row].tolist(), fan_out, None)
        assert excluding[row].tolist() == ranked_by_hand(logits[row].tolist(), fan_out, int(exclude[row]))


def test_top_tokens_keep_every_batch_dimension(to, rng) -> None:
    logits, exclude = rng.normal(size=(2, 3, 9)), rng.integers(0, 9, size=(2, 3))
    assert tuple(verification.top_tokens(to(logits), 4, exclude=to(exclude)).shape) == (2, 3, 4)


def test_the_whole_vocabulary_can_be_ranked_but_no_more(to) -> None:
    logits = to(np.array([0.0, 2.0, 1.0]))
    assert verification.top_tokens(logits, 3).tolist() == [1, 2, 0]
    for fan_out, exclude in ((4, None), (-1, None), (3, to(np.array(0)))):
        with pytest.raises(DomainError, match="fan_out"):
            verification.top_tokens(logits, fan_out, exclude=exclude)


def test_accepted_count_is_the_leading_run(to) -> None:
    accept = to(np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    uniforms = to(np.array([[0.4, 0.6, 0.1], [0.5, 0.1, 0.1], [0.99, 0.99, 0.99], [0.0, 0.0, 0.0]]))
    assert verification.num_accepted(accept, uniforms).tolist() == [1, 0, 3, 0]


def test_greedy_accepted_count_compares_tokens(to) -> None:
    target, drafted = (
        to(np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]])),
        to(np.array([[1, 2, 3], [1, 9, 3], [9, 2, 3]])),
    )
    assert verification.num_accepted_greedy(target, drafted).tolist() == [3, 1, 0]


def test_no_drafted_token_means_none_accepted(to) -> None:
    nothing = to(np.zeros((2, 0)))
    assert verification.num_accepted(nothing, nothing).tolist() == [0, 0]


def test_sampling_follows_the_distribution(to) -> None:
    # A regular grid of uniforms meets each token in proportion to its probability, exactly.
    probs = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniforms = (np.arange(400) + 0.5) / 400
    drawn = verification.sample(to(np.tile(probs, (400, 1))), to(uniforms))
    assert np.bincount(np.asarray(drawn), minlength=6).tolist() == [0, 100, 0, 200, 100, 0]


def test_sampling_never_returns_an_impossible_token(to, rng) -> None:
    probs = distributions(rng, 500, 40).astype(np.float32)
    for extreme in (0.0, np.nextafter(np.float32(1), np.float32(0))):
        drawn = np.asarray(verification.sample(to(probs), to(np.full(500, extreme, dtype=np.float32))))
        assert (probs[np.arange(500), drawn] > 0).all()


def test_both_libraries_draw_the_same_tokens(rng) -> None:
    probs, uniforms = distributions(rng, 300, 50), rng.random(300)
    in_numpy = verification.sample(probs, uniforms)
    in_torch = verification.sample(torch.from_numpy(probs), torch.from_numpy(uniforms))
    assert in_numpy.tolist() == in_torch.tolist()
