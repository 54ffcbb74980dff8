"""A lean forward pass of the Llama family (Llama, SmolLM2, Qwen2, Qwen3), used by both roles.

A step of a small model takes a few milliseconds, and transformers' own forward spends most of that in
Python: cache objects, mask construction, attention dispatch. Here a step is a fixed list of tensor
operations per layer: fused query-key-value and gate-up products, rotary positions from a table, keys and
values written in place into a preallocated cache, attention with an explicit mask. The arithmetic is
transformers' own to rounding; a test holds the two together.

One `Step` describes everything a caller may want to feed: a prompt, one token, a speculation to verify, a
tree of branches. Which cache columns a token may see is in its mask, so nothing here knows about
speculation.

Under tensor parallelism (`executor.tensor_parallel`) each rank holds some heads and a part of the
feed-forward width, and `reduce` sums the partial products of the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

WIDE = 64
"""Query tokens per row from which grouped heads are left to the kernel instead of being folded into the
rows."""


@dataclass(frozen=True, kw_only=True)
class LlamaShape:
    """The sizes of one (shard of a) model."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_tokens: int
    norm_eps: float


class Layer(NamedTuple):
    """Weights of one layer; a matrix is [out, in]."""

    input_norm: Tensor
    qkv: Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # per head, Qwen3
    key_norm: Tensor | None
    out: Tensor  # [hidden, num_heads * head_dim]
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor  # [2 * feed-forward width, hidden]
    down: Tensor  # [hidden, feed-forward width]


class Step(NamedTuple):
    """What one forward pass feeds: n rows of the cache, w tokens each."""

    tokens: Tensor  # int64 [n, w]
    positions: Tensor  # int64 [n, w], for the rotary embedding
    cells: Tensor  # int64 [n * num_kv_heads * w], where keys and values go; see KVCache.cells
    mask: Tensor | None  # [n, 1, w, extent], added to the scores; None: every token sees every column
    rows: slice | Tensor  # the cache rows, n of them
    extent: int  # columns of the cache that the mask speaks of


