"""One verification at a time: what is accepted, which bonus token follows, what the contexts hold afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_pairs import small_pair

from executor.config import EngineConfig
from executor.verifier import Outcome, Verifier
from ssdsim.records import Source
from ssdsim.scenario import Drafting, Mode

PAIR = small_pair()
K = 3
PROMPTS = ([5, 9, 2], [7, 1, 1, 3, 8])


def greedy(prompt: list[int], count: int) -> list[int]:
    """The target's own continuation by transformers."""
    tokens = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            tokens.append(int(PAIR.reference(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def verifier(temperature: float = 0.0, padded_verify: bool = False) -> Verifier:
    """Both prompts admitted and fed."""
    made = Verifier(
        EngineConfig(
            mode=Mode.SD,
            batch_size=2,
            max_context_tokens=40,
            vocab_size=PAIR.target.vocab_size,
            drafting=Drafting(num_speculative_tokens=K, padded_verify=padded_verify),
            sampled=temperature > 0,
        ),
        PAIR.target,
    )
    with torch.inference_mode():
        for slot, prompt in enumerate(PROMPTS):
            made.admit(slot, np.array(prompt), seed=slot, temperature=temperature)
        made.prefill(np.arange(2))
    return made


def verify(made: Verifier, proposed: list[list[int]], draft_probs: NDArray[np.float32] | None = None) -> Outcome:
    tokens = np.zeros((2, K), np.int64)
    for row, proposal in enumerate(proposed):
        tokens[row, : len(proposal)] = proposal
    with torch.inference_mode():
        return made.verify(
            np.arange(2), tokens, np.array([len(p) for p in proposed]), draft_probs, np.full(2, Source.JIT)
        )


def test_the_targets_own_tokens_are_all_accepted_and_one_more_follows() -> None:
    truth = [greedy(prompt, K + 1) for prompt in PROMPTS]
    made = verifier()
    outcome = verify(made, [tokens[:K] for tokens in truth])
    assert outcome.num_accepted.tolist() == [K, K]
    assert outcome.bonus_tokens.tolist() == [tokens[K] for tokens in truth]
    for row, (prompt, tokens) in enumerate(zip(PROMPTS, truth, strict=True)):
        end = len(prompt) + K + 1
        assert made.contexts.num_tokens[row] == end
        assert made.contexts.tokens[row, :end].tolist() == [*prompt, *tokens]


@pytest.mark.parametrize("wrong_at", range(K))
def test_the_first_wrong_token_is_replaced_and_what_follows_it_dropped(wrong_at: int) -> None:
    truth = [greedy(prompt, K + 1) for prompt in PROMPTS]
    proposed = [tokens[:K] for tokens in truth]
    proposed[1] = [*truth[1][:wrong_at], (truth[1][wrong_at] + 1) % 96, *truth[1][wrong_at + 1 : K]]
    outcome = verify(verifier(), proposed)
    assert outcome.num_accepted.tolist() == [K, wrong_at]
    assert outcome.bonus_tokens.tolist() == [truth[0][K], truth[1][wrong_at]]


@pytest.mark.parametrize("padded_verify", [False, True])
def test_rows_may_propose_different_numbers_of_tokens_or_none(padded_verify: bool) -> None:
    """What lies behind a short proposal is never accepted, even if it happens to be right."""
    truth = [greedy(prompt, K + 1) for prompt in PROMPTS]
    outcome = verify(verifier(padded_verify=padded_verify), [truth[0][:1], []])
    assert outcome.num_accepted.tolist() == [1, 0]
    assert outcome.bonus_tokens.tolist() == [truth[0][1], truth[1][0]]


def test_rounds_after_a_rejection_continue_the_same_text() -> None:
    truth = [greedy(prompt, 6) for prompt in PROMPTS]
    made, written = verifier(), [[], []]
    for _ in range(3):
        wrong = [[(tokens[len(done)] + 1) % 96, 0, 0] for tokens, done in zip(truth, written, strict=True)]
        for done, token in zip(written, verify(made, wrong).bonus_tokens, strict=True):
            done.append(int(token))
    assert written == [tokens[:3] for tokens in truth]


def test_tokens_drawn_from_the_targets_own_distribution_are_never_rejected() -> None:
    """min(1, p/q) = 1 for q = p, whatever the draws."""
    made = verifier(temperature=1.0)
    tokens = [greedy(prompt, K) for prompt in PROMPTS]
    probs = np.zeros((2, K, PAIR.target.vocab_size), np.float32)
    for row, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            logits = PAIR.reference(torch.tensor([[*prompt, *tokens[row]]])).logits[0]
        probs[row] = torch.softmax(logits[len(prompt) - 1 : -1], dim=-1).numpy()
    # A hair below p: forwards of different widths differ in the last digits.
    assert verify(made, tokens, probs * 0.999).num_accepted.tolist() == [K, K]


def test_tokens_that_the_target_would_never_write_are_always_rejected() -> None:
    made = verifier(temperature=1e-3)
    never = [[(greedy(prompt, 1)[0] + 1) % 96] for prompt in PROMPTS]
    probs = np.full((2, K, PAIR.target.vocab_size), 1.0 / PAIR.target.vocab_size, np.float32)
    outcome = verify(made, never, probs)
    assert outcome.num_accepted.tolist() == [0, 0]
    assert outcome.bonus_tokens.tolist() == [greedy(prompt, 1)[0] for prompt in PROMPTS]
