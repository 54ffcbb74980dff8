"""Domain checks of the formulas: each takes an argument by name and returns it as float64 or int64.

Every public function of `ssdsim.theory` passes its arguments through these. A scalar comes back as a
Python number, anything array-like as an ndarray, so one formula serves a single point and a million. The
first offending entry is reported by name and index (`acceptance_prob[3]`). bool, NaN, infinities, text and
complex numbers are never numbers here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ssdsim.errors import DomainError

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Real: TypeAlias = float | FloatArray
"""What the formulas return: a float for scalar arguments, a float64 array otherwise."""

_SUM_TOLERANCE = 1e-6
_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_SMALLEST_FLOAT = float(np.nextafter(0.0, 1.0))


def probability(name: str, value: npt.ArrayLike) -> Real:
    """`value` as float64, every entry in [0, 1]."""
    return _bounded(name, value, "must be a number in [0, 1]", low=0.0, high=1.0)


def non_negative(name: str, value: npt.ArrayLike) -> Real:
    """`value` as float64, every entry finite and >= 0."""
    return _bounded(name, value, "must be a finite number >= 0", low=0.0)


def at_least(name: str, value: npt.ArrayLike, minimum: float) -> Real:
    """`value` as float64, every entry finite and >= `minimum`."""
    return _bounded(name, value, f"must be a finite number >= {minimum:g}", low=minimum)


def positive(name: str, value: npt.ArrayLike) -> Real:
    """`value` as float64, every entry finite and > 0."""
    return _bounded(name, value, "must be a finite number > 0", low=_SMALLEST_FLOAT)


def integer(name: str, value: npt.ArrayLike, minimum: int) -> int | IntArray:
    """`value` as int (scalar) or int64 array, every entry a true integer >= `minimum`.

    2.0 is refused: a count that arrives as a float was computed somewhere; whoever computed it decides how
    it is rounded.
    """
    requirement = f"must be an integer >= {minimum}"
    plain: object = value
    if type(plain) is int and plain >= minimum:
        return plain
    array = _numeric(name, value, requirement)
    if array.dtype.kind not in "iu" and array.size:
        raise DomainError(name, requirement, value)
    result = array.astype(np.int64, copy=False)
    refuse_where(result < minimum, name, requirement, result)
    return int(result) if result.ndim == 0 else result


def count(name: str, value: int, minimum: int) -> int:
    """One integer >= `minimum`, never an array."""
    result = integer(name, value, minimum)
    if not isinstance(result, int):
        raise DomainError(name, f"must be one integer >= {minimum}", value)
    return result


def scalar(name: str, value: Real) -> float:
    """`value`, already checked, when a formula takes only one number."""
    if isinstance(value, float):
        return value
    raise DomainError(name, "must be one number, not an array", value)


def vector(name: str, value: Real, length: int | None = None) -> FloatArray:
    """`value`, already checked, as a one-dimensional array (of `length` entries, if given)."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 1:
        raise DomainError(name, "must be a one-dimensional list", value)
    if length is not None and array.size != length:
        raise DomainError(name, f"must have {length} entries", f"{array.size} entries")
    return array


def distribution(name: str, value: npt.ArrayLike) -> FloatArray:
    """Probabilities over the last axis (`[..., V]`), each row summing to 1 within 1e-6."""
    array = np.asarray(probability(name, value), dtype=np.float64)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise DomainError(name, "must list one probability per outcome", value)
    off = np.abs(array.sum(axis=-1) - 1.0) > _SUM_TOLERANCE
    refuse_where(off, name, "must sum to 1", array.sum(axis=-1))
    return array


def refuse_where(bad: Any, name: str, requirement: str, value: Any) -> None:
    """Raise DomainError for the first entry where `bad` holds; `value` broadcasts against `bad`.

    For conditions that join several arguments (E_hit >= E_miss, ...), after each was checked on its own.
    """
    mask = np.asarray(bad)
    if not mask.any():
        return
    values = np.broadcast_to(np.asarray(value), mask.shape)
    index = tuple(int(i) for i in np.argwhere(mask)[0])
    raise DomainError(_entry(name, index), requirement, values[index].item())


def as_real(value: Any) -> Real:
    """A formula's result: a float where every argument was a scalar, else a float64 array."""
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array


def _bounded(name: str, value: npt.ArrayLike, requirement: str, low: float, high: float = _LARGEST_FLOAT) -> Real:
    # Every comparison with NaN is false, so the two bounds refuse NaN and the infinities as well.
    plain: object = value
    if type(plain) is float or type(plain) is int:  # a scalar, without the cost of an array
        if not low <= plain <= high:
            raise DomainError(name, requirement, plain)
        return float(plain)
    array = _numeric(name, value, requirement).astype(np.float64, copy=False)
    if array.size and not (array.min() >= low and array.max() <= high):
        refuse_where(~((array >= low) & (array <= high)), name, requirement, array)
    return float(array) if array.ndim == 0 else array


def _numeric(name: str, value: npt.ArrayLike, requirement: str) -> npt.NDArray[Any]:
    if _has_bool(value):
        raise DomainError(name, f"{requirement} (a bool is not a number)", value)
    try:
        array = np.asarray(value)
    except ValueError as ragged:
        raise DomainError(name, requirement, value) from ragged
    if array.dtype.kind not in "iuf":
        raise DomainError(name, requirement, value)
    return array


def _has_bool(value: Any) -> bool:
    # np.asarray([True, 0.5]) would silently read True as 1.0.
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(_has_bool(entry) for entry in value)
    return isinstance(value, bool | np.bool_)


def _entry(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if index else name
