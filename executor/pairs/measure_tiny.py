"""What is known of a trained pair: acceptance on held-out and on self-written text, losses, and step times.

Who uses it: `train_tiny`, which stores the result beside the weights.
"""

from __future__ import annotations

import platform
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from executor.pairs.distillation import agreement
from executor.pairs.teacher import GREEDY, SAMPLED, Model, continuation, write_text

_ROWS = 64
_ROW_TOKENS = 256
_PROMPT_TOKENS = 48
_CONTEXT_TOKENS = 200


def measure_pair(target: Model, draft: Model, held_out: Tensor) -> dict[str, Any]:
    """Every number of the pair's README; `held_out` is a stream [n] of ids that neither model was trained on."""
    rows = held_out_rows(held_out)
    prompts = rows[:, :_PROMPT_TOKENS]
    facts: dict[str, Any] = {
        "target_nats_per_token": _nats_per_token(target, rows),
        "draft_nats_per_token": _nats_per_token(draft, rows),
        "held_out_text": agreement(target, draft, rows, first=_PROMPT_TOKENS)._asdict(),
    }
    for name, choice in (("written_at_t0", GREEDY), ("written_at_t1", SAMPLED)):
        scripts = [continuation(prompt, choice) for prompt in prompts.tolist()]
        written = write_text(target, scripts, _ROW_TOKENS, torch.Generator().manual_seed(1), k=1).tokens.long()
        facts[name] = agreement(target, draft, written, first=_PROMPT_TOKENS)._asdict()
    facts["step_times_ms"] = step_times_ms(target, draft)
    facts["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    return facts


def held_out_rows(held_out: Tensor) -> Tensor:
    """64 rows of 256 tokens, evenly spread over the held-out stream."""
    starts = torch.linspace(0, len(held_out) - _ROW_TOKENS, _ROWS).long()
    return torch.stack([held_out[s : s + _ROW_TOKENS] for s in starts.tolist()]).long()


@torch.inference_mode()
def _nats_per_token(model: Model, rows: Tensor) -> float:
    losses = [
        nn.functional.cross_entropy(model(row, use_cache=False).logits[:, :-1].flatten(0, 1), row[:, 1:].flatten())
        for row in torch.split(rows, 8)
    ]
    return torch.stack(losses).mean().item()


def step_times_ms(target: Model, draft: Model, repeats: int = 200) -> dict[str, float]:
    """Milliseconds of one transformers forward at 200 tokens of context: target at widths 1, 5, 9, draft at width 1.

    Processor time, so that waiting for a busy machine does not count (one thread computes), as the median of
    interleaved repeats.
    """
    steps = {f"target_width_{q}": _Step(target, q) for q in (1, 5, 9)} | {"draft_width_1": _Step(draft, 1)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            times[name].append(step())
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


class _Step:
    """One forward of `width` new tokens over a cache of fixed length; calling it returns its milliseconds."""

    def __init__(self, model: Model, width: int) -> None:
        from transformers import DynamicCache

        self._model, self._tokens = model, torch.zeros(1, width, dtype=torch.long)
        self._cache = DynamicCache()
        with torch.inference_mode():
            model(torch.zeros(1, _CONTEXT_TOKENS, dtype=torch.long), cache=self._cache, use_cache=True)

    @torch.inference_mode()
    def __call__(self) -> float:
        start = time.thread_time()
        self._model(self._tokens, cache=self._cache, use_cache=True)
        spent_ms = (time.thread_time() - start) * 1e3
        self._cache.crop(-self._tokens.shape[1])
        return spent_ms
