"""Speculation trees instead of chains (THEORY 7.4).

Verification of a tree ends at some node: the outcomes are nodes, where a chain's are accepted counts.
Fan-out allocation needs nothing else, so `fan_out.greedy(tree.outcome_weights(), curves, budget)` prepares
for a tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.domain import FloatArray

_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A speculation as a tree: node 0 is the verified context, nodes 1..n the drafted tokens.

    `parents[i]` is the parent of node i + 1, with a smaller number; `acceptance_prob[i]` is the probability
    that node i + 1 is accepted given that its parent was reached. Siblings exclude each other, so theirs
    sum to at most 1.
    """

    parents: tuple[int, ...]
    acceptance_prob: tuple[float, ...]

    def __post_init__(self) -> None:
        parents = np.atleast_1d(domain.integer("parents", self.parents, 0))
        accept = domain.vector(
            "acceptance_prob", domain.probability("acceptance_prob", self.acceptance_prob), parents.size
        )
        later = parents > np.arange(parents.size)
        domain.refuse_where(later, "parents", "must come before their children", parents)
        object.__setattr__(self, "parents", tuple(parents.tolist()))
        object.__setattr__(self, "acceptance_prob", tuple(accept.tolist()))
        if (self._continues() > 1.0 + _SUM_TOLERANCE).any():
            raise DomainError("acceptance_prob", "must sum to at most 1 over siblings", self.acceptance_prob)

    @classmethod
    def chain(cls, acceptance_prob: Sequence[float]) -> TokenTree:
        """The chain that ordinary speculation drafts, acceptance a_1..a_K."""
        return cls(tuple(range(len(acceptance_prob))), tuple(acceptance_prob))

    @property
    def num_speculative_tokens(self) -> int:
        """Drafted tokens, n."""
        return len(self.parents)

    @property
    def num_query_tokens(self) -> int:
        """Tokens the verifier processes: the drafted ones and the last bonus token, n + 1 (a chain: K + 1)."""
        return len(self.parents) + 1

    def reach(self) -> FloatArray:
        """P(reach v) for nodes 0..n: the product of acceptances on the way from the root."""
        reached = np.ones(self.num_query_tokens)
        for child, (parent, accepted) in enumerate(zip(self.parents, self.acceptance_prob, strict=True), start=1):
            reached[child] = reached[parent] * accepted
        return reached

    def outcome_weights(self) -> FloatArray:
        """w_v = P(reach v)(1 - sum over children of a): the probability that verification ends at v."""
        weights: FloatArray = self.reach() * np.maximum(1.0 - self._continues(), 0.0)
        return weights

    def mean_acceptance_length(self) -> float:
        """Tokens per round, bonus token included: E = sum_v P(reach v)."""
        return float(self.reach().sum())

    def _continues(self) -> FloatArray:
        """Probability that some child is accepted, for each node."""
        total = np.zeros(self.num_query_tokens)
        np.add.at(total, np.asarray(self.parents, dtype=np.int64), self.acceptance_prob)
        return total
