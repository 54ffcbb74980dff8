"""The sequences in the slots of a batch, as both roles keep them: prompt and output so far, seed,
temperature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import DomainError

Ints = NDArray[np.int64]


class Contexts:
    """Arrays over slots; a slot is a row of the role's cache as well."""

    def __init__(self, num_slots: int, capacity: int) -> None:
        self.tokens: Ints = np.zeros((num_slots, capacity), np.int64)
        self.num_tokens: Ints = np.zeros(num_slots, np.int64)
        self.seeds: NDArray[np.uint64] = np.zeros(num_slots, np.uint64)
        self.temperatures: NDArray[np.float64] = np.zeros(num_slots)

    def admit(self, slot: int, tokens: NDArray[np.integer], seed: int, temperature: float) -> None:
        """Give the slot to a new sequence."""
        count = len(tokens)
        if count > self.tokens.shape[1]:
            raise DomainError("max_context_tokens", f"a prompt has {count} tokens", self.tokens.shape[1])
        self.tokens[slot, :count] = tokens
        self.num_tokens[slot] = count
        self.seeds[slot], self.temperatures[slot] = seed, temperature

    def propose(self, rows: Ints, tokens: Ints) -> None:
        """Write tokens [n, K] behind each context, where they wait for verification uncounted."""
        columns = self.num_tokens[rows][:, None] + np.arange(tokens.shape[1])
        self.tokens[rows[:, None], columns] = tokens

    def settle(self, rows: Ints, num_accepted: Ints, bonus_tokens: Ints) -> None:
        """Count the accepted part of what was proposed and put the bonus token behind it."""
        ends = self.num_tokens[rows] + num_accepted
        self.tokens[rows, ends] = bonus_tokens
        self.num_tokens[rows] = ends + 1

    def slices(self, rows: Ints, starts: Ints, widths: Ints) -> Ints:
        """Tokens `starts[i] : starts[i] + widths[i]` of each row, padded on the right with what lies
        there."""
        columns = np.minimum(starts[:, None] + np.arange(int(widths.max())), self.tokens.shape[1] - 1)
        taken: Ints = self.tokens[rows[:, None], columns]
        return taken

    def sampled(self, rows: Ints) -> bool:
        """Whether any of `rows` has a temperature above 0."""
        return bool((self.temperatures[rows] > 0).any())
