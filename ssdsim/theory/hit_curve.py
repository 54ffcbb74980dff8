"""Hit curves: probability that the bonus token is among the F candidates cached at one position.

A curve is an object with h(0) = 0 that never decreases. Fan-out allocation, the exact model and the
simulator ask it for `hit_prob`; a new family is a new small class that satisfies `HitCurve`. All are frozen
and hashable, so results can be cached by curve.

The paper's law 1 - F^-r is `PowerLaw(r)`: nothing at F = 1, which no measured curve shows; hence the
prefactor (THEORY 4). The position where every token was accepted has its own curve, `AllAccepted`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.domain import FloatArray, Real

_CONCAVITY_TOLERANCE = 1e-12


class HitCurve(Protocol):
    """What every curve answers. Instances are immutable and hashable."""

    def hit_prob(self, fan_out: npt.ArrayLike) -> Real:
        """Probability of a hit with `fan_out` candidates (integers >= 0, any shape)."""

    def increments(self, max_fan_out: int) -> FloatArray:
        """h(j) - h(j - 1) for j = 1..max_fan_out: what one more candidate is worth."""

    def is_concave(self, max_fan_out: int) -> bool:
        """Whether the increments never rise up to `max_fan_out`, so that greedy allocation is optimal."""

    def __hash__(self) -> int:
        """Equal curves hash alike."""


class _Curve(ABC):
    """Increments and concavity follow from the curve itself."""

    __slots__ = ()

    def hit_prob(self, fan_out: npt.ArrayLike) -> Real:
        """Probability of a hit with `fan_out` candidates (integers >= 0, any shape)."""
        candidates = np.asarray(domain.integer("fan_out", fan_out, 0), dtype=np.float64)
        return domain.as_real(np.where(candidates > 0, self._positive(np.maximum(candidates, 1.0)), 0.0))

    def increments(self, max_fan_out: int) -> FloatArray:
        """h(j) - h(j - 1) for j = 1..max_fan_out: what one more candidate is worth."""
        steps = np.arange(domain.count("max_fan_out", max_fan_out, 0) + 1)
        return np.diff(np.asarray(self.hit_prob(steps), dtype=np.float64))

    def is_concave(self, max_fan_out: int) -> bool:
        """Whether the increments never rise up to `max_fan_out`, so that greedy allocation is optimal."""
        return bool(np.all(np.diff(self.increments(max_fan_out)) <= _CONCAVITY_TOLERANCE))

    @abstractmethod
    def _positive(self, candidates: FloatArray) -> FloatArray:
        """The curve at fan-outs >= 1, given as floats."""


@dataclass(frozen=True, slots=True)
class PowerLaw(_Curve):
    """h(F) = 1 - prefactor F^-exponent for F >= 1, h(0) = 0 (section 4.1.2; prefactor: THEORY 4.2).

    Concave from 0 only if prefactor <= 1 / (2 - 2^-exponent); see `fan_out.max_concave_prefactor`.
    """

    exponent: float
    """r > 0"""
    prefactor: float = 1.0
    """c in (0, 1]: the miss probability at F = 1; the paper's law is c = 1"""

    def __post_init__(self) -> None:
        domain.scalar("exponent", domain.positive("exponent", self.exponent))
        domain.scalar("prefactor", domain.positive("prefactor", self.prefactor))
        domain.probability("prefactor", self.prefactor)

    def _positive(self, candidates: FloatArray) -> FloatArray:
        return 1.0 - self.prefactor * candidates**-self.exponent


@dataclass(frozen=True, slots=True)
class ShiftedPowerLaw(_Curve):
    """h(F) = 1 - (1 + F / scale)^-exponent: concave from 0 for every exponent (THEORY 4.2)."""

    exponent: float
    """r > 0"""
    scale: float
    """s > 0, in candidates"""

    def __post_init__(self) -> None:
        domain.scalar("exponent", domain.positive("exponent", self.exponent))
        domain.scalar("scale", domain.positive("scale", self.scale))

    def _positive(self, candidates: FloatArray) -> FloatArray:
        return 1.0 - (1.0 + candidates / self.scale) ** -self.exponent


@dataclass(frozen=True, slots=True)
class Table(_Curve):
    """A measured curve: `values[F]` for F = 0, 1, ...; held constant beyond the last entry.

    Holding is a lower bound; `max_measured_fan_out` tells a caller when an answer rests on it.
    """

    values: tuple[float, ...]
    """h(0), h(1), ...: h(0) = 0, never decreasing, at most 1"""

    def __post_init__(self) -> None:
        checked = domain.vector("values", domain.probability("values", self.values))
        if checked.size == 0 or checked[0] != 0.0:
            raise DomainError("values", "must start with h(0) = 0", self.values)
        falls = np.diff(checked) < 0
        domain.refuse_where(falls, "values", "must never decrease (fit isotonically first)", checked[1:])
        object.__setattr__(self, "values", tuple(checked.tolist()))

    @property
    def max_measured_fan_out(self) -> int:
        """The largest fan-out the table covers."""
        return len(self.values) - 1

    def _positive(self, candidates: FloatArray) -> FloatArray:
        index = np.minimum(candidates, self.max_measured_fan_out).astype(np.int64)
        return np.asarray(self.values)[index]


@dataclass(frozen=True, slots=True)
class AllAccepted(_Curve):
    """The position where every drafted token was accepted, under greedy decoding (THEORY 4.3).

    Nothing was rejected there, so the draft's own favourite is still a candidate: it is the target's token
    with the acceptance probability, and further candidates meet what is left, h(F) = a + (1 - a) base(F -
    1). The same holds after a fallback that proposes nothing. At T > 0 measure this curve on its own.
    """

    acceptance_prob: float
    """a: probability that the draft's first choice is the target's"""
    base: HitCurve
    """the curve at a rejection"""

    def __post_init__(self) -> None:
        domain.scalar("acceptance_prob", domain.probability("acceptance_prob", self.acceptance_prob))

    def _positive(self, candidates: FloatArray) -> FloatArray:
        beyond_first = np.asarray(self.base.hit_prob(candidates.astype(np.int64) - 1), dtype=np.float64)
        return self.acceptance_prob + (1.0 - self.acceptance_prob) * beyond_first


def curves_by_position(curves: HitCurve | Sequence[HitCurve], num_positions: int) -> tuple[HitCurve, ...]:
    """One curve for each of `num_positions` positions; a single curve serves all of them."""
    if not isinstance(curves, Sequence):
        return (curves,) * num_positions
    if len(curves) != num_positions:
        raise DomainError("curves", f"must hold one curve per position, {num_positions}", len(curves))
    return tuple(curves)
