"""Out of memory said in the user's terms: which field asked for too much, and what would fit.

Linux grants memory that it does not have and kills later whoever touches it, so a cache that cannot fit is
refused before it is allocated.

Used by `executor.session`, `executor.speculator` and `executor.torchrun`, and by the studies in `experiments`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from executor.config import EngineConfig
from executor.llama import LlamaModel
from ssdsim.errors import RunError

_GB = 1e9
_CPU_REFUSALS = ("can't allocate memory", "not enough memory")
"""How torch's CPU allocator words it: a plain RuntimeError, unlike the GPU's."""


def check_cache_fits(config: EngineConfig, model: LlamaModel, branch_tokens: int = 0) -> None:
    """Raise RunError where the cache of `config.batch_size` sequences exceeds the memory that is free; the draft's
    keeps `branch_tokens` tokens per sequence for the branches of a build."""
    shape, weights = model.shape, model.embedding
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * weights.element_size()
    per_sequence = config.max_context_tokens + config.num_speculative_tokens + 1 + branch_tokens
    needed = per_token * config.batch_size * per_sequence
    free = _free_bytes(weights.device)
    if needed > free:
        fitting = max(0, free * config.batch_size // needed)
        branches = f" and {branch_tokens} of branches (fewer with a lower fan-out)" if branch_tokens else ""
        raise RunError(
            f"batch_size: the cache of {config.batch_size} sequences of {config.max_context_tokens} tokens{branches} "
            f"takes {needed / _GB:.1f} GB and {free / _GB:.1f} GB are free; at most {fitting} fit"
        )


@contextmanager
def out_of_memory_explained(config: EngineConfig) -> Iterator[None]:
    """Turn the allocators' errors into a RunError that says what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise _explained(config) from error
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator refused: Python's, a GPU's or torch's on a CPU."""
    refused = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return refused or any(words in str(error) for words in _CPU_REFUSALS)


def _explained(config: EngineConfig) -> RunError:
    return RunError(
        f"batch_size: out of memory with {config.batch_size} sequences of {config.max_context_tokens} tokens; "
        "lower batch_size, max_context_tokens or the fan-out"
    )


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)