class KVCache:
    """Keys and values of every layer, preallocated; a token's place is a (row, column) pair.

    `lengths[row]` columns of a row are valid: setting it back is the rollback, nothing is moved or cleared.
    """

    def __init__(self, shape: LlamaShape, num_rows: int, capacity: int, like: Tensor) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        size = (num_rows, shape.num_kv_heads, capacity, shape.head_dim)
        self.keys = [like.new_zeros(size) for _ in range(shape.num_layers)]
        self.values = [like.new_zeros(size) for _ in range(shape.num_layers)]
        self._heads = torch.arange(shape.num_kv_heads, device=like.device).view(1, -1, 1) * capacity
        self._row_stride = shape.num_kv_heads * capacity

    def cells(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Flat indices [n * num_kv_heads * w] of the cells (rows [n], columns [n, w]), one per head."""
        return (rows.view(-1, 1, 1) * self._row_stride + self._heads + columns.unsqueeze(1)).flatten()

    def store(self, layer: int, cells: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [n, num_kv_heads, w, head_dim] of one layer into `cells`."""
        head_dim = keys.shape[-1]
        self.keys[layer].view(-1, head_dim).index_copy_(0, cells, keys.reshape(-1, head_dim))
        self.values[layer].view(-1, head_dim).index_copy_(0, cells, values.reshape(-1, head_dim))


class LlamaModel:
    """Weights and forward pass; holds no state of any request."""

    def __init__(
        self,
        shape: LlamaShape,
        layers: list[Layer],
        embedding: Tensor,
        norm: Tensor,
        head: Tensor,
        rotary: Tensor,
    ) -> None:
        """`rotary` is [2, positions, head_dim]: the cosines and sines, of some positions beyond the context
        too."""
        self.shape, self.layers, self.embedding, self.norm, self.head = shape, layers, embedding, norm, head
        self.reduce: Callable[[Tensor], Tensor] | None = None
        """Sums partial products over the ranks of a sharded model (in place is allowed); None: not
        sharded."""
        half = shape.head_dim // 2
        self._cos = rotary[0]
        # rotate_half(x) = (-x2, x1): with the sign kept in the table, swapping the halves is enough.
        self._sin = torch.cat((-rotary[1, :, :half], rotary[1, :, half:]), dim=-1)

    @property
    def num_parameters(self) -> int:
        """Weights held here; a head tied to the embedding counts once."""
        tensors = [self.embedding, self.norm, *(t for layer in self.layers for t in layer if t is not None)]
        tied = self.head.data_ptr() == self.embedding.data_ptr()
        return sum(t.numel() for t in tensors) + (0 if tied else self.head.numel())

    def forward(self, step: Step, cache: KVCache, head_at: Tensor | None = None, want_logits: bool = True) -> Tensor:
        """Logits [n, w, vocab_size] of a step; keys and values are written into `cache`.

        `head_at` int64 [n]: only this token of each row gets logits, [n, 1, vocab_size].
        `want_logits=False` (a prompt whose continuation is known) returns the hidden states and spares the
        head.
        """
        cos, sin = self._cos[step.positions].unsqueeze(1), self._sin[step.positions].unsqueeze(1)
        mask = self._mask(step)
        hidden = F.embedding(step.tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attention(index, layer, hidden, step, cache, cos, sin, mask)
            hidden = hidden + self._feed_forward(layer, hidden)
        if not want_logits:
            return hidden
        if head_at is not None:
            hidden = hidden.gather(1, head_at.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1]))
        return F.linear(self._rms_norm(hidden, self.norm), self.head)

    def _mask(self, step: Step) -> Tensor | None:
        """The mask, repeated for every query head of a group where `_attention` folds the group into the
        rows."""
        width = step.tokens.shape[1]
        group = self.shape.num_heads // self.shape.num_kv_heads
        if step.mask is None or width > WIDE or group == 1:
            return step.mask
        return step.mask.expand(-1, group, -1, -1).reshape(step.mask.shape[0], 1, group * width, -1)

    def _attention(
        self,
        index: int,
        layer: Layer,
        hidden: Tensor,
        step: Step,
        cache: KVCache,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        shape = self.shape
        n, w, _ = hidden.shape
        qkv = F.linear(self._rms_norm(hidden, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = qkv.view(n, w, -1, shape.head_dim).transpose(1, 2)
        num_rotated = shape.num_heads + shape.num_kv_heads
        rotated = heads[:, :num_rotated]
        if layer.query_norm is not None and layer.key_norm is not None:
            rotated = torch.cat(
                (
                    self._rms_norm(rotated[:, : shape.num_heads], layer.query_norm),
                    self._rms_norm(rotated[:, shape.num_heads :], layer.key_norm),
                ),
                dim=1,
            )
        rotated = _rotate(rotated, cos, sin)
        cache.store(index, step.cells, rotated[:, shape.num_heads :], heads[:, num_rotated:])
        keys = cache.keys[index][step.rows, :, : step.extent]
        values = cache.values[index][step.rows, :, : step.extent]
        queries = rotated[:, : shape.num_heads]
        mixed = _grouped_attention(queries, keys, values, mask, w)
        return self._sum_ranks(F.linear(mixed, layer.out), layer.out_bias)

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        gate, up = F.linear(self._rms_norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return self._sum_ranks(F.linear(F.silu(gate) * up, layer.down), None)

    def _sum_ranks(self, partial: Tensor, bias: Tensor | None) -> Tensor:
        total = partial if self.reduce is None else self.reduce(partial)
        return total if bias is None else total + bias

    def _rms_norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self.shape.norm_eps)


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [n, heads, w, head_dim]; `sin` carries the sign of the swapped halves."""
    first, second = heads.chunk(2, dim=-1)
    return torch.addcmul(heads * cos, torch.cat((second, first), dim=-1), sin)


def _grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, width: int) -> Tensor:
    """Attention of [n, num_heads, w, d] over [n, num_kv_heads, extent, d]; returns [n, w, num_heads * d].

    For narrow steps the query heads of a group become rows of one attention over their shared keys: the
    same sums, and up to a third faster on a CPU than repeating the keys.
    """
    n, num_heads, _, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    if width > WIDE:
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, enable_gqa=num_kv_heads != num_heads
        )
    else:
        folded = queries.reshape(n, num_kv_heads, -1, head_dim)
        mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
        mixed = mixed.view(n, num_heads, width, head_dim)
    return mixed.transpose(1, 2).reshape(n, width, -1)
