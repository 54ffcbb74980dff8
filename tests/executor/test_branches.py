"""A branch's logits are those of its own path, whatever grows beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_pairs import small_pair

from executor.branches import TreeSteps, fork_columns, forks
from executor.config import DraftBehaviour
from executor.decoder import Decoder
from executor.fan_out import FanOutPlan
from ssdsim.records import Source
from ssdsim.scenario import Drafting, FallbackChoice, FanOut

PAIR = small_pair()
STEPS = 3


def test_forks_count_candidates_within_each_position_and_pad_ragged_rows() -> None:
    found = forks([(2, 0, 1), (1,)])
    assert found.num_accepted.tolist() == [[0, 0, 2], [0, 0, 0]]
    assert found.rank.tolist() == [[0, 1, 0], [0, 0, 0]]
    assert found.valid.tolist() == [[True, True, True], [True, False, False]]


def test_the_proposed_token_forks_only_where_it_cannot_be_rejected() -> None:
    logits = torch.tensor([[[5.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0]]])
    excluded = torch.tensor([[0, -1]])
    found = fork_columns(logits, excluded, forks([(2, 2)]))
    assert found.tolist() == [[1, 2, 3, 2]]


@pytest.mark.parametrize(
    "vectors",
    [
        [(2, 1, 0, 3), (2, 1, 0, 3)],
        [(1, 0, 2), (4,)],
        [(0, 0, 0, 1), (0, 2)],
    ],
)
def test_every_branch_sees_its_trunk_up_to_the_fork_and_its_own_chain(vectors: list[tuple[int, ...]]) -> None:
    """Against transformers on each path written out: prefix, accepted tokens, forking token, chain."""
    rng = np.random.default_rng(3)
    vocab_size, prefixes = PAIR.draft.vocab_size, (11, 6)
    trunks = [rng.integers(0, vocab_size, n + len(v) - 1) for n, v in zip(prefixes, vectors, strict=True)]
    decoder, rows = Decoder(PAIR.target.model, 2, 80), np.arange(2)
    branches = forks(vectors)
    chains = torch.from_numpy(rng.integers(0, vocab_size, (STEPS, *branches.rank.shape)))
    with torch.inference_mode():
        for row, trunk in enumerate(trunks):
            decoder.feed(np.array([row]), trunk[None], np.array([len(trunk)]))
        steps = TreeSteps(decoder, rows, np.array(prefixes), branches, STEPS)
        found = [decoder.model.forward(steps.step(i, chains[i]), decoder.cache) for i in range(STEPS)]
        for row, branch in zip(*np.nonzero(branches.valid), strict=True):
            fork = prefixes[row] + int(branches.num_accepted[row, branch])
            path = np.concatenate((trunks[row][:fork], chains[:, row, branch]))
            expected = PAIR.reference(torch.from_numpy(path)[None]).logits[0, -STEPS:]
            grown = torch.stack([logits[row, branch] for logits in found])
            torch.testing.assert_close(grown, expected, atol=1e-4, rtol=0)


def test_a_build_leaves_the_trunk_as_it_was() -> None:
    rng = np.random.default_rng(4)
    text = rng.integers(0, PAIR.draft.vocab_size, 15)
    decoder = Decoder(PAIR.target.model, 1, 60)
    with torch.inference_mode():
        decoder.feed(np.array([0]), text[None, :12], np.array([12]))
        steps = TreeSteps(decoder, np.array([0]), np.array([10]), forks([(3, 3, 3)]), STEPS)
        for index in range(STEPS):
            decoder.model.forward(steps.step(index, torch.zeros(1, 9, dtype=torch.int64)), decoder.cache)
        logits = decoder.extend(np.array([0]), text[None, 12:], np.array([3]))
        expected = PAIR.reference(torch.from_numpy(text)[None]).logits[0, 12:]
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=0)


class TestFanOutPlan:
    def plan(self, **drafting: object) -> FanOutPlan:
        return FanOutPlan(Drafting.model_validate({"num_speculative_tokens": 4} | drafting), DraftBehaviour(), 1000)

    def test_an_undrafted_row_spends_the_whole_budget_on_its_one_position(self) -> None:
        plan = self.plan(fan_out={"policy": "uniform", "per_position": 3}, fallback={"kind": "none"})
        assert plan.vector(Source.NONE, 0) == (15,)

    def test_random_tokens_are_prepared_for_as_rejected(self) -> None:
        plan = self.plan(fan_out={"policy": "uniform", "budget": 10}, fallback={"kind": "random"})
        assert plan.vector(Source.RANDOM, 4) == (10, 0, 0, 0, 0)

    def test_a_shorter_chain_keeps_the_head_of_an_explicit_vector_and_its_last_entry(self) -> None:
        plan = self.plan(fan_out={"policy": "explicit", "values": [5, 4, 3, 2, 1]})
        assert plan.vector(Source.HIT, 4) == (5, 4, 3, 2, 1)
        assert plan.vector(Source.HIT, 2) == (5, 4, 1)

    def test_the_vector_on_a_miss_serves_rows_drafted_after_one(self) -> None:
        plan = self.plan(
            fan_out=FanOut(policy="uniform", per_position=3),
            fan_out_on_miss=FanOut(policy="uniform", per_position=1),
            fallback=FallbackChoice(kind="jit"),
        )
        assert plan.vector(Source.JIT, 4) == (1, 1, 1, 1, 1)
        assert plan.vector(Source.FIRST, 4) == plan.vector(Source.HIT, 4) == (3, 3, 3, 3, 3)

    def test_a_small_head_bounds_every_position(self) -> None:
        plan = FanOutPlan(Drafting(num_speculative_tokens=1), DraftBehaviour(), head_size=3)
        assert plan.vector(Source.HIT, 1) == (2, 2)

    def test_no_vector_has_more_branches_than_there_is_room_for(self) -> None:
        plan = self.plan(fan_out={"policy": "uniform", "per_position": 3}, fallback={"kind": "ngram"})
        assert plan.max_branches() == 15
