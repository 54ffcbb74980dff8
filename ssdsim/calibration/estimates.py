"""Estimated numbers with their covariance on the way into a profile, in as few digits as they deserve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.profile import Uncertainty

FloatArray = NDArray[np.float64]

_DIGITS = 6
_DIGITS_OF_ERRORS = 3
_DECIMALS_OF_CORRELATIONS = 3


class Estimates(NamedTuple):
    """Fields that were estimated together."""

    paths: tuple[str, ...]
    covariance: FloatArray
    """[paths, paths]"""

    def below(self, prefix: str) -> Estimates:
        """The same with paths that start further up."""
        return Estimates(tuple(f"{prefix}.{path}" for path in self.paths), self.covariance)

    def uncertainty(self) -> Uncertainty | None:
        """As the profile holds it, without fields that are certain; None where all of them are."""
        errors = np.sqrt(np.clip(np.diagonal(self.covariance), 0.0, None))
        kept = np.flatnonzero(errors > 0)
        if not len(kept):
            return None
        correlations = self.covariance[np.ix_(kept, kept)] / np.outer(errors[kept], errors[kept])
        lower = np.round(np.clip(correlations, -1.0, 1.0), _DECIMALS_OF_CORRELATIONS)
        return Uncertainty(
            paths=tuple(self.paths[i] for i in kept),
            standard_errors=tuple(rounded(float(errors[i]), _DIGITS_OF_ERRORS) for i in kept),
            correlations=tuple(tuple(row[:i].tolist()) for i, row in enumerate(lower)) if len(kept) > 1 else (),
        )


def rounded(value: float, digits: int = _DIGITS) -> float:
    """The value with so many significant digits."""
    return float(f"{value:.{digits}g}")
