"""What the branches of a build see (Figure 8): the mask of the executor's own branch code, B=1, K=3, F=4, step 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from figures.drawing import Drawing
from figures.inputs import Results
from ssdsim.errors import InputError
from ssdsim.plotting.style import BLUE, GREY, ORANGE, lighter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKAHEAD, _FAN_OUT, _STEP, _PREFIX = 3, 4, 2, 8


class Row(NamedTuple):
    """One branch: the accepted count it prepares for, its rank there, and a 0/1 word over the columns it sees."""

    branch: int
    num_accepted: int
    rank: int
    visible: str


class Mask(NamedTuple):
    """The boolean mask of one tree step."""

    visible: NDArray[np.bool_]
    """[branches, columns]"""
    num_accepted: NDArray[np.int64]
    rank: NDArray[np.int64]
    trunk: int
    """Columns of the trunk: the verified prefix, then the bonus token and the proposed tokens."""


def draw(results: Results) -> Drawing:
    """The mask as squares: rows are branches, columns what lies in the cache."""
    from matplotlib.figure import Figure

    mask = branch_mask()
    figure = Figure(figsize=(8.6, 2.9), layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, mask)
    data = [
        Row(i, int(mask.num_accepted[i]), int(mask.rank[i]), "".join(map(str, row.astype(int))))
        for i, row in enumerate(mask.visible)
    ]
    return Drawing(figure=figure, data=data, caption=_caption(mask))


def branch_mask(step: int = _STEP) -> Mask:
    """The mask that `executor.branches` gives a tree step; raises `InputError` where torch is not installed."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "attention_mask: the executor computes it, which needs torch; install it: pip install 'ssdsim[executor]'"
        ) from None
    from executor.branches import TreeSteps, forks
    from executor.decoder import Decoder
    from executor.llama import LlamaModel, LlamaShape
    from executor.matrix import Matrix

    one = torch.zeros(1, 1)
    shape = LlamaShape(
        num_layers=0, num_heads=1, num_kv_heads=1, head_dim=1, vocab_size=1, max_context_tokens=64, norm_eps=1e-5
    )
    decoder = Decoder(LlamaModel(shape, [], one, one, Matrix(one), torch.zeros(2, 64, 1)), num_rows=1, capacity=128)
    trunk = _PREFIX + 1 + _LOOKAHEAD
    row = np.zeros(1, np.int64)
    decoder.lengths[0] = trunk
    branches = forks([(_FAN_OUT,) * (_LOOKAHEAD + 1)])
    steps = TreeSteps(decoder, row, np.array([_PREFIX + 1]), branches, _LOOKAHEAD)
    fed = steps.step(step, torch.zeros(1, branches.rank.shape[1], dtype=torch.int64))
    assert fed.mask is not None
    return Mask(fed.mask[0, 0].numpy() == 0, branches.num_accepted[0], branches.rank[0], trunk)


def _draw(axes: Axes, mask: Mask) -> None:
    from matplotlib.colors import ListedColormap

    branches, columns = mask.visible.shape
    kind = np.where(np.arange(columns) < mask.trunk, 1, 2) * mask.visible
    colours = ListedColormap([lighter(GREY, 0.92), lighter(BLUE, 0.0), lighter(ORANGE, 0.0)])
    axes.pcolormesh(kind, cmap=colours, vmin=0, vmax=2, edgecolors="white", linewidth=0.6)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    edges = [0, _PREFIX, mask.trunk, *(mask.trunk + branches * (i + 1) for i in range(_STEP + 1))]
    for edge in edges[1:-1]:
        axes.axvline(edge, color="black", linewidth=0.8)
    names = ["verified prefix", "bonus,\nproposed", *(f"step {i}: one token per branch" for i in range(_STEP + 1))]
    for name, low, high in zip(names, edges, edges[1:], strict=False):
        axes.text((low + high) / 2, -0.5, name, ha="center", va="bottom", fontsize="x-small")
    for k in range(_LOOKAHEAD + 1):
        axes.axhline(k * _FAN_OUT, color="black", linewidth=0.4)
    axes.set_yticks(np.arange(_LOOKAHEAD + 1) * _FAN_OUT + _FAN_OUT / 2, [f"k={k}" for k in range(_LOOKAHEAD + 1)])
    axes.set_xticks(edges)
    axes.set_xlabel("column of the KV cache")
    axes.set_ylabel(f"branches, {_FAN_OUT} per\naccepted count k")
    axes.grid(visible=False)


def _caption(mask: Mask) -> str:
    return (
        f"Tree step {_STEP} of a build for one sequence, K={_LOOKAHEAD}, uniform fan-out {_FAN_OUT}: "
        f"{len(mask.visible)} branches (rows) decode one token each. A filled square may be attended to: blue the "
        "trunk up to the branch's fork, orange the branch's own chain, whose token of the step itself is the last "
        "diagonal. As in the paper's Figure 8, but computed by the executor's own mask code; here the trunk's new "
        "positions are shown after the prefix, and a branch that prepares for k accepted tokens sees k of the "
        "proposed ones."
    )
