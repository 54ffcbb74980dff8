"""Token-length distributions of a workload: each knows its exact law, so theory and samples agree by construction.

Used by `scenario` (prompt and output lengths), the exact model (the probability mass function) and the simulator
(samples).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ssdsim.schema import Document, PositiveFloat, PositiveInt

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Constant(Document):
    """Every request has the same length."""

    kind: Literal["constant"] = "constant"
    value: PositiveInt
    """Length in tokens."""

    def pmf(self) -> tuple[IntArray, FloatArray]:
        return np.array([self.value]), np.array([1.0])


class Uniform(Document):
    """Every length from `low` to `high` is equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: PositiveInt
    high: PositiveInt

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"high must be at least low ({self.low}); got {self.high}")
        return self

    def pmf(self) -> tuple[IntArray, FloatArray]:
        values = np.arange(self.low, self.high + 1)
        return values, np.full(values.size, 1.0 / values.size, dtype=np.float64)


class Geometric(Document):
    """A constant chance of stopping at every token, cut at `max` (the generation limit takes the rest)."""

    kind: Literal["geometric"] = "geometric"
    mean: PositiveFloat
    """Mean of the uncut law, in tokens, at least 1."""
    max: PositiveInt

    @model_validator(mode="after")
    def _reachable(self) -> Geometric:
        if self.mean < 1:
            raise ValueError(f"mean must be at least 1 token; got {self.mean}")
        return self

    def pmf(self) -> tuple[IntArray, FloatArray]:
        values = np.arange(1, self.max + 1, dtype=np.int64)
        going_on = 1.0 - 1.0 / self.mean
        probs = np.power(going_on, values - 1.0) / self.mean
        probs[-1] = going_on ** (self.max - 1)
        return values, probs


class LogNormal(Document):
    """A long-tailed law given by the mean and the coefficient of variation of the uncut law, cut at `max`."""

    kind: Literal["lognormal"] = "lognormal"
    mean: PositiveFloat
    cv: PositiveFloat
    max: PositiveInt

    def pmf(self) -> tuple[IntArray, FloatArray]:
        from scipy.special import ndtr

        sigma = np.sqrt(np.log1p(self.cv**2))
        mu = np.log(self.mean) - sigma**2 / 2
        values = np.arange(1, self.max + 1)
        upper = ndtr((np.log(values + 0.5) - mu) / sigma)
        upper[-1] = 1.0
        return values, np.diff(upper, prepend=0.0)


class Empirical(Document):
    """Measured lengths with optional weights."""

    kind: Literal["empirical"] = "empirical"
    values: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    weights: tuple[PositiveFloat, ...] | None = None

    @model_validator(mode="after")
    def _paired(self) -> Empirical:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"weights needs one entry per value ({len(self.values)}); got {len(self.weights)}")
        return self

    def pmf(self) -> tuple[IntArray, FloatArray]:
        weights = np.ones(len(self.values)) if self.weights is None else np.asarray(self.weights)
        values, index = np.unique(np.asarray(self.values), return_inverse=True)
        probs = np.bincount(index, weights=weights)
        return values, probs / probs.sum()


LengthDistribution = Annotated[Constant | Uniform | Geometric | LogNormal | Empirical, Field(discriminator="kind")]


def mean_length(distribution: Constant | Uniform | Geometric | LogNormal | Empirical) -> float:
    """Mean length in tokens."""
    values, probs = distribution.pmf()
    return float(values @ probs)


def sample_lengths(
    distribution: Constant | Uniform | Geometric | LogNormal | Empirical, uniforms: Sequence[float] | FloatArray
) -> IntArray:
    """Lengths by inverse distribution function, one per uniform in [0, 1): common random numbers stay common."""
    values, probs = distribution.pmf()
    index = np.searchsorted(np.cumsum(probs), np.asarray(uniforms), side="right")
    return values[np.minimum(index, values.size - 1)]
