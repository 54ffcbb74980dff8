"""Steps over a graph's buffers give the logits of plain steps; "run it again" stands for the capture, on a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_pairs import prompts, run, small_pair

from executor.config import Request
from executor.decoder import Decoder
from executor.graphs import EXTENT_STEP, GraphedModel, Work
from executor.models import LoadedModel, load_model
from ssdsim.errors import InputError
from ssdsim.measurement import ModelSource
from ssdsim.scenario import Mode

PAIR = small_pair()


class Again:
    """Captures by remembering the work; counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, work: Work) -> Work:
        self.count += 1
        return work


def graphed(loaded: LoadedModel, capture: Again) -> LoadedModel:
    return replace(loaded, model=GraphedModel(loaded.model, capture))


def stepped(model: LoadedModel, capacity: int = 2 * EXTENT_STEP) -> list[torch.Tensor]:
    """Logits of narrow steps of every kind: ragged rows, single tokens, scattered rows, last tokens only."""
    decoder, found = Decoder(model.model, num_rows=4, capacity=capacity), []
    rng = np.random.default_rng(3)
    every = np.arange(4)
    with torch.inference_mode():
        decoder.feed(every, rng.integers(0, 96, (4, 30)), np.array([30, 12, 21, 30]))
        for rows, width, last_only in ((every, 5, False), (every[:2], 1, False), (every[[0, 2, 3]], 3, True)) * 2:
            widths = rng.integers(1, width + 1, len(rows))
            tokens = rng.integers(0, 96, (len(rows), width))
            logits = decoder.extend(rows, tokens, widths, last_only=last_only)
            keep = np.ones((len(rows), 1), bool) if last_only else np.arange(width) < widths[:, None]
            found.append(logits[torch.from_numpy(keep[:, : logits.shape[1]])])
            decoder.rollback(rows, decoder.lengths[rows] - 1)
    return found


def test_the_logits_are_those_of_plain_steps_and_stay_the_caller_s() -> None:
    capture = Again()
    for ours, theirs in zip(stepped(graphed(PAIR.target, capture)), stepped(PAIR.target), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert capture.count == 3  # the second turn finds the shapes of the first


def test_a_longer_context_is_another_shape() -> None:
    capture = Again()
    decoder = Decoder(graphed(PAIR.target, capture).model, num_rows=1, capacity=2 * EXTENT_STEP)
    row, one = np.array([0]), np.array([1])
    with torch.inference_mode():
        decoder.feed(row, np.ones((1, EXTENT_STEP - 2), np.int64), np.array([EXTENT_STEP - 2]))
        for _ in range(4):
            decoder.extend(row, np.ones((1, 1), np.int64), one)
    assert capture.count == 2


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_generates_the_same_tokens(mode: Mode) -> None:
    capture = Again()
    pair = PAIR._replace(target=graphed(PAIR.target, capture), draft=graphed(PAIR.draft, capture))
    asked = [Request(prompt=prompt, max_tokens=24) for prompt in prompts(5, PAIR.target.vocab_size)]
    ours, theirs = (run(p, mode.value, asked, batch_size=2) for p in (pair, PAIR))
    assert [o.tokens for o in ours.outputs] == [o.tokens for o in theirs.outputs]
    assert 0 < capture.count < 40


def test_they_are_refused_where_there_is_no_gpu() -> None:
    with pytest.raises(InputError, match="cuda_graphs: only on a CUDA device"):
        load_model(PAIR.target_dir, cuda_graphs=True)
    with pytest.raises(InputError, match="cuda_graphs: both models must be on CUDA devices"):
        ModelSource(pair="tiny", target_device="cuda:0", cuda_graphs=True)
