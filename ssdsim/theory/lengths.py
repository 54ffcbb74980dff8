"""Output lengths as the exact model takes them: a law on 1, 2, ... tokens, shared by all points of a call."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, distribution, integer

LengthLaw: TypeAlias = int | tuple[npt.ArrayLike, npt.ArrayLike]
"""A fixed number of output tokens, or (values, probabilities)."""


def length_law(output_tokens: LengthLaw) -> FloatArray:
    """P(a request emits l + 1 tokens) for l = 0..longest-1.

    Raises DomainError for lengths below 1, repeated or unpaired values, probabilities that do not sum to 1.
    """
    values, probs = output_tokens if isinstance(output_tokens, tuple) else ([output_tokens], [1.0])
    tokens = np.atleast_1d(integer("output_tokens", values, 1))
    weights = distribution("output_tokens probabilities", probs)
    if tokens.ndim != 1 or tokens.size == 0 or weights.shape != tokens.shape:
        raise DomainError("output_tokens", "must pair every length with one probability", output_tokens)
    if np.unique(tokens).size != tokens.size:
        raise DomainError("output_tokens", "must list every length once", output_tokens)
    law = np.zeros(int(tokens.max()))
    law[tokens - 1] = weights / weights.sum()
    return law


def mean_tokens(law: FloatArray) -> float:
    """Mean of a law from `length_law`."""
    return float(law @ np.arange(1.0, law.size + 1))
