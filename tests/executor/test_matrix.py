"""Whatever form a weight is kept in, it is the same linear map."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from executor.matrix import PACKED_ROWS, PACKED_SIZE, Matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("num_out", "num_in"), [(40, 24), (24, 40), (600, 240), (240, 600)])
def test_every_form_and_number_of_rows_gives_the_same_product(
    num_out: int, num_in: int, biased: bool, dtype: torch.dtype
) -> None:
    """The two larger shapes are packed, the wider ones transposed."""
    assert (num_out * num_in in PACKED_SIZE) == (num_out * num_in > 100_000)
    torch.manual_seed(0)
    weight, bias = torch.randn(num_out, num_in).to(dtype), torch.randn(num_out).to(dtype) if biased else None
    matrix = Matrix(weight, bias)
    with torch.inference_mode():
        for count in (1, PACKED_ROWS.start, PACKED_ROWS.stop - 1, PACKED_ROWS.stop):
            rows = torch.randn(1, count, num_in).to(dtype)
            torch.testing.assert_close(matrix(rows), F.linear(rows, weight, bias), atol=1e-4, rtol=1e-2)
