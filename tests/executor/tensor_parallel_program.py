"""Run by three gloo ranks (test_tensor_parallel.py): logits of a model sharded over the first two, on rank 0.

Arguments: the file to write the logits to, then model directories. Rank 2 stands for the draft, and computes
nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from executor.decoder import Decoder
from executor.llama import LlamaModel
from executor.models import load_model
from executor.tensor_parallel import LeadingModel, follow, sharded_over


def speculative_steps(model: LlamaModel) -> np.ndarray:
    """Logits of a prompt, a verification, a rollback and another verification, of two rows."""
    rng = np.random.default_rng(0)
    decoder = Decoder(model, 2, 64)
    both, widths = np.arange(2), np.full(2, 5)
    with torch.inference_mode():
        for row, length in enumerate((9, 4)):
            decoder.feed(np.array([row]), rng.integers(0, 90, (1, length)), np.array([length]))
        first = decoder.extend(both, rng.integers(0, 90, (2, 5)), widths)
        decoder.rollback(both, np.array([11, 5]))
        second = decoder.extend(both, rng.integers(0, 90, (2, 5)), widths)
        one = decoder.extend(np.array([1]), rng.integers(0, 90, (1, 1)), np.array([1]), last_only=True)
    return np.concatenate([logits.numpy().ravel() for logits in (first, second, one)])


def compare(source: str, mesh: DeviceMesh) -> dict[str, np.ndarray]:
    """Rank 0: the logits of the sharded and of the whole model, and the heads of each."""
    leader = LeadingModel(load_model(source, share=sharded_over(mesh)).model, mesh)
    logits = speculative_steps(leader)
    leader.dismiss()
    whole = load_model(source).model
    heads = np.array([leader.shape.num_heads, whole.shape.num_heads])
    name = Path(source).name
    return {f"{name}_sharded": logits, f"{name}_whole": speculative_steps(whole), f"{name}_heads": heads}


def main(out: str, sources: list[str]) -> None:
    dist.init_process_group("gloo")
    rank, num_targets = dist.get_rank(), dist.get_world_size() - 1
    mesh = DeviceMesh("cpu", list(range(num_targets)))
    if rank == 0:
        results = [compare(source, mesh) for source in sources]
        np.savez(out, **{name: array for result in results for name, array in result.items()})
    elif rank < num_targets:
        for source in sources:
            follow(load_model(source, share=sharded_over(mesh)).model, mesh)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
