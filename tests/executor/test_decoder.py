"""Rows of different lengths, ragged steps and rollbacks give the logits of the plain sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_pairs import small_pair

from executor.decoder import Decoder, check_context
from executor.llama import WIDE
from ssdsim.errors import DomainError

PAIR = small_pair()
TOLERANCE = 1e-4


def sequences(*lengths: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, PAIR.target.vocab_size, n) for n in lengths]


def reference(sequence: NDArray[np.int64]) -> torch.Tensor:
    """transformers' logits [N, V] of the whole sequence."""
    with torch.inference_mode():
        return PAIR.reference(torch.from_numpy(sequence)[None]).logits[0]


def padded(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    width = max(map(len, parts))
    return np.stack([np.pad(part, (0, width - len(part))) for part in parts])


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(PAIR.target.model, num_rows=4, capacity=128)


def extend(decoder: Decoder, rows: list[int], parts: list[NDArray[np.int64]], **options: bool) -> torch.Tensor:
    widths = np.array([len(part) for part in parts])
    with torch.inference_mode():
        return decoder.extend(np.array(rows), padded(parts), widths, **options)


def feed(decoder: Decoder, rows: list[int], parts: list[NDArray[np.int64]]) -> None:
    with torch.inference_mode():
        decoder.feed(np.array(rows), padded(parts), np.array([len(part) for part in parts]))


def test_ragged_rows_do_not_see_each_other_nor_their_padding(decoder: Decoder) -> None:
    texts = sequences(30, 12, 21)
    feed(decoder, [0, 1, 2], [texts[0][:25], texts[1][:5], texts[2][:20]])
    logits = extend(decoder, [0, 1, 2], [texts[0][25:], texts[1][5:], texts[2][20:]])
    for row, (text, start) in enumerate(zip(texts, (25, 5, 20), strict=True)):
        found = logits[row, : len(text) - start]
        torch.testing.assert_close(found, reference(text)[start:], atol=TOLERANCE, rtol=0)
    assert decoder.lengths.tolist() == [30, 12, 21, 0]


def test_a_rolled_back_row_continues_as_if_nothing_had_been_fed(decoder: Decoder) -> None:
    kept, other = sequences(20, 9)
    feed(decoder, [2], [np.concatenate((kept[:10], other))])
    decoder.rollback(np.array([2]), np.array([10]))
    logits = extend(decoder, [2], [kept[10:]])
    torch.testing.assert_close(logits[0], reference(kept)[10:], atol=TOLERANCE, rtol=0)


def test_rows_that_are_not_neighbours_are_as_good_as_neighbours(decoder: Decoder) -> None:
    texts = sequences(9, 14)
    feed(decoder, [0, 3], [texts[0][:8], texts[1][:13]])
    logits = extend(decoder, [0, 3], [texts[0][8:], texts[1][13:]])
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row, 0], reference(text)[-1], atol=TOLERANCE, rtol=0)


def test_last_only_gives_each_row_its_own_last_token(decoder: Decoder) -> None:
    texts = sequences(7, 3)
    logits = extend(decoder, [0, 1], texts, last_only=True)
    assert logits.shape[:2] == (2, 1)
    for row, text in enumerate(texts):
        torch.testing.assert_close(logits[row, 0], reference(text)[-1], atol=TOLERANCE, rtol=0)


def test_a_wide_step_takes_another_kernel_and_gives_the_same(decoder: Decoder) -> None:
    text = sequences(WIDE + 40)[0]
    logits = extend(decoder, [1], [text])
    torch.testing.assert_close(logits[0], reference(text), atol=TOLERANCE, rtol=0)


def test_padding_may_reach_beyond_the_cache(decoder: Decoder) -> None:
    """A row near the end of its context beside one that brings a long prompt."""
    long, short = sequences(126, 40)
    feed(decoder, [0], [long[:125]])
    logits = extend(decoder, [0, 1], [long[125:], short])
    torch.testing.assert_close(logits[0, 0], reference(long)[-1], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(logits[1], reference(short), atol=TOLERANCE, rtol=0)


def test_a_rollback_cannot_lengthen(decoder: Decoder) -> None:
    with pytest.raises(DomainError, match="only shortens"):
        decoder.rollback(np.array([0]), np.array([1]))


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(DomainError, match=r"max_context_tokens: at most 512"):
        check_context(PAIR.target, 513)
