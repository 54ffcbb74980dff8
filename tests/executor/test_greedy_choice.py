"""The greedy choice, in whatever way it is computed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from executor.sampling import best  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 7), (2, 5, 2048), (3, 4096)])
def test_the_best_column_is_that_of_the_largest_logit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=generator).to(dtype)
    found = best(logits)
    assert found.shape == shape[:-1]
    assert found.dtype == torch.int64
    largest = logits.gather(-1, found.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(largest, logits.amax(-1))


def test_on_a_tie_the_first_is_taken() -> None:
    assert best(torch.tensor([[0.0, 3.0, 3.0, -1.0], [2.0, 2.0, 2.0, 2.0]])).tolist() == [1, 0]
    # Not contiguous, as a slice of a wider head is.
    assert best(torch.tensor([[9.0, 0.0, 3.0, 3.0, 9.0]])[:, 1:4]).tolist() == [1]
