"""Which prompts are fed in one forward."""

from __future__ import annotations

import numpy as np
import pytest

from executor.drafting import PADDING_TOKENS, PREFILL_TOKENS, _num_together


@pytest.mark.parametrize(
    ("widths", "together"),
    [
        ([40], 1),
        ([40, 45, 50], 3),  # 5 and 2 x 5 tokens of padding
        ([10, 10 + PADDING_TOKENS + 1], 1),
        ([10, 10 + PADDING_TOKENS], 2),
        ([10, 12, 12 + PADDING_TOKENS], 2),  # the third would pad two rows
        ([PREFILL_TOKENS + 1, PREFILL_TOKENS + 1], 1),  # wider than a forward may be, and fed all the same
        ([PREFILL_TOKENS // 2] * 3, 2),
    ],
)
def test_prompts_share_a_forward_while_their_lengths_are_close(widths: list[int], together: int) -> None:
    assert _num_together(np.array(widths)) == together
