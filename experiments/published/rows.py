"""Published rates of speculative speculative decoding, as numbers: what the study reproduces.

All rates in tokens per second, greedy, batch 1, 512 output tokens, target on four H100 SXM, SSD's draft on a fifth.
The reference file `validation/ssd_published.md` holds the same rows; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

PROMPT_KINDS = ("humaneval", "ultrafeedback", "alpaca", "gsm8k")

PAPER = "Speculative Speculative Decoding, Table B.3"
REPRODUCTION = "independent reproduction of SSD (Qwen3-32B/0.6B on 5 H100)"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One pair's published rates, each in the order of `PROMPT_KINDS`."""

    source: str
    ar: tuple[float, ...]
    sd: tuple[float, ...]
    """SD with `SD_LOOKAHEAD` tokens."""
    ssd: dict[int, tuple[float, ...]]
    """Lookahead to rates; uniform fan-out 3, just-in-time fallback."""

    def sd_rate(self, prompt_kind: str | None) -> float:
        """SD's rate on one kind of prompt, or its mean over all of them."""
        return _pick(self.sd, prompt_kind)

    def ssd_rate(self, lookahead: int, prompt_kind: str | None) -> float:
        """SSD's rate on one kind of prompt, or its mean over all of them."""
        return _pick(self.ssd[lookahead], prompt_kind)


def _pick(rates: tuple[float, ...], prompt_kind: str | None) -> float:
    return fmean(rates) if prompt_kind is None else rates[PROMPT_KINDS.index(prompt_kind)]


SD_LOOKAHEAD = 6
"""The engine's default for SD."""

LLAMA = Rows(
    source=PAPER,
    ar=(54.7, 54.7, 54.7, 54.7),
    sd=(176.0, 138.0, 145.0, 188.0),
    ssd={7: (283.0, 215.0, 224.0, 301.0)},
)
"""Llama-3.1-70B drafted by Llama-3.2-1B, the authors' engine."""

QWEN = Rows(
    source=REPRODUCTION,
    ar=(96.9, 97.3, 97.7, 97.6),
    sd=(152.7, 121.7, 127.2, 164.1),
    ssd={4: (224.5, 182.0, 192.4, 244.8), 7: (169.0, 131.4, 141.1, 192.7)},
)
"""Qwen3-32B drafted by Qwen3-0.6B, the independent reproduction."""

VLLM_AR = 65.9
"""vLLM's AR rate for Llama-3.1-70B on the same four GPUs (Figure 1, read from the picture, +-0.7)."""

QWEN_VERIFY_S = 11.45e-3
QWEN_SERVICE_S = 0.71e-3
QWEN_GLUE_S = 2.83e-3
QWEN_TREE_STEP_S = 2.54e-3
QWEN_STORE_S = 0.05e-3
"""The reproduction's profile (synchronised, so slightly inflated), taken at lookahead 4, that is at 15 branches."""
