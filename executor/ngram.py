"""Propose what followed the last time: look-up of the newest tokens in a request's own prompt and output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST = 3
"""Tokens of the longest suffix that is looked up; shorter ones are tried where it never occurred before."""


def continuation(tokens: NDArray[np.int64], num_tokens: int) -> NDArray[np.int64]:
    """Up to `num_tokens` tokens that followed the latest earlier occurrence of the longest known suffix.

    `tokens` [N] is the context; the result is empty where not even the last token occurred before.
    """
    for length in range(min(LONGEST, len(tokens) - 1), 0, -1):
        # The match must end before the last token, so that at least one token follows it.
        matches = np.ones(len(tokens) - length, np.bool_)
        for offset in range(length):
            matches &= tokens[offset : len(tokens) - length + offset] == tokens[len(tokens) - length + offset]
        found = np.flatnonzero(matches)
        if len(found):
            start = int(found[-1]) + length
            return tokens[start : start + num_tokens]
    return tokens[:0]
