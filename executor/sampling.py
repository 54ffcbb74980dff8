"""Random draws that belong to a request, and the distributions they are drawn from.

Every draw is a function of (request seed, absolute position in the sequence, stream): the draft's token at
a position, the acceptance test there, the bonus token there. So a request's tokens do not depend on what
shares its batch, on the mode's round boundaries, or on which branch of a cache prepared them, and SSD with
`jit` samples exactly what SD samples. Re-using a position's draw in a later round is sound because the
earlier round never looked at it: a round looks at a position only if every position before was accepted,
and then settles it.

At temperature 0 a distribution is a point mass, so one acceptance rule serves batches that mix temperatures.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Stream(IntEnum):
    """Independent sequences of draws of one request."""

    DRAFT = 1
    ACCEPT = 2
    BONUS = 3
    RANDOM = 4
    LOOKUP = 5


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64], stream: Stream) -> NDArray[np.float64]:
    """Numbers in [0, 1) for `positions` [n, w] of requests with `seeds` [n].

    Counter-based: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) applied to the seed, then to
    the stream and the position on top of it; no state, any order, any subset.
    """
    with np.errstate(over="ignore"):
        key = _mix(seeds + _GOLDEN * np.uint64(stream))
        bits = _mix(_mix(key[:, None] + positions.astype(np.uint64) * _GOLDEN) ^ key[:, None])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def best(logits: Tensor) -> Tensor:
    """Column of the largest logit [...], the first one on a tie, of logits [..., V].

    On a CPU torch's kernel takes several times as long as numpy's, most of all in bf16.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(np.asarray(logits.float().numpy().argmax(axis=-1)))


def probabilities(logits: Tensor, temperatures: NDArray[np.float64]) -> Tensor:
    """float32 [n, w, V] at one temperature per row; a point mass on the largest logit at temperature 0."""
    logits = logits.float()
    scale = torch.from_numpy(np.where(temperatures > 0, temperatures, 1.0)).to(logits)
    probs = torch.softmax(logits / scale.view(-1, *[1] * (logits.ndim - 1)), dim=-1)
    greedy = np.flatnonzero(temperatures == 0)
    if len(greedy):
        rows = torch.from_numpy(greedy).to(logits.device)
        mass = best(logits[rows]).unsqueeze(-1)
        probs[rows] = torch.zeros_like(probs[rows]).scatter_(-1, mass, 1.0)
    return probs


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
