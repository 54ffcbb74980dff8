"""The store of prepared speculations: verification outcome (num_accepted, bonus token) -> tokens, per slot.

Filled by the speculator's build, asked by its look-up on arrival of the outcome. A slot holds a few dozen
entries, so a comparison over an array finds one faster than any hash of Python objects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from executor.contexts import Ints


class SpeculationCache:
    """Entries of every slot; a build replaces those of the rows it was made for and empties the others."""

    def __init__(self, num_slots: int, max_branches: int, num_speculative_tokens: int) -> None:
        self._num_accepted: Ints = np.full((num_slots, max_branches), -1, np.int64)
        self._bonus_tokens: Ints = np.full((num_slots, max_branches), -1, np.int64)
        self._tokens: Ints = np.zeros((num_slots, max_branches, num_speculative_tokens), np.int64)
        self._row_of_slot: Ints = np.zeros(num_slots, np.int64)
        self._draft_probs: Tensor | None = None
        self.num_tokens = 0
        """Tokens of every entry; fewer than the lookahead after a build that was cut short."""

    def clear(self) -> None:
        """Forget every entry."""
        self._num_accepted.fill(-1)
        self.num_tokens = 0
        self._draft_probs = None

    def open(self, slots: Ints, num_accepted: Ints, bonus_tokens: Ints, valid: NDArray[np.bool_]) -> None:
        """Start over with the outcomes [n, B] that a build prepares for in `slots` [n]; their tokens
        follow."""
        self.clear()
        width = num_accepted.shape[1]
        self._num_accepted[slots, :width] = np.where(valid, num_accepted, -1)
        self._bonus_tokens[slots, :width] = bonus_tokens
        self._row_of_slot[slots] = np.arange(len(slots))

    def store(self, slots: Ints, tokens: Ints, draft_probs: Tensor | None) -> None:
        """Keep what the build drafted: `tokens` [n, B, k]; `draft_probs` [n, B, k, H] above temperature 0."""
        width, self.num_tokens = tokens.shape[1:]
        self._tokens[slots, :width, : self.num_tokens] = tokens
        self._draft_probs = draft_probs

    def lookup(self, slots: Ints, num_accepted: Ints, bonus_tokens: Ints) -> Ints:
        """The entry [n] that was prepared for each slot's outcome, -1 for a miss."""
        found = self._num_accepted[slots] == num_accepted[:, None]
        found &= self._bonus_tokens[slots] == bonus_tokens[:, None]
        return np.where(found.any(axis=1), found.argmax(axis=1), -1)

    def tokens(self, slots: Ints, entries: Ints) -> Ints:
        """The stored speculations [n, num_tokens] of `entries` [n]."""
        taken: Ints = self._tokens[slots, entries, : self.num_tokens]
        return taken

    def draft_probs(self, slots: Ints, entries: Ints) -> Tensor:
        """The distributions [n, num_tokens, H] that these speculations were drawn from."""
        assert self._draft_probs is not None
        return self._draft_probs[self._row_of_slot[slots], entries]

    def first_entry(self, slots: Ints, num_accepted: Ints) -> Ints:
        """The best candidate's entry [n] at this accepted count, -1 where there is none."""
        here = self._num_accepted[slots] == num_accepted[:, None]
        return np.where(here.any(axis=1), here.argmax(axis=1), -1)

    def fan_out(self, slots: Ints, num_accepted: Ints) -> Ints:
        """Entries [n] prepared for each slot at this accepted count, whatever the bonus token."""
        count: Ints = (self._num_accepted[slots] == num_accepted[:, None]).sum(axis=1)
        return count
