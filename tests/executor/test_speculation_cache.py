"""The cache answers exactly the outcomes it was filled for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor.speculation_cache import SpeculationCache

SLOTS = np.array([0, 2])
NUM_ACCEPTED = np.array([[0, 0, 1], [1, 2, 0]])
BONUS_TOKENS = np.array([[7, 8, 7], [5, 5, 0]])
VALID = np.array([[True, True, True], [True, True, False]])
TOKENS = np.arange(12).reshape(2, 3, 2)


@pytest.fixture
def cache() -> SpeculationCache:
    filled = SpeculationCache(num_slots=4, max_branches=6, num_speculative_tokens=2)
    filled.open(SLOTS, NUM_ACCEPTED, BONUS_TOKENS, VALID)
    filled.store(SLOTS, TOKENS, torch.arange(24.0).view(2, 3, 2, 2))
    return filled


def lookup(cache: SpeculationCache, slot: int, num_accepted: int, bonus_token: int) -> int:
    return int(cache.lookup(np.array([slot]), np.array([num_accepted]), np.array([bonus_token]))[0])


def test_every_prepared_outcome_is_found_with_its_tokens_and_distributions(cache: SpeculationCache) -> None:
    for row, branch in zip(*np.nonzero(VALID), strict=True):
        slot = np.array([SLOTS[row]])
        entry = cache.lookup(slot, NUM_ACCEPTED[[row], branch], BONUS_TOKENS[[row], branch])
        assert cache.tokens(slot, entry)[0].tolist() == TOKENS[row, branch].tolist()
        assert cache.draft_probs(slot, entry)[0].flatten().tolist() == [
            float(4 * (3 * row + branch) + i) for i in range(4)
        ]


@pytest.mark.parametrize(
    ("slot", "num_accepted", "bonus_token"),
    [(0, 1, 8), (0, 2, 7), (2, 0, 0), (1, 0, 7), (3, 0, 0)],
    ids=["other bonus token", "other count", "padding", "slot without a build", "slot never used"],
)
def test_anything_else_is_a_miss(cache: SpeculationCache, slot: int, num_accepted: int, bonus_token: int) -> None:
    assert lookup(cache, slot, num_accepted, bonus_token) == -1


def test_fan_out_counts_the_entries_of_a_position(cache: SpeculationCache) -> None:
    found = cache.fan_out(np.array([0, 0, 2, 2]), np.array([0, 1, 0, 2]))
    assert found.tolist() == [2, 1, 0, 1]


def test_a_new_build_forgets_the_last_one_in_every_slot(cache: SpeculationCache) -> None:
    cache.open(np.array([1]), np.array([[0]]), np.array([[3]]), np.array([[True]]))
    cache.store(np.array([1]), np.array([[[9, 9]]]), None)
    assert lookup(cache, 0, 0, 7) == -1
    assert lookup(cache, 1, 0, 3) == 0


def test_chains_cut_short_are_stored_as_short_as_they_are(cache: SpeculationCache) -> None:
    cache.open(SLOTS, NUM_ACCEPTED, BONUS_TOKENS, VALID)
    cache.store(SLOTS, TOKENS[:, :, :1], None)
    assert cache.num_tokens == 1
    assert cache.tokens(np.array([0]), np.array([2])).tolist() == [[4]]
