"""CUDA graphs: a step of a shape that was seen before is launched as one.

A step of a small model is many short kernels, each of which has to be launched. A graph is captured once per shape
over buffers of its own and replayed ever after: the step's inputs are copied into the buffers, the logits out.
Shapes are few, because the context is rounded up to a multiple of `EXTENT_STEP` columns, those beyond the true one
masked out. Prompts, which are wide and seen once, run as they are.

Used by `executor.models` for a model on a CUDA device whose user asked for it. Not run on a GPU yet: the tests put
"run it again" in the place of the capture, on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from executor.llama import KVCache, LlamaModel, Step

EXTENT_STEP = 256
"""Columns to multiples of which a context is rounded up."""
WIDEST = 256
"""Query tokens per row up to which a step is captured."""
_WARM_UPS = 2

Work = Callable[[], Tensor]
Capture = Callable[[Work], Work]
"""From work to something that does it again, on the same buffers, and returns the same tensor."""


class _Shape(NamedTuple):
    """What steps must share to share a graph."""

    num_rows: int
    width: int
    extent: int
    rows: tuple[int, int] | None
    """First and last cache row + 1 of contiguous ones; others are an input."""
    last_only: bool


class _Graph(NamedTuple):
    step: Step
    """The buffers."""
    head_at: Tensor | None
    replay: Work


class GraphedModel(LlamaModel):
    """A model whose narrow steps are captured; the same weights, not a copy of them."""

    def __init__(self, model: LlamaModel, capture: Capture | None = None) -> None:
        """`capture`: by default a CUDA graph on the model's device."""
        vars(self).update(vars(model))
        self._capture = capture or on_cuda(self.embedding.device)

    def forward(self, step: Step, cache: KVCache, head_at: Tensor | None = None, want_logits: bool = True) -> Tensor:
        """As `LlamaModel.forward`; the logits are the caller's own."""
        if not want_logits or step.tokens.shape[1] > WIDEST:
            return super().forward(step, cache, head_at, want_logits)
        shape = _shape_of(step, cache, head_at)
        graph: _Graph | None = cache.graphs.get(shape)
        if graph is None:
            graph = cache.graphs[shape] = self._captured(shape, step, cache, head_at)
        else:
            _fill(graph, step, head_at)
        return graph.replay().clone()

    def _captured(self, shape: _Shape, step: Step, cache: KVCache, head_at: Tensor | None) -> _Graph:
        mask = self.embedding.new_empty((shape.num_rows, 1, shape.width, shape.extent))
        buffers = Step(
            tokens=step.tokens.clone(),
            positions=step.positions.clone(),
            cells=step.cells.clone(),
            mask=mask,
            rows=step.rows if isinstance(step.rows, slice) else step.rows.clone(),
            extent=shape.extent,
        )
        head = None if head_at is None else head_at.clone()
        _fill(_Graph(buffers, head, mask.clone), step, head_at)
        plain = super().forward
        return _Graph(buffers, head, self._capture(lambda: plain(buffers, cache, head)))


def on_cuda(device: torch.device) -> Capture:
    """Capture into CUDA graphs, which share their working memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(work: Work) -> Work:
        with torch.cuda.device(device):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    return capture


def _shape_of(step: Step, cache: KVCache, head_at: Tensor | None) -> _Shape:
    num_rows, width = step.tokens.shape
    return _Shape(
        num_rows=num_rows,
        width=width,
        extent=min(-(-step.extent // EXTENT_STEP) * EXTENT_STEP, cache.capacity),
        rows=(step.rows.start, step.rows.stop) if isinstance(step.rows, slice) else None,
        last_only=head_at is not None,
    )


def _fill(graph: _Graph, step: Step, head_at: Tensor | None) -> None:
    """Copy a step into a graph's buffers; columns beyond its own are masked out."""
    buffers = graph.step
    buffers.tokens.copy_(step.tokens)
    buffers.positions.copy_(step.positions)
    buffers.cells.copy_(step.cells)
    assert buffers.mask is not None
    buffers.mask[..., : step.extent] = 0.0 if step.mask is None else step.mask
    buffers.mask[..., step.extent :] = float("-inf")
    if isinstance(buffers.rows, Tensor) and isinstance(step.rows, Tensor):
        buffers.rows.copy_(step.rows)
    if graph.head_at is not None and head_at is not None:
        graph.head_at.copy_(head_at)
