"""What one row of the batch does in one round: how many tokens it accepts, and whether the next look-up hits.

A row is verified with a chain of K tokens; k of them are accepted and the bonus token follows, so it emits k
+ 1 tokens, and the look-up of (k, bonus token) hits with probability h_k. Drafted rows and rows answered by a
fallback each have such a law. `closed`, `finite` and `tails` need it position by position; `renewal` needs
its means only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory.acceptance import outcome_weights
from ssdsim.theory.domain import FloatArray, probability
from ssdsim.theory.renewal import SlotChain


@dataclass(frozen=True, kw_only=True)
class RowLaw:
    """Acceptance and hits of one kind of row; leading axes are design points (and kinds of requests) and
    broadcast.

    Lists are taken for arrays. Raises DomainError for values outside [0, 1] or lists of unequal length.
    """

    acceptance_prob: FloatArray
    """[..., K]: token i is accepted, given that those before it were. K = 0: the row proposes nothing."""
    hit_prob: FloatArray
    """[..., K+1]: the look-up hits, given that exactly k = 0..K tokens were accepted."""

    def __post_init__(self) -> None:
        acceptance = np.atleast_1d(probability("acceptance_prob", self.acceptance_prob))
        hits = np.atleast_1d(probability("hit_prob", self.hit_prob))
        if hits.shape[-1] != acceptance.shape[-1] + 1:
            requirement = f"must have one entry per accepted count, {acceptance.shape[-1] + 1}"
            raise DomainError("hit_prob", requirement, f"{hits.shape[-1]} entries")
        object.__setattr__(self, "acceptance_prob", np.asarray(acceptance, dtype=np.float64))
        object.__setattr__(self, "hit_prob", np.asarray(hits, dtype=np.float64))

    @property
    def num_tokens(self) -> int:
        """K, the tokens proposed."""
        return int(self.acceptance_prob.shape[-1])

    @property
    def points_shape(self) -> tuple[int, ...]:
        """The common leading shape."""
        return np.broadcast_shapes(self.acceptance_prob.shape[:-1], self.hit_prob.shape[:-1])

    @cached_property
    def ends(self) -> FloatArray:
        """[..., K+1, 2]: probability of (k accepted, then hit) and (k accepted, then miss)."""
        weights = outcome_weights(self.acceptance_prob)
        return np.stack([weights * self.hit_prob, weights * (1.0 - self.hit_prob)], axis=-1)

    @cached_property
    def hit_rate(self) -> FloatArray:
        """[...]: probability that the look-up after such a row hits."""
        return np.asarray(self.ends[..., 0].sum(axis=-1))

    @cached_property
    def tokens(self) -> FloatArray:
        """[...]: mean tokens emitted, bonus token included."""
        return np.asarray(self.ends.sum(axis=-1) @ np.arange(1.0, self.num_tokens + 2))


def slot_chain(drafted: RowLaw, fallback: RowLaw) -> SlotChain:
    """The means that the endless model needs."""
    return SlotChain(
        hit_after_draft=drafted.hit_rate,
        hit_after_fallback=fallback.hit_rate,
        tokens_drafted=drafted.tokens,
        tokens_fallback=fallback.tokens,
    )


def end_kernel(drafted: RowLaw, fallback: RowLaw) -> FloatArray:
    """[..., 2, K+1, 2]: probability of (k accepted, hit | miss) by Source, K the longer of the two chains."""
    shape = np.broadcast_shapes(drafted.points_shape, fallback.points_shape)
    reach = max(drafted.num_tokens, fallback.num_tokens) + 1
    kernel = np.zeros((*shape, 2, reach, 2))
    kernel[..., 0, : drafted.num_tokens + 1, :] = drafted.ends
    kernel[..., 1, : fallback.num_tokens + 1, :] = fallback.ends
    return kernel
