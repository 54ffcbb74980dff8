"""At a temperature, every arrangement samples from the target's own distribution.

A vocabulary of 8 tokens lets every distribution be enumerated: of the first token, of pairs of tokens (the later
pair is written in rounds that follow hits and misses), of the first round's accepted length, and of the second's,
which a hit or a miss began. Chi-square at an error rate of 1e-4 per comparison, about 120 comparisons, seeds fixed.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_pairs import Pair, run, small_pair, with_reduced_head

from executor.config import Output, Request
from ssdsim import verification
from ssdsim.scenario import Drafting, FallbackChoice, FanOut

VOCAB = 8
NUM_REQUESTS = 3000
NUM_TOKENS = 4
PROMPT = [3, 1, 4, 1, 5, 3, 1]
"""Ends with a pair that occurred before, so that n-gram look-up has something to propose."""
TEMPERATURE = 1.3
LOOKAHEAD = 2
FAN_OUT = 2
ERROR_RATE = 1e-4


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair(vocab_size=VOCAB, noise=0.08, seed=5)


def sampled(pair: Pair, mode: str, fallback: str = "jit", downweight: float = 1.0) -> list[Output]:
    requests = [
        Request(prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=TEMPERATURE, seed=seed)
        for seed in range(NUM_REQUESTS)
    ]
    drafting = Drafting(
        num_speculative_tokens=LOOKAHEAD,
        fan_out=FanOut(policy="uniform", per_position=FAN_OUT),
        fallback=FallbackChoice(kind=fallback, threshold=30 if fallback == "threshold" else None),
        saguaro_downweight=downweight,
    )
    return list(run(pair, mode, requests, drafting, batch_size=60, critical_batch_size=10.0).outputs)


@lru_cache(maxsize=2)
def next_token_probs(pair: Pair, draft: bool) -> NDArray[np.float64]:
    """Probability of the next token after the prompt and each continuation of up to three tokens; transformers' own.

    [8, 8, 8, 8]: entry [a, b, c] is after all three; continuations of n tokens are read at position n.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.draft_dir).eval() if draft else pair.reference
    continuations = torch.tensor(list(itertools.product(range(VOCAB), repeat=3)))
    ids = torch.cat((torch.tensor(PROMPT).expand(len(continuations), -1), continuations), dim=1)
    with torch.inference_mode():
        logits = model(ids).logits[:, len(PROMPT) - 1 :].double()
    return torch.softmax(logits / TEMPERATURE, dim=-1).view(VOCAB, VOCAB, VOCAB, 4, VOCAB).numpy()


def token_law(pair: Pair) -> NDArray[np.float64]:
    """The target's joint distribution of the first four tokens, [8, 8, 8, 8]."""
    probs = next_token_probs(pair, False)
    first = probs[0, 0, 0, 0][:, None, None, None]
    second = probs[:, 0, 0, 1][:, :, None, None]
    third = probs[:, :, 0, 2][:, :, :, None]
    return first * second * third * probs[:, :, :, 3]


def draft_probs(pair: Pair, downweight: float) -> NDArray[np.float64]:
    """What the draft's tokens are drawn from: Saguaro's reweighting by its definition."""
    probs = next_token_probs(pair, True)
    best = np.argsort(-probs, axis=-1)[..., :FAN_OUT]
    weights = np.ones_like(probs)
    np.put_along_axis(weights, best, downweight, axis=-1)
    return probs * weights / (probs * weights).sum(axis=-1, keepdims=True)


def accepted_length_law(pair: Pair, downweight: float) -> NDArray[np.float64]:
    """Probabilities of 0, 1 and 2 accepted tokens in the first round, by summing min(p, q) along every prefix."""
    overlap = np.minimum(next_token_probs(pair, False), draft_probs(pair, downweight))
    first = overlap[0, 0, 0, 0]
    return _lengths(first, overlap[:, 0, 0, 1].sum(axis=-1))


def second_accepted_length_law(pair: Pair, downweight: float, token: int) -> NDArray[np.float64]:
    """The same in the second round, where the first has written `token` alone."""
    overlap = np.minimum(next_token_probs(pair, False), draft_probs(pair, downweight))
    return _lengths(overlap[token, 0, 0, 1], overlap[token, :, 0, 2].sum(axis=-1))


