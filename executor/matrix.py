"""A weight matrix kept in the forms in which a processor multiplies it fastest.

Decoding multiplies by few rows at a time: one per row of a batch, K+1 to verify, a dozen branches. In fp32 on a CPU
that is where general matrix products are slowest, and which form is best depends on how many rows there are.
Measured on one Zen 3 core over weights of 384..4096 by 384..576, against `torch.nn.functional.linear` on the weight
as it is:

| rows  | form                                              | time, relative |
|-------|---------------------------------------------------|----------------|
| 1, 2  | transposed, where it has more outputs than inputs | .5-.8          |
| 3..16 | packed by oneDNN, where it is large               | .5-.9          |
| more  | transposed                                        | .8-.95         |

Elsewhere (bf16, GPU) the library's own choice stands.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PACKED_ROWS = range(3, 17)
PACKED_SIZE = range(1 << 17, 1 << 25)
"""Weights worth packing: below, a call costs more than it saves; above, so does a second copy of the weight."""


class Matrix:
    """The map x -> x W^T + b of a fixed weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._num_in = weight.shape[1]
        self._bias = bias
        self._weight: Tensor | None = weight
        self._transposed: Tensor | None = None
        self._packed: Tensor | None = None
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return
        if weight.numel() in PACKED_SIZE and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS.start)
        if weight.shape[0] >= weight.shape[1]:
            self._transposed, self._weight = weight.t().contiguous(), None

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if self._packed is not None and rows.numel() // self._num_in in PACKED_ROWS:
            packed: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
            return packed
        if self._transposed is None:
            assert self._weight is not None
            return F.linear(rows, self._weight, self._bias)
        product = torch.matmul(rows, self._transposed)
        return product if self._bias is None else product.add_(self._bias)
