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

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from executor.matrix import Matrix

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
    """Weights of one layer.

    The weights of the two norms, and the square root of their width (see `LlamaModel._unit`), are multiplied into
    the columns of `qkv` and `gate_up`: a norm only scales.
    """

    qkv: Matrix  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    query_norm: Tensor | None  # per head, times the square root of head_dim; Qwen3
    key_norm: Tensor | None
    out: Matrix  # num_heads * head_dim -> hidden, without its bias: ranks of a sharded model add it once
    out_bias: Tensor | None
    gate_up: Matrix  # hidden -> 2 * feed-forward width
    down: Matrix  # feed-forward width -> hidden


class Step(NamedTuple):
    """What one forward pass feeds: n rows of the cache, w tokens each."""

    tokens: Tensor  # int64 [n, w]
    positions: Tensor  # int64 [n, w], for the rotary embedding
    cells: Tensor  # int64 [n * w], where keys and values go; see KVCache.cells
    mask: Tensor | None  # [n, 1, w, extent], added to the scores; None: every token sees every column
    rows: slice | Tensor  # the cache rows, n of them
    extent: int  # columns of the cache that the mask speaks of


class KVCache:
    """Keys and values of every layer, preallocated; a token's cell is a (row, column) pair.

    Per layer [num_rows, capacity, 2, num_kv_heads, head_dim]: what a token stores lies together, as the fused
    product leaves it, so that storing is one copy.
    """

    def __init__(self, shape: LlamaShape, num_rows: int, capacity: int, like: Tensor) -> None:
        self.num_rows, self.capacity = num_rows, capacity
        size = (num_rows, capacity, 2, shape.num_kv_heads, shape.head_dim)
        self._layers = [like.new_zeros(size) for _ in range(shape.num_layers)]
        self._flat = [layer.view(num_rows * capacity, -1) for layer in self._layers]
        self.graphs: dict[Any, Any] = {}
        """Steps that were captured over this cache (see `executor.graphs`); they end with it."""

    def cells(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Flat indices [n * w] of the cells (rows [n], columns [n, w])."""
        return (rows.unsqueeze(1) * self.capacity + columns).flatten()

    def store(self, layer: int, cells: Tensor, keys_values: Tensor) -> None:
        """Write one layer's keys and values [n * w, 2 * num_kv_heads * head_dim]."""
        self._flat[layer].index_copy_(0, cells, keys_values)

    def read(self, layer: int, rows: slice | Tensor, extent: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values [n, num_kv_heads, extent, head_dim]; a copy where `rows` is an index."""
        keys, values = self._layers[layer][rows, :extent].transpose(1, 3).unbind(2)
        return keys, values


class LlamaModel:
    """Weights and forward pass; holds no state of any request."""

    def __init__(
        self,
        shape: LlamaShape,
        layers: list[Layer],
        embedding: Tensor,
        norm: Tensor,
        head: Matrix,
        rotary: Tensor,
    ) -> None:
        """`rotary` is [2, positions, head_dim]: the cosines and sines, of some positions beyond the context too.
        `norm` [hidden] is times the square root of its width."""
        self.shape, self.layers, self.embedding, self.norm, self.head = shape, layers, embedding, norm, head
        self.reduce: Callable[[Tensor], Tensor] | None = None
        """Sums partial products over the ranks of a sharded model (in place is allowed); None: not sharded."""
        self._shortest = {
            width: embedding.new_tensor(math.sqrt(width * shape.norm_eps), dtype=torch.float32)
            for width in (embedding.shape[-1], shape.head_dim)
        }
        half = shape.head_dim // 2
        self._cos = rotary[0]
        # rotate_half(x) = (-x2, x1): with the sign kept in the table, swapping the halves is enough.
        self._sin = torch.cat((-rotary[1, :, :half], rotary[1, :, half:]), dim=-1)

    def forward(self, step: Step, cache: KVCache, head_at: Tensor | None = None, want_logits: bool = True) -> Tensor:
        """Logits [n, w, vocab_size] of a step; keys and values are written into `cache`.

        `head_at` int64 [n]: only this token of each row gets logits, [n, 1, vocab_size].
        `want_logits=False` (a prompt whose continuation is known) returns the hidden states and spares the
        head.
        """
        cos, sin = self._cos[step.positions].unsqueeze(2), self._sin[step.positions].unsqueeze(2)
        mask = self._mask(step)
        hidden = F.embedding(step.tokens, self.embedding)
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attention(index, layer, hidden, step, cache, cos, sin, mask)
            hidden = hidden + self._feed_forward(layer, hidden)
        if not want_logits:
            return hidden
        if head_at is not None:
            hidden = hidden.gather(1, head_at.view(-1, 1, 1).expand(-1, 1, hidden.shape[-1]))
        return self.head(self._unit(hidden) * self.norm)

    def _mask(self, step: Step) -> Tensor | None:
        """The mask, repeated for every query head of a group where attention folds the group into the rows."""
        n, width = step.tokens.shape
        group = self.shape.num_heads // self.shape.num_kv_heads
        if step.mask is None or width > WIDE or group == 1:
            return step.mask
        return step.mask.unsqueeze(3).expand(-1, -1, -1, group, -1).reshape(n, 1, width * group, -1)

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
        num_queries, num_kv_heads, head_dim = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        n, w, _ = hidden.shape
        qkv = layer.qkv(self._unit(hidden))
        heads = qkv.view(n, w, -1, head_dim)  # queries, keys, values
        rotated = heads[:, :, :-num_kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            scaled = self._unit(rotated)
            rotated[:, :, :num_queries] = scaled[:, :, :num_queries] * layer.query_norm
            rotated[:, :, num_queries:] = scaled[:, :, num_queries:] * layer.key_norm
        _rotate_(rotated, cos, sin)
        cache.store(index, step.cells, qkv.view(n * w, -1)[:, num_queries * head_dim :])
        keys, values = cache.read(index, step.rows, step.extent)
        mixed = _grouped_attention(heads[:, :, :num_queries], keys, values, mask)
        return self._sum_ranks(layer.out(mixed), layer.out_bias)

    def _feed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._unit(hidden)).chunk(2, dim=-1)
        return self._sum_ranks(layer.down(F.silu(gate) * up), None)

    def _sum_ranks(self, partial: Tensor, bias: Tensor | None) -> Tensor:
        total = partial if self.reduce is None else self.reduce(partial)
        return total if bias is None else total + bias

    def _unit(self, hidden: Tensor) -> Tensor:
        """Scaled to a length of one over the last axis: the RMS norm but for the square root of the width, which the
        weights bring.

        x / sqrt(sum x^2 + width eps) takes three operations; torch's own norm is made of more on a CPU.
        """
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True, dtype=torch.float32)
        unit: Tensor = (hidden / length.hypot(self._shortest[hidden.shape[-1]])).to(hidden.dtype)
        return unit


def _rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding of [n, w, heads, head_dim] in place; `sin` carries the sign of the swapped halves."""
    first, second = heads.chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    heads.mul_(cos).addcmul_(swapped, sin)


def _grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of [n, w, num_heads, d] over [n, num_kv_heads, extent, d]; returns [n, w, num_heads * d].

    For narrow steps the query heads of a group become rows of one attention over their shared keys: the same
    sums, and up to a third faster on a CPU than repeating the keys.
    """
    n, width, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    if width > WIDE:
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=num_kv_heads != num_heads
        )
        return mixed.transpose(1, 2).reshape(n, width, -1)
    grouped = queries.view(n, width, num_kv_heads, -1, head_dim).transpose(1, 2)  # [n, num_kv_heads, w, group, d]
    folded = grouped.reshape(n, num_kv_heads, -1, head_dim)
    mixed = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    unfolded = mixed.view(n, num_kv_heads, width, -1, head_dim)
    return unfolded.transpose(1, 2).reshape(n, width, -1)