def _lengths(first: NDArray[np.float64], then: NDArray[np.float64]) -> NDArray[np.float64]:
    """From the overlap at each first token, and the whole overlap behind each."""
    both = (first * then).sum()
    return np.array([1 - first.sum(), first.sum() - both, both])


def p_value(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """Chi-square of counts against probabilities; cells expected to hold fewer than five are merged."""
    from scipy.special import chdtrc

    observed, expected = counts.ravel().astype(float), probs.ravel() * counts.sum()
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(chdtrc(len(expected) - 1, ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()))


def token_p_values(pair: Pair, outputs: list[Output]) -> dict[str, float]:
    law = token_law(pair)
    tokens = np.array([o.tokens for o in outputs])
    counts = np.zeros((VOCAB,) * NUM_TOKENS, np.int64)
    np.add.at(counts, tuple(tokens.T), 1)
    margins = {"first token": (1, 2, 3), "first pair": (2, 3), "second pair": (0, 3), "last pair": (0, 1)}
    return {name: p_value(counts.sum(axis=axes), law.sum(axis=axes)) for name, axes in margins.items()}


def accepted_p_value(pair: Pair, outputs: list[Output], downweight: float) -> float:
    first = np.array([o.accepted_lengths[0] for o in outputs])
    return p_value(np.bincount(first, minlength=LOOKAHEAD + 1), accepted_length_law(pair, downweight))


def second_accepted_p_values(pair: Pair, outputs: list[Output], downweight: float) -> dict[str, float]:
    """By the token that the first round wrote, where it accepted nothing and that happened a hundred times."""
    lengths: dict[int, list[int]] = {}
    for output in outputs:
        if output.accepted_lengths[0] == 0:
            lengths.setdefault(output.tokens[0], []).append(output.accepted_lengths[1])
    return {
        f"accepted length after {token}": p_value(
            np.bincount(found, minlength=LOOKAHEAD + 1), second_accepted_length_law(pair, downweight, token)
        )
        for token, found in lengths.items()
        if len(found) >= 100
    }


@pytest.mark.parametrize(
    ("mode", "fallback", "downweight"),
    [
        ("ar", "jit", 1.0),
        ("sd", "jit", 1.0),
        ("sd", "jit", 0.5),
        ("ssd", "jit", 1.0),
        ("ssd", "jit", 0.5),
        ("ssd", "jit", 0.1),
        ("ssd", "none", 0.5),
        ("ssd", "random", 1.0),
        ("ssd", "ngram", 0.1),
        ("ssd", "threshold", 0.1),
        ("ssd", "auto", 0.5),
    ],
)
def test_tokens_follow_the_target_and_accepted_lengths_the_overlap(
    pair: Pair, mode: str, fallback: str, downweight: float
) -> None:
    outputs = sampled(pair, mode, fallback, downweight)
    found = token_p_values(pair, outputs)
    if mode != "ar":
        found["accepted length"] = accepted_p_value(pair, outputs, downweight)
    if mode != "ar" and fallback == "jit":  # other fallbacks propose something else, or nothing, after a miss
        second = second_accepted_p_values(pair, outputs, downweight)
        assert second
        found |= second
    assert min(found.values()) > ERROR_RATE, found


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_broken_residual_is_noticed(pair: Pair, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests above: bonus tokens drawn from the target itself after a rejection."""
    monkeypatch.setattr(verification, "residual", lambda p_target, p_draft: p_target)
    assert min(token_p_values(pair, sampled(pair, mode)).values()) < ERROR_RATE


def test_a_draft_that_knows_half_of_the_vocabulary_changes_nothing(pair: Pair) -> None:
    half = with_reduced_head(pair, list(range(0, VOCAB, 2)))
    for mode in ("sd", "ssd"):
        found = token_p_values(pair, sampled(half, mode, downweight=0.5))
        assert min(found.values()) > ERROR_RATE, (mode, found)


def test_an_accepted_length_of_another_draft_is_noticed(pair: Pair) -> None:
    """The test of the tests of accepted lengths: C = 0.1 is not mistaken for C = 1."""
    outputs = sampled(pair, "ssd", downweight=0.1)
    assert accepted_p_value(pair, outputs, 1.0) < ERROR_RATE
    assert min(second_accepted_p_values(pair, outputs, 1.0).values()) < ERROR_RATE
