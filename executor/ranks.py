"""Where a token stands in the draft's logits."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def bonus_ranks(logits: Tensor, columns: Tensor, excluded: Tensor) -> NDArray[np.int64]:
    """Rank [n] of `columns` [n] in `logits` [n, H] without the column `excluded` [n]; 1 is the best.

    A hit needs a fan-out of at least this rank. Equal logits rank by column, as `top_tokens` ranks them; -1
    in `excluded` excludes nothing. A token that the head does not have (column -1) ranks behind all H.
    """
    known = columns.clamp(min=0).unsqueeze(-1)
    value = logits.gather(-1, known)
    order = torch.arange(logits.shape[-1], device=logits.device)
    ahead = (logits > value) | ((logits == value) & (order < known))
    ahead &= order != excluded.unsqueeze(-1)
    ranks = ahead.sum(dim=-1) + 1
    found: NDArray[np.int64] = torch.where(columns >= 0, ranks, logits.shape[-1] + 1).cpu().numpy()
    return found
