"""Columns of a draft's head and the tokens they stand for.

A draft may have a head over the most frequent tokens only: cheaper, and it proposes no others. Everything the
speculator ranks or samples lives in head columns; tokens appear where something is sent, fed or compared.
"""

from __future__ import annotations

import torch
from torch import Tensor


class HeadVocabulary:
    """The map between head columns and tokens; the identity where the head covers the vocabulary."""

    def __init__(self, vocab_size: int, token_ids: Tensor | None) -> None:
        """`token_ids` int64 [H] ascending, or None."""
        self.vocab_size = vocab_size
        self.token_ids = token_ids
        self.size = vocab_size if token_ids is None else len(token_ids)
        self._column_of: Tensor | None = None
        if token_ids is not None:
            self._column_of = torch.full((vocab_size,), -1, dtype=torch.int64, device=token_ids.device)
            self._column_of[token_ids] = torch.arange(self.size, device=token_ids.device)

    def to_tokens(self, columns: Tensor) -> Tensor:
        """Tokens of head columns, any shape."""
        return columns if self.token_ids is None else self.token_ids[columns]

    def to_columns(self, tokens: Tensor) -> Tensor:
        """Head columns of tokens, any shape; -1 for a token that the head does not have."""
        return tokens if self._column_of is None else self._column_of[tokens]

    def widen(self, probs: Tensor) -> Tensor:
        """Probabilities [..., H] over head columns as probabilities [..., V] over tokens."""
        if self.token_ids is None:
            return probs
        wide = probs.new_zeros((*probs.shape[:-1], self.vocab_size))
        return wide.index_copy_(-1, self.token_ids, probs)
