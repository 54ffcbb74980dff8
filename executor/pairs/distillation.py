"""Losses and agreement measures between a draft and a target.

Who uses it: the training scripts (losses against a logged target) and the reports and tests of the pairs
(agreement of two full distributions). The probability that verification accepts a drafted token is, by Theorem 1,
the overlap sum_x min(p(x), q(x)) = 1 - TV(p, q); under greedy decoding it is whether both put the same token
first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from executor.pairs.teacher import Model


class Agreement(NamedTuple):
    """How often a draft would be accepted at one position, given the true prefix."""

    sampled: float  # mean overlap 1 - TV(p, q): acceptance at temperature 1
    greedy: float  # share of positions whose most likely tokens agree: acceptance at temperature 0
    num_positions: int


def distillation_loss(logits: Tensor, top_ids: Tensor, top_probs: Tensor, overlap_weight: float) -> Tensor:
    """Cross-entropy of a draft's logits [..., V] against logged probabilities [..., k], plus the lost overlap.

    The mass outside the top k is one further outcome on both sides, so the loss is that of a proper (coarser)
    distribution. `overlap_weight` weighs the total variation, which is the probability of a rejection itself.
    """
    log_q = torch.log_softmax(logits.float(), -1).gather(-1, top_ids.long())
    p = top_probs.float()
    p_rest = (1 - p.sum(-1)).clamp(min=0)
    q_rest = (1 - log_q.exp().sum(-1)).clamp(min=1e-6)
    cross_entropy = -(p * log_q).sum(-1) - p_rest * q_rest.log()
    overlap = torch.minimum(p, log_q.exp()).sum(-1) + torch.minimum(p_rest, q_rest)
    return (cross_entropy + overlap_weight * (1 - overlap)).mean()


@torch.inference_mode()
def agreement(target: Model, draft: Model, rows: Tensor, first: int = 0) -> Agreement:
    """Agreement of two models over text [N, L], at the positions `first`..L-1 of every row."""
    sampled, greedy = [], []
    for row in torch.split(rows, 4):
        p = torch.softmax(target(row, use_cache=False).logits[:, first:].float(), -1)
        q = torch.softmax(draft(row, use_cache=False).logits[:, first:].float(), -1)
        sampled.append(torch.minimum(p, q).sum(-1).flatten())
        greedy.append((p.argmax(-1) == q.argmax(-1)).float().flatten())
    overlap, same = torch.cat(sampled), torch.cat(greedy)
    return Agreement(overlap.mean().item(), same.mean().item(), overlap.numel())
