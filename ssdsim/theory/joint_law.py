"""How many of a batch's independent slots end a round in which way: binomial and joint count laws.

In round index the slots of a lock-stepped batch are independent (THEORY 2.1), so the number of drafted rows
is binomial and that of (drafted rows, misses, admissions) multinomial. Joint laws are taken from the
generating function on the unit circle: b slots are its b-th power (or a product, when the slots differ), and
one inverse discrete Fourier transform returns the probabilities, exact to rounding (about 1e-16 each) because
a count among b slots has b+1 values. Used by `round_time`, `renewal` and `threshold`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, count

ComplexArray: TypeAlias = npt.NDArray[np.complex128]

MAX_SLOTS = 1000
"""Largest batch: beyond it a binomial coefficient leaves the range of a float."""


def batch_slots(batch_size: int) -> int:
    """`batch_size` as an integer from 1 to `MAX_SLOTS`; raises DomainError otherwise."""
    slots = count("batch_size", batch_size, 1)
    if slots > MAX_SLOTS:
        raise DomainError("batch_size", f"must be at most {MAX_SLOTS} here", slots)
    return slots


def binomial_terms(slots: int, first: FloatArray, second: FloatArray) -> FloatArray:
    """C(slots, n) first^n second^(slots-n) for n = 0..slots; shapes [...] -> [..., slots+1].

    With second = 1 - first these are binomial probabilities; with less they are the part of the law in which
    every slot fell into one of the two classes.
    """
    terms = powers(first, slots)
    terms *= powers(second, slots)[..., ::-1]
    terms *= _coefficients(slots)
    return terms


def powers(base: FloatArray, degree: int) -> FloatArray:
    """base^0 .. base^degree along a new last axis, by repeated multiplication (0^0 = 1)."""
    result = np.empty((*np.shape(base), degree + 1))
    result[..., 0] = 1.0
    result[..., 1:] = np.asarray(base)[..., None]
    return np.multiply.accumulate(result, axis=-1, out=result)


def joint_counts(slots: int, class_prob: FloatArray, counted: Sequence[Sequence[int]]) -> FloatArray:
    """Joint law of several counts among `slots` independent slots of the same law.

    `class_prob` [points, classes]: probability of each class in which a slot can end a round; a sum below 1
    gives the part of the law in which no slot fell outside. `counted`: per count, the classes that raise it.
    Returns [points, slots+1, ...], one axis of slots+1 per count.
    """
    transform = class_prob @ _monomials(slots, class_prob.shape[-1], _hashable(counted))
    return _invert(_integer_power(transform, slots), slots, len(counted))


def joint_counts_of_rows(class_prob: FloatArray, counted: Sequence[Sequence[int]]) -> FloatArray:
    """Joint law of several counts when every slot has its own law (Poisson-binomial, jointly).

    `class_prob` [slots, classes]; `counted` as in `joint_counts`. Returns [slots+1, ...].
    """
    slots, classes = class_prob.shape
    transform = class_prob @ _monomials(slots, classes, _hashable(counted))
    product: ComplexArray = np.multiply.reduce(transform, axis=0, keepdims=True)
    law: FloatArray = _invert(product, slots, len(counted))[0]
    return law


def misses_given_drafted(slots: int, hit_after_draft: FloatArray, hit_after_fallback: FloatArray) -> FloatArray:
    """P(m of `slots` rows miss | n of them were drafted): [...] and [...] -> [..., n, m]."""
    root = np.exp(-2j * np.pi * np.arange((slots + 1) // 2 + 1) / (slots + 1))
    drafted, fallback = (
        hit[..., None] + (1.0 - hit[..., None]) * root for hit in (hit_after_draft, hit_after_fallback)
    )
    transform = _complex_powers(drafted, slots) * _complex_powers(fallback, slots)[..., ::-1, :]
    return np.maximum(np.fft.irfft(transform, n=slots + 1, axis=-1), 0.0)


def _complex_powers(base: ComplexArray, degree: int) -> ComplexArray:
    """base^0 .. base^degree along a new axis before the last."""
    result = np.empty((*base.shape[:-1], degree + 1, base.shape[-1]), dtype=np.complex128)
    result[..., 0, :] = 1.0
    result[..., 1:, :] = base[..., None, :]
    return np.multiply.accumulate(result, axis=-2, out=result)


def _hashable(counted: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(members) for members in counted)


@lru_cache(maxsize=64)
def _coefficients(slots: int) -> FloatArray:
    return np.array([math.comb(slots, n) for n in range(slots + 1)], dtype=np.float64)


@lru_cache(maxsize=64)
def _monomials(slots: int, classes: int, counted: tuple[tuple[int, ...], ...]) -> ComplexArray:
    """What one slot in each class contributes to the transform: [classes, frequencies].

    The last count keeps half of its frequencies only: the law is real.
    """
    size = slots + 1
    root = np.exp(-2j * np.pi * np.arange(size) / size)
    shape = (size,) * (len(counted) - 1) + (size // 2 + 1,)
    result = np.ones((classes, *shape), dtype=np.complex128)
    for axis, members in enumerate(counted):
        along = root[: shape[axis]].reshape((-1,) + (1,) * (len(counted) - 1 - axis))
        for member in members:
            result[member] *= along
    return result.reshape(classes, -1)


def _integer_power(base: ComplexArray, exponent: int) -> ComplexArray:
    result = base.copy()
    for bit in bin(exponent)[3:]:
        result *= result
        if bit == "1":
            result *= base
    return result


def _invert(transform: ComplexArray, slots: int, num_counts: int) -> FloatArray:
    size = slots + 1
    shape = (len(transform), *((size,) * (num_counts - 1)), size // 2 + 1)
    axes = tuple(range(1, num_counts + 1))
    law: FloatArray = np.fft.irfftn(transform.reshape(shape), s=(size,) * num_counts, axes=axes)
    return law
