"""Whatever form a weight is kept in, it is the same linear map."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from executor import matrix
from executor.matrix import AVX2, AVX2_HALF, AVX512, AVX512_BF16, Forms, Matrix


@pytest.mark.parametrize(
    ("forms", "dtype"),
    [
        (AVX2, torch.float32),
        (AVX512, torch.float32),
        (AVX512_BF16, torch.bfloat16),
        (AVX2_HALF, torch.bfloat16),
        (AVX2_HALF, torch.float16),
        (None, torch.bfloat16),
    ],
    ids=["avx2", "avx512", "avx512-bf16", "avx2, bf16", "avx2, fp16", "this machine, bf16"],
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("num_out", "num_in"), [(40, 24), (24, 40), (600, 240), (240, 600)])
def test_every_form_and_number_of_rows_gives_the_same_product(
    num_out: int,
    num_in: int,
    biased: bool,
    forms: Forms | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forms are chosen for speed alone: any processor may use another's."""
    if forms is AVX512_BF16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor does not pack bf16")
    if forms is not None:
        monkeypatch.setattr(matrix, "best_forms", lambda *_: forms)
    monkeypatch.setattr(matrix, "_BLOCK", 10_000)  # so that the larger weights are several blocks
    torch.manual_seed(0)
    weight, bias = torch.randn(num_out, num_in).to(dtype), torch.randn(num_out).to(dtype) if biased else None
    product = Matrix(weight, bias)
    with torch.inference_mode():
        for count in (1, 2, 3, 16, 17, 70):
            rows = torch.randn(1, count, num_in).to(dtype)
            torch.testing.assert_close(product(rows), F.linear(rows, weight, bias), atol=1e-4, rtol=1e-2)


def test_a_form_that_serves_every_number_of_rows_is_the_only_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model in bf16, memory holds one copy of each weight."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor does not pack bf16")
    monkeypatch.setattr(matrix, "best_forms", lambda *_: AVX512_BF16)
    product = Matrix(torch.randn(64, 32).bfloat16())
    kept = [value for value in vars(product).values() if isinstance(value, torch.Tensor)]
    assert len(kept) == 1
