"""What a target says about text: its top-k next-token probabilities at every position.

Who uses it: the two training scripts. A target that writes text computes these probabilities anyway, so logging
them makes the teacher of a distillation free. Only the k most likely tokens are kept; the rest is one number, the
mass that is missing. What each row is to become is told by its script (`Script`), one token at a time, so rows
with fixed openings, sampled prompts and greedy answers are written side by side in one batch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Model = Any
"""A transformers causal LM in evaluation mode."""

GREEDY = -1
SAMPLED = -2
Script = Generator[int, int, None]
"""One row: yields the token to write next, or GREEDY or SAMPLED (temperature 1) to leave the choice to the model,
and is sent the token that was written. It never ends by itself."""


@dataclass(frozen=True)
class TeacherLog:
    """Rows of text; entry [n, t] of the rest is the target's distribution of token t+1 given tokens 0..t."""

    tokens: Tensor  # [N, L] int32
    top_ids: Tensor  # [N, L, k] int32, most likely first
    top_probs: Tensor  # [N, L, k] float16

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def save(self, path: Path) -> None:
        """Write to `path` (safetensors), whole or not at all."""
        from safetensors.torch import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file({name: value.contiguous() for name, value in vars(self).items()}, partial)
        os.replace(partial, path)

    @staticmethod
    def load(paths: Iterable[Path]) -> TeacherLog:
        """All rows of the given files; their row lengths must be equal."""
        from safetensors.torch import load_file

        return TeacherLog.concatenate([TeacherLog(**load_file(path)) for path in paths])

    @staticmethod
    def concatenate(logs: Sequence[TeacherLog]) -> TeacherLog:
        """All rows of `logs`, in order."""
        names = [field.name for field in dataclasses.fields(TeacherLog)]
        return TeacherLog(**{name: torch.cat([getattr(log, name) for log in logs]) for name in names})


def fixed(tokens: Iterable[int]) -> Script:
    """The part of a script that writes `tokens` (a generator of its own, because a list cannot be sent to)."""
    for token in tokens:  # noqa: UP028
        yield token


def continuation(prompt: Sequence[int], choice: int) -> Script:
    """The script of a row that continues `prompt`, leaving every later token to the model by `choice`."""
    yield from fixed(prompt)
    while True:
        yield choice


@torch.inference_mode()
def write_text(
    model: Model, scripts: Sequence[Script], num_tokens: int, generator: torch.Generator, k: int
) -> TeacherLog:
    """Let `model` write one row of `num_tokens` per script, in one batch, logging its top k at every position."""
    before = model.config._attn_implementation
    cache = _block_cache(model.config.num_hidden_layers)
    model.set_attn_implementation(_one_token_attention(cache))
    try:
        return _write_text(model, cache, scripts, num_tokens, generator, k)
    finally:
        model.set_attn_implementation(before)


def _write_text(
    model: Model, cache: Any, scripts: Sequence[Script], num_tokens: int, generator: torch.Generator, k: int
) -> TeacherLog:
    wanted = [next(script) for script in scripts]
    rows, ids, probs = [], [], []
    dist: Tensor | None = None
    for _ in range(num_tokens):
        tokens = _choose(wanted, dist, generator)
        wanted = [script.send(token) for script, token in zip(scripts, tokens.tolist(), strict=True)]
        logits = model(tokens[:, None], cache=cache, use_cache=True).logits[:, -1]
        dist = torch.softmax(logits, -1, dtype=torch.float32)
        top = dist.topk(k, dim=-1)
        rows.append(tokens.int())
        ids.append(top.indices.int())
        probs.append(top.values.half())
    return TeacherLog(torch.stack(rows, 1), torch.stack(ids, 1), torch.stack(probs, 1))


@torch.inference_mode()
def read_text(model: Model, rows: Tensor, k: int, rows_at_once: int = 8) -> TeacherLog:
    """Log `model`'s top k over given text [N, L]."""
    logs = []
    for part in torch.split(rows, rows_at_once):
        top = torch.softmax(model(part.long(), use_cache=False).logits.float(), -1).topk(k, dim=-1)
        logs.append(TeacherLog(part.int(), top.indices.int(), top.values.half()))
    return TeacherLog.concatenate(logs)


def _choose(wanted: Sequence[int], dist: Tensor | None, generator: torch.Generator) -> Tensor:
    """The next token of every row [B]: the wanted one, or the model's choice from `dist` [B, V]."""
    tokens = torch.tensor(wanted)
    if dist is None:
        return tokens
    greedy, sampled = tokens == GREEDY, tokens == SAMPLED
    tokens[greedy] = dist[greedy].argmax(-1)
    if sampled.any():
        # The inverse of the cumulative distribution: a quarter of the time that torch.multinomial takes here.
        cumulative = dist[sampled].cumsum(-1)
        drawn = torch.rand(len(cumulative), 1, generator=generator) * cumulative[:, -1:]
        tokens[sampled] = torch.searchsorted(cumulative, drawn)[:, 0]
    return tokens


def _one_token_attention(cache: Any) -> str:
    """An attention for steps of one token over a `_block_cache`, under the name returned.

    transformers repeats the keys and values for every query head first, and torch's fused kernel is made for many
    queries; here a group's query heads share its keys in two products over whole blocks.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        rows, heads, _width, head_dim = query.shape
        grouped = query.reshape(rows, key.shape[1], -1, head_dim)
        scores = torch.matmul(grouped, key.transpose(-1, -2)) * scaling
        scores[..., cache.get_seq_length(module.layer_idx) :] = -torch.inf
        mixed = torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype), value)
        return mixed.view(rows, 1, heads, head_dim), None

    name = "one_token"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    return name


_BLOCK = 32
"""Positions by which a `_block_cache` grows."""


def _block_cache(num_layers: int) -> Any:
    """A KV cache that grows by blocks and hands out whole ones: what it holds, then zeros up to the block's end.

    DynamicCache copies everything it holds at every token, and a product of a part of a tensor copies that part.
    """
    from transformers import Cache
    from transformers.cache_utils import DynamicLayer

    class BlockLayer(DynamicLayer):  # type: ignore[misc]
        length = 0

        def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if not self.is_initialized:
                self.lazy_initialization(keys, values)
                self.keys = self.values = keys[:, :, :0]
            if self.length == self.keys.shape[-2]:
                self.keys, self.values = (_one_block_longer(held) for held in (self.keys, self.values))
            self.keys[:, :, self.length : self.length + 1] = keys
            self.values[:, :, self.length : self.length + 1] = values
            self.length += 1
            return self.keys, self.values

        def get_seq_length(self) -> int:
            return self.length

    return Cache(layers=[BlockLayer() for _ in range(num_layers)])


def _one_block_longer(held: Tensor) -> Tensor:
    batch, heads, length, head_dim = held.shape
    longer = held.new_zeros(batch, heads, length + _BLOCK, head_dim)
    longer[:, :, :length] = held
    return longer
