"""The tree of branches that a build grows: where each forks, what it may see, where its keys and values lie.

After the reply left, the speculator feeds the reply's tokens in one *glue* forward: the bonus token and the
n proposed tokens, n+1 new positions whose logits tell what the verifier is likely to add after 0..n
accepted tokens. At position k the `fan_out[k]` best tokens fork, the proposed token excluded where it would
have been rejected (k < n). Then all branches of all rows grow together, one token each per *tree step*.

A branch sees its row's trunk up to its fork and its own chain. Its keys and values lie behind the longest
trunk of the batch, step after step:

    columns    0 .............. base | step 0: B branches | step 1: B branches | ...
    branch i   trunk before the fork |          i         |          i         |

so the mask of step j is the first columns of one mask made per build, and the scratch part of that is one
fixed pattern. On a hit nothing is copied: the next glue forward computes the branch's n positions again
together with the one it needs anyway, at a price that such a narrow forward hardly shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.contexts import Ints
from executor.decoder import Decoder, additive
from executor.llama import Step
from ssdsim.verification import top_tokens


class Forks(NamedTuple):
    """Branches of n rows, padded to B: entry [row, i] is a branch where `valid`."""

    num_accepted: Ints  # [n, B], the accepted count that the branch prepares for
    rank: Ints  # [n, B], 0 for the best candidate of its position
    valid: NDArray[np.bool_]  # [n, B]


def forks(vectors: Sequence[tuple[int, ...]]) -> Forks:
    """The branches of rows with these fan-out vectors."""
    templates = [_template(vector) for vector in vectors]
    width = max(len(t.rank) for t in templates)
    if all(len(t.rank) == width for t in templates):
        return Forks(
            np.stack([t.num_accepted for t in templates]),
            np.stack([t.rank for t in templates]),
            np.stack([t.valid for t in templates]),
        )
    size = (len(vectors), width)
    padded = Forks(np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.bool_))
    for row, template in enumerate(templates):
        for target, source in zip(padded, template, strict=True):
            target[row, : len(source)] = source
    return padded


@lru_cache(maxsize=1024)
def _template(vector: tuple[int, ...]) -> Forks:
    counts = np.array(vector, np.int64)
    num_accepted = np.repeat(np.arange(len(vector)), counts)
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(num_accepted)) - starts[num_accepted]
    return Forks(num_accepted, rank, np.ones(len(rank), np.bool_))


def fork_columns(logits: Tensor, excluded: Tensor, branches: Forks) -> Tensor:
    """Head columns [n, B] of the forking tokens.

    `logits` [n, w, H] of the glue forward; `excluded` [n, w] the proposed token's column at its position,
    -1 where nothing is excluded (the last position, or a token that the head does not have).
    """
    best = top_tokens(logits, int(branches.rank.max()) + 1, exclude=excluded)
    rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
    num_accepted = torch.from_numpy(branches.num_accepted).to(logits.device)
    taken: Tensor = best[rows, num_accepted, torch.from_numpy(branches.rank).to(logits.device)]
    return taken


class TreeSteps:
    """The steps of one build: makes the `Step` of each from the tokens that it feeds."""

    def __init__(self, decoder: Decoder, rows: Ints, trunk_tokens: Ints, branches: Forks, num_steps: int) -> None:
        """`trunk_tokens` [n]: tokens of each row up to and including the bonus token, where counting
        starts."""
        device = decoder.device
        self._decoder = decoder
        self._num_branches = branches.rank.shape[1]
        self._base = int(decoder.lengths[rows].max())
        self._rows = decoder.row_index(rows)
        self._row_tensor = torch.from_numpy(rows).to(device)
        first = torch.from_numpy(trunk_tokens[:, None] + branches.num_accepted).to(device)  # [n, B]
        self._positions = first
        trunk = decoder.columns[: self._base] < first.unsqueeze(-1)  # [n, B, base]
        own = _own_chain(self._num_branches, num_steps, device).expand(len(rows), -1, -1)
        self._mask = additive(torch.cat((trunk, own), dim=-1), decoder.model.embedding)

    def step(self, index: int, tokens: Tensor) -> Step:
        """Feed `tokens` int64 [n, B], one per branch, as the branches' token number `index`."""
        start = self._base + index * self._num_branches
        extent = start + self._num_branches
        columns = self._decoder.columns[start:extent].expand(len(tokens), -1)
        return Step(
            tokens=tokens,
            positions=self._positions + index,
            cells=self._decoder.cache.cells(self._row_tensor, columns),
            mask=self._mask[..., :extent],
            rows=self._rows,
            extent=extent,
        )


@lru_cache(maxsize=256)
def _own_chain(num_branches: int, num_steps: int, device: torch.device) -> Tensor:
    """bool [1, B, num_steps * B]: each branch sees its own entry of every step."""
    return torch.eye(num_branches, dtype=torch.bool, device=device).tile(1, num_steps).unsqueeze(0)
