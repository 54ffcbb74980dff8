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

Elsewhere (other types, GPU) the library's own choice stands.
"""

from __future__ import annotations

from dataclasses import dataclass
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


_ANY = range(1, 1 << 62)
_LIBRARY = Forms(packed_rows=range(0), packed_size=range(0), transposed=False)
AVX2 = Forms(packed_rows=range(3, 17), packed_size=range(1 << 17, 1 << 25), transposed=True)
AVX512 = Forms(packed_rows=range(2, 1 << 62), packed_size=range(1, 1 << 25), transposed=True)
AVX512_BF16 = Forms(packed_rows=_ANY, packed_size=_ANY, transposed=False)


class Matrix:
    """The map x -> x W^T + b of a fixed weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        forms = best_forms(weight.device.type, weight.dtype)
        self._num_in = weight.shape[1]
        self._bias = bias
        self._packed_rows = range(0)
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
        if rows.numel() // self._num_in in self._packed_rows:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
            return packed
        if self._transposed is None:
            assert self._weight is not None
            return F.linear(rows, self._weight, self._bias)
        product = torch.matmul(rows, self._transposed)
        return product if self._bias is None else product.add_(self._bias)


@cache
def best_forms(device_type: str, dtype: torch.dtype) -> Forms:
    """The forms that pay on this machine: the table above."""
    if device_type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return _LIBRARY
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if dtype == torch.float32:
        return AVX512 if wide else AVX2
    if dtype == torch.bfloat16 and wide and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return AVX512_BF16
    return _LIBRARY
