"""One role's model with its cache: feed tokens, get logits, roll back.

Both roles think in cache rows (one per slot of the batch) of different lengths. `extend` feeds every row
its next tokens, padded on the right to the widest row; a padded token sees only garbage of its own row, its
result is ignored and its cells lie beyond the row's length, to be overwritten later. Rolling back is
setting a length.

Used by `executor.verifier` and `executor.speculator`; trees of branches come from `executor.branches`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.llama import KVCache, LlamaModel, Step
from executor.models import LoadedModel
from ssdsim.errors import DomainError

Ints = NDArray[np.int64]


class Decoder:
    """A model, a cache of `num_rows` rows and the length of each row."""

    def __init__(self, model: LlamaModel, num_rows: int, capacity: int) -> None:
        """`capacity` columns per row: the longest context, what may be proposed behind it, scratch for
        branches."""
        self.model = model
        self.device = model.embedding.device
        self.cache = KVCache(model.shape, num_rows, capacity, model.embedding)
        self.lengths: Ints = np.zeros(num_rows, np.int64)
        self.columns = torch.arange(self.cache.capacity, device=self.device)

    def feed(self, rows: Ints, tokens: Ints, widths: Ints) -> None:
        """As `extend`, for tokens whose continuation is already known: no logits."""
        self._run(rows, tokens, want_logits=False)
        self.lengths[rows] += widths

    def extend(self, rows: Ints, tokens: Ints, widths: Ints, last_only: bool = False) -> Tensor:
        """Feed row `rows[i]` its next `widths[i]` tokens, `tokens[i, :widths[i]]`; the rest of `tokens` is
        padding.

        Returns logits [n, w, V], or [n, 1, V] of each row's last token with `last_only`; lengths grow by
        `widths`.
        """
        last = torch.from_numpy(widths - 1).to(self.device) if last_only and tokens.shape[1] > 1 else None
        logits = self._run(rows, tokens, head_at=last)
        self.lengths[rows] += widths
        return logits

    def rollback(self, rows: Ints, lengths: Ints) -> None:
        """Forget what the rows hold beyond `lengths`."""
        if (lengths > self.lengths[rows]).any():
            raise DomainError("lengths", "a rollback only shortens", lengths.tolist())
        self.lengths[rows] = lengths

    def row_index(self, rows: Ints) -> slice | Tensor:
        """`rows` as a slice where they are contiguous (a view of the cache), else as an index (a copy of
        the rows)."""
        first, count = int(rows[0]), len(rows)
        if int(rows[-1]) - first == count - 1 and (count < 3 or bool((np.diff(rows) == 1).all())):
            return slice(first, first + count)
        return torch.from_numpy(rows).to(self.device)

    def _run(self, rows: Ints, tokens: Ints, head_at: Tensor | None = None, want_logits: bool = True) -> Tensor:
        step = self._causal_step(rows, tokens)
        return self.model.forward(step, self.cache, head_at, want_logits)

    def _causal_step(self, rows: Ints, tokens: Ints) -> Step:
        """Every token sees its row's columns up to its own."""
        starts, width = self.lengths[rows], tokens.shape[1]
        last = self.cache.capacity - 1
        extent = min(int(starts.max()) + width, last + 1)
        # Padding may reach beyond the cache; the last column, which no token needs, takes it.
        columns = np.minimum(starts[:, None] + np.arange(width), last)
        positions = torch.from_numpy(columns).to(self.device)
        row_tensor = torch.from_numpy(rows).to(self.device)
        mask = None
        if width > 1 or starts.min() != starts.max():
            mask = additive(self.columns[:extent] <= positions[:, :, None], self.model.embedding)
        return Step(
            tokens=torch.from_numpy(tokens).to(self.device),
            positions=positions,
            cells=self.cache.cells(row_tensor, positions),
            mask=mask,
            rows=self.row_index(rows),
            extent=extent,
        )


def check_context(loaded: LoadedModel, max_context_tokens: int) -> None:
    """Refuse contexts beyond the model's positions."""
    limit = loaded.model.shape.max_context_tokens
    if max_context_tokens > limit:
        raise DomainError("max_context_tokens", f"at most {limit}, where {loaded.name} ends", max_context_tokens)


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """The mask [n, 1, w, extent] to add to the scores, from a boolean [n, w, extent]."""
    return like.new_zeros(visible.shape).masked_fill_(~visible, float("-inf")).unsqueeze(1)
