"""A weight matrix kept in the forms in which a processor multiplies it fastest.

Decoding multiplies by few rows at a time: one per row of a batch, K+1 to verify, a dozen branches. On a CPU that is
where general matrix products are slowest, and which form is best depends on how many rows there are. On one core,
over the weights of the built-in pairs, against `torch.nn.functional.linear` on the weight as it is (AVX-512: by
`benchmarks/matrix.py`):

| processor          | type | rows   | form                                              | time, relative |
|--------------------|------|--------|---------------------------------------------------|----------------|
| AVX2 (Zen 3)       | fp32 | 1, 2   | transposed, where it has more outputs than inputs | .5-.8          |
|                    |      | 3..16  | packed by oneDNN, where it is large               | .5-.9          |
|                    |      | more   | transposed                                        | .8-.95         |
| AVX-512 (Zen 4)    | fp32 | 1      | transposed, where it has more outputs than inputs | .5-1.1         |
|                    |      | 2..    | packed by oneDNN                                  | .5-1.1         |
| AVX-512 with bf16  | bf16 | 1..    | packed by oneDNN                                  | .5-.9          |
| AVX2 (Zen 3)       | half | 1, 2   | as it is                                          | 1              |
|                    |      | more   | widened to fp32, a block at a time                | .2-1.0         |

Half is bf16 or fp16: AVX2 reads them and does not multiply them. Elsewhere (GPU) the library's own choice stands.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Forms:
    """Which forms pay on a processor, for one type of weight."""

    packed_rows: range
    """Rows at which the packed form is used."""
    packed_size: range
    """Weights worth packing: below, a call costs more than it saves; above, so does a second copy of the weight."""
    transposed: bool
    """Whether to transpose weights with more outputs than inputs for all other numbers of rows."""
    widened_rows: range = range(0)
    """Rows at which the weight is widened to fp32, block by block, while it is in the cache."""


_ANY = range(1, 1 << 62)
_LIBRARY = Forms(packed_rows=range(0), packed_size=range(0), transposed=False)
AVX2 = Forms(packed_rows=range(3, 17), packed_size=range(1 << 17, 1 << 25), transposed=True)
AVX512 = Forms(packed_rows=range(2, 1 << 62), packed_size=range(1, 1 << 25), transposed=True)
AVX512_BF16 = Forms(packed_rows=_ANY, packed_size=_ANY, transposed=False)
AVX2_HALF = replace(_LIBRARY, widened_rows=range(3, 1 << 62))
_BLOCK = 1 << 20
"""Elements widened at once: few enough to stay in the cache, enough to be worth a call."""


class Matrix:
    """The map x -> x W^T + b of a fixed weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        forms = best_forms(weight.device.type, weight.dtype)
        self._num_in = weight.shape[1]
        self._bias = bias
        self._packed_rows, self._widened_rows = range(0), forms.widened_rows
        self._weight: Tensor | None = weight
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        if weight.numel() in forms.packed_size:
            self._packed_rows = forms.packed_rows
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, max(2, forms.packed_rows.start))
        if self._packed_rows == _ANY:
            self._weight = None  # never asked for
        elif forms.transposed and weight.shape[0] >= weight.shape[1]:
            self._transposed, self._weight = weight.t().contiguous(), None

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        num_rows = rows.numel() // self._num_in
        if num_rows in self._packed_rows:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
            return packed
        if self._transposed is None:
            assert self._weight is not None
            product = _widened if num_rows in self._widened_rows else F.linear
            return product(rows, self._weight, self._bias)
        transposed = torch.matmul(rows, self._transposed)
        return transposed if self._bias is None else transposed.add_(self._bias)


class _Scratch(threading.local):
    """Memory for one block, kept by each thread instead of being taken anew for every product."""

    buffer = torch.empty(0)

    def widened(self, block: Tensor) -> Tensor:
        """The block in fp32, until the next call."""
        if len(self.buffer) < block.numel():
            self.buffer = torch.empty(block.numel())
        return self.buffer[: block.numel()].view(block.shape).copy_(block)


_scratch = _Scratch()


def _widened(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = rows.float()
    blocks = torch.split(weight, max(1, _BLOCK // weight.shape[1]))
    products = [F.linear(wide, _scratch.widened(block)) for block in blocks]
    product = products[0] if len(products) == 1 else torch.cat(products, -1)
    return (product if bias is None else product.add_(bias)).to(weight.dtype)


@cache
def best_forms(device_type: str, dtype: torch.dtype) -> Forms:
    """The forms that pay on this machine: the table above."""
    if device_type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return _LIBRARY
    capability = torch.backends.cpu.get_cpu_capability()
    wide = capability == "AVX512"
    if dtype == torch.float32:
        return AVX512 if wide else AVX2
    if dtype == torch.bfloat16 and wide and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return AVX512_BF16
    return AVX2_HALF if capability == "AVX2" and dtype in (torch.bfloat16, torch.float16) else _LIBRARY
