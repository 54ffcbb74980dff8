"""The target's weights and work spread over the target ranks of a torchrun.

Weights. Each rank loads the files and keeps its share: `parallelize_module` on a mesh of the target ranks
only, by the plan that transformers gives for the architecture (`base_model_tp_plan`: query, key, value, gate
and up by columns, output and down by rows). The local shards become an ordinary `LlamaModel` with fewer
heads, whose `reduce` adds the ranks' partial sums, twice per layer. The mesh must not hold the draft's rank,
which takes no part in these sums.

Work. Rank 0 runs the verifier with a `LeadingModel`, which announces every forward pass to the others before
it makes it; they `follow`. An announcement says which tokens go where: what a rollback discards is simply
overwritten on every rank by what comes next, so rollbacks need no announcement.

Used by `executor.torchrun`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from executor.checkpoints import transformers_config
from executor.decoder import Decoder
from executor.llama import KVCache, LlamaModel, Step
from executor.models import Share
from ssdsim.errors import DomainError, InputError

_STYLES: dict[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
_WHOLE = frozenset({"replicated_with_grad_allreduce"})
"""Entries of a plan that only matter for gradients: every rank holds the weight as it is."""


def parallel_plan(config: Any) -> dict[str, ParallelStyle]:
    """What `parallelize_module` needs, from the plan of the architecture. Raises InputError where there is
    none or it asks for what the lean forward does not do."""
    plan: dict[str, str] | None = getattr(config, "base_model_tp_plan", None)
    if not plan:
        raise InputError(f"target_tp: transformers has no tensor-parallel plan for {config.model_type!r}")
    unknown = sorted(set(plan.values()) - _STYLES.keys() - _WHOLE)
    if unknown:
        raise InputError(
            f"target_tp: the plan of {config.model_type!r} asks for {', '.join(unknown)}; "
            f"only {', '.join(_STYLES)} are run"
        )
    return {name: _STYLES[style]() for name, style in plan.items() if style in _STYLES}


def sharded_over(mesh: DeviceMesh) -> Share:
    """For `executor.models.load_model`: keep this rank's share of every weight in the plan."""

    def share(config: Any, tensors: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        from transformers import AutoModel

        config = transformers_config(config)
        local = _local_config(config, mesh.size())
        with torch.device("meta"):
            module = AutoModel.from_config(config)
        module.load_state_dict(tensors, strict=False, assign=True)
        # Every rank has read the whole file: each cuts its part, none is sent.
        parallelize_module(module, mesh, parallel_plan(config), src_data_rank=None)
        placed = dict(module.named_parameters())
        return local, {name: _local(placed.get(name, tensor)) for name, tensor in tensors.items()}

    return share


def _local_config(config: Any, num_ranks: int) -> Any:
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    for name, size in (("key-value heads", kv_heads), ("intermediate_size", config.intermediate_size)):
        if size % num_ranks:
            raise DomainError("target_tp", f"a divisor of the model's {size} {name}", num_ranks)
    local = copy.deepcopy(config)
    local.head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    local.num_attention_heads, local.num_key_value_heads = heads // num_ranks, kv_heads // num_ranks
    local.intermediate_size = config.intermediate_size // num_ranks
    return local


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _sum_over(group: dist.ProcessGroup) -> Callable[[Tensor], Tensor]:
    """For `LlamaModel.reduce`: the ranks' partial sums become their total, in place."""

    def total(partial: Tensor) -> Tensor:
        dist.all_reduce(partial, group=group)
        return partial

    return total


class LeadingModel(LlamaModel):
    """Rank 0's share of the model: tells the other target ranks what it is about to compute."""

    def __init__(self, model: LlamaModel, mesh: DeviceMesh) -> None:
        vars(self).update(vars(model))  # The same weights, not a copy of them.
        self._group = mesh.get_group()
        self.reduce = _sum_over(self._group)

    def forward(self, step: Step, cache: KVCache, head_at: Tensor | None = None, want_logits: bool = True) -> Tensor:
        """As `LlamaModel.forward`; every rank runs it. The step must be causal: masks are not announced."""
        n, w = step.tokens.shape
        rows = step.rows
        if isinstance(rows, slice):
            rows = torch.arange(rows.start, rows.stop, device=step.tokens.device)
        self._say(torch.tensor([n, w, cache.num_rows, cache.capacity]))
        self._say(torch.cat((rows[:, None], step.positions[:, :1], step.tokens), dim=1))
        return super().forward(step, cache, head_at, want_logits)

    def dismiss(self) -> None:
        """Let the other ranks' `follow` return."""
        self._say(torch.zeros(4, dtype=torch.int64))

    def _say(self, numbers: Tensor) -> None:
        dist.broadcast(numbers.to(self.embedding.device), 0, group=self._group)


def follow(model: LlamaModel, mesh: DeviceMesh) -> None:
    """Compute this rank's part of every step that rank 0 announces, until it dismisses us."""
    group, device = mesh.get_group(), model.embedding.device
    model.reduce = _sum_over(group)
    decoder: Decoder | None = None

    def hear(*shape: int) -> Tensor:
        numbers = torch.empty(shape, dtype=torch.int64, device=device)
        dist.broadcast(numbers, 0, group=group)
        return numbers.cpu()

    with torch.inference_mode():
        while True:
            n, w, num_rows, capacity = hear(4).tolist()
            if n == 0:
                return
            if decoder is None:
                decoder = Decoder(model, num_rows, capacity)
            heard = hear(n, w + 2).numpy()
            rows = np.ascontiguousarray(heard[:, 0])
            decoder.lengths[rows] = heard[:, 1]
            decoder.feed(rows, np.ascontiguousarray(heard[:, 2:]), np.full(n, w))
