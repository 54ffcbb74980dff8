"""Appendix C in tokens and bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.errors import DomainError
from ssdsim.theory import overheads


def test_ssd_decodes_budget_times_what_sd_decodes() -> None:
    # b K (K+1) F with b = 16, K = 5, F = 3
    assert overheads.ssd_draft_tokens(16, 5, 6 * 3) == 16 * 5 * 6 * 3
    assert overheads.ssd_draft_tokens(16, 5, 18) / overheads.sd_draft_tokens(16, 5) == 18


def test_cache_memory_at_the_size_the_appendix_calls_hundreds_of_megabytes() -> None:
    # THEORY 1: b = 16, F = 3, K = 5, V = 128k, fp16 logits: 369 MB
    memory = overheads.cache_memory(16, 5, 18, 128_000)
    assert memory.logits_bytes == pytest.approx(369e6, rel=1e-3)
    assert memory.tokens_bytes == 16 * 18 * 5 * 8
    assert overheads.cache_memory(16, 5, 18, 128_000, logit_bytes=0).logits_bytes == 0


def test_the_reply_with_logits_is_not_negligible_off_node() -> None:
    # THEORY 1: 1.3 MB at b = 1 and 82 MB at b = 64 (K = 5), 3.3 ms at 25 GB/s
    traffic = overheads.round_traffic(np.array([1, 64]), 5, 128_000)
    np.testing.assert_allclose(traffic.reply_bytes, [1.28e6, 81.9e6], rtol=1e-3)
    assert overheads.transfer_s(traffic.reply_bytes[1], 25e9) == pytest.approx(3.3e-3, abs=5e-5)
    assert traffic.outcome_bytes.tolist() == [16, 1024]


def test_greedy_decoding_sends_tokens_only() -> None:
    assert overheads.round_traffic(4, 5, 128_000, logit_bytes=0).reply_bytes == 4 * 5 * 8


@pytest.mark.parametrize(
    "call",
    [
        lambda: overheads.ssd_draft_tokens(0, 5, 18),
        lambda: overheads.ssd_draft_tokens(1, 5, -1),
        lambda: overheads.cache_memory(1, 5, 18, 0),
        lambda: overheads.transfer_s(1.0, 0.0),
        lambda: overheads.round_traffic(1, 2.5, 100),
    ],
)
def test_inputs_outside_the_domain_are_refused(call) -> None:
    with pytest.raises(DomainError):
        call()
