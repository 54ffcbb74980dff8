"""What SSD costs beside time (Appendix C): draft compute, cache memory, traffic. In tokens and bytes.

The appendix counts a uniform fan-out F, which is the budget B = (K+1) F; here the budget is the argument,
so every allocation is covered. Its "bits" are words: these functions take the word sizes. Arguments
broadcast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy.typing as npt

from ssdsim.theory import domain
from ssdsim.theory.domain import Real


def sd_draft_tokens(batch_size: npt.ArrayLike, num_speculative_tokens: npt.ArrayLike) -> Real:
    """Tokens the draft decodes per round of SD: b K."""
    b, k = domain.integer("batch_size", batch_size, 1), _lookahead(num_speculative_tokens)
    return domain.as_real(b * k)


def ssd_draft_tokens(
    batch_size: npt.ArrayLike, num_speculative_tokens: npt.ArrayLike, speculation_budget: npt.ArrayLike
) -> Real:
    """Tokens the draft decodes per round of SSD: b K B, with a uniform fan-out b K (K+1) F.

    B times what SD decodes: the appendix's factor (K+1) F.
    """
    budget = domain.integer("speculation_budget", speculation_budget, 0)
    return domain.as_real(sd_draft_tokens(batch_size, num_speculative_tokens) * budget)


class CacheMemory(NamedTuple):
    """Bytes of one speculation cache."""

    tokens_bytes: Real
    logits_bytes: Real
    """the draft's logits for every stored token; zero under greedy decoding, which needs none"""


def cache_memory(
    batch_size: npt.ArrayLike,
    num_speculative_tokens: npt.ArrayLike,
    speculation_budget: npt.ArrayLike,
    vocabulary: npt.ArrayLike,
    *,
    token_bytes: int = 8,
    logit_bytes: int = 2,
) -> CacheMemory:
    """Memory of the speculation cache: b B K tokens and as many rows of V logits (0 `logit_bytes` if greedy)."""
    stored = ssd_draft_tokens(batch_size, num_speculative_tokens, speculation_budget)
    v = domain.integer("vocabulary", vocabulary, 1)
    return CacheMemory(
        domain.as_real(stored * domain.count("token_bytes", token_bytes, 1)),
        domain.as_real(stored * v * domain.count("logit_bytes", logit_bytes, 0)),
    )


class RoundTraffic(NamedTuple):
    """Bytes on the link in one round."""

    outcome_bytes: Real
    """verifier to speculator: accepted count and bonus token of each request"""
    reply_bytes: Real
    """speculator to verifier: the speculation, with its logits unless greedy"""


def round_traffic(
    batch_size: npt.ArrayLike,
    num_speculative_tokens: npt.ArrayLike,
    vocabulary: npt.ArrayLike,
    *,
    token_bytes: int = 8,
    logit_bytes: int = 2,
) -> RoundTraffic:
    """Traffic of one round: 2 b words out, b K (token + V logits) back. 0 `logit_bytes` if greedy."""
    b, k = domain.integer("batch_size", batch_size, 1), _lookahead(num_speculative_tokens)
    word = domain.count("token_bytes", token_bytes, 1)
    row = word + domain.integer("vocabulary", vocabulary, 1) * domain.count("logit_bytes", logit_bytes, 0)
    return RoundTraffic(domain.as_real(2 * b * word), domain.as_real(b * k * row))


def transfer_s(
    size_bytes: npt.ArrayLike, bandwidth_bytes_per_s: npt.ArrayLike, latency_s: npt.ArrayLike = 0.0
) -> Real:
    """Seconds to move `size_bytes` over a link: latency plus size over bandwidth."""
    size = domain.non_negative("size_bytes", size_bytes)
    bandwidth = domain.positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    return domain.as_real(domain.non_negative("latency_s", latency_s) + size / bandwidth)


def _lookahead(num_speculative_tokens: npt.ArrayLike) -> int | domain.IntArray:
    return domain.integer("num_speculative_tokens", num_speculative_tokens, 1)
