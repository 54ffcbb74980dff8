"""Memory that is not there is refused in the user's terms, before the kernel refuses it in its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_pairs import Pair, engine_config, small_pair

from executor import memory
from executor.config import EngineConfig, Request
from executor.memory import check_cache_fits, out_of_memory_explained
from executor.speculator import Speculator
from ssdsim.errors import RunError
from ssdsim.scenario import FanOut


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


@pytest.fixture
def config(pair: Pair) -> EngineConfig:
    return engine_config(pair, "ssd", [Request(prompt=[1, 2], max_tokens=93)], batch_size=4)


def test_a_cache_larger_than_the_free_memory_is_refused_and_the_largest_batch_named(
    pair: Pair, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 3 layers, 2 key-value heads of 12 values, keys and values, fp32; 95 tokens, the lookahead of 4, one more.
    per_sequence = 3 * 2 * 12 * 2 * 4 * (95 + 4 + 1)
    monkeypatch.setattr(memory, "_free_bytes", lambda device: 4 * per_sequence)
    check_cache_fits(config, pair.target.model)
    with pytest.raises(RunError, match=r"batch_size: the cache of 5 sequences of 95 tokens.*at most 4 fit"):
        check_cache_fits(replace(config, batch_size=5), pair.target.model)


def test_the_draft_s_cache_is_counted_with_its_branches(
    pair: Pair, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uniform fan-out 2 at five positions is ten branches of four tokens per sequence."""
    drafting = config.drafting.model_copy(update={"fan_out": FanOut(per_position=2)})
    config = replace(config, drafting=drafting)
    shape = pair.draft.model.shape
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4
    needed = 4 * per_token * (95 + 4 + 1 + 10 * 4)
    monkeypatch.setattr(memory, "_free_bytes", lambda device: needed)
    Speculator(config, pair.draft)
    monkeypatch.setattr(memory, "_free_bytes", lambda device: needed - 1)
    with pytest.raises(RunError, match=r"95 tokens and 40 of branches \(fewer with a lower fan-out\).*at most 3 fit"):
        Speculator(config, pair.draft)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
    ],
    ids=["python", "GPU", "CPU"],
)
def test_an_allocator_s_error_says_what_to_lower(config: EngineConfig, error: Exception) -> None:
    with pytest.raises(RunError, match="batch_size: out of memory with 4 sequences of 95 tokens; lower"):
        fail_with(error, config)


def test_another_error_passes_through(config: EngineConfig) -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        fail_with(RuntimeError("shapes do not fit"), config)


def test_what_torch_says_when_it_cannot_allocate_is_still_recognised(config: EngineConfig) -> None:
    def allocate_an_exabyte() -> Any:
        return torch.empty(1 << 58, dtype=torch.float32)

    with pytest.raises(RunError, match="out of memory"), out_of_memory_explained(config):
        allocate_an_exabyte()


def fail_with(error: Exception, config: EngineConfig) -> None:
    with out_of_memory_explained(config):
        raise error
