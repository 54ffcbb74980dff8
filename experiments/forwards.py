"""Forwards of a pair, timed over batch, width and context on whatever device, and their parts: dense and attention.

Used by `experiments.device`.
"""

from __future__ import annotations

import csv
import gc
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.common import Study
from ssdsim.errors import InputError, RunError
from ssdsim.scenario import Mode

if TYPE_CHECKING:
    from executor.decoder import Decoder
    from executor.models import LoadedModel
    from executor.roles import ModelPair

ROLES = ("target", "draft")
REPEATS = 12
WARM_UPS = 2
"""The first repeats, which touch memory and choose kernels, do not count."""


class Shape(NamedTuple):
    """Whose forward, and of what: `batch` rows of `width` new tokens behind `context` cached ones."""

    role: str
    batch: int
    width: int
    context: int

    def __str__(self) -> str:
        return f"{self.role} batch {self.batch} width {self.width} context {self.context}"


class Forward(NamedTuple):
    """One timed forward."""

    role: str
    batch: int
    width: int
    context: int
    seconds: float
    """Median over the repeats."""
    slowest_s: float

    @property
    def shape(self) -> Shape:
        """What was timed."""
        return Shape(*self[:4])


class Split(NamedTuple):
    """What a forward of one batch and width takes without and with each cached token."""

    role: str
    batch: int
    width: int
    dense_s: float
    attention_s_per_token: float
    """Per cached token of the whole batch."""


class ForwardsFile:
    """forwards.csv: what an earlier call left, and every further row as soon as it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found = {forward.shape: forward for forward in _read_forwards(path)}
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("w", newline="") as file:
            csv.writer(file).writerows([Forward._fields, *self.found.values()])
        partial.replace(path)

    def append(self, forward: Forward) -> None:
        """Keep a row; closing the file brings it to the disk."""
        self.found[forward.shape] = forward
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerow(forward)


def _read_forwards(path: Path) -> list[Forward]:
    """The whole rows of the file; a last one that was cut short is left out."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        head, *rows = list(csv.reader(file.read().rpartition("\n")[0].splitlines())) or [[]]
    try:
        if head and tuple(head) != Forward._fields:
            raise ValueError(f"columns {', '.join(head)}")
        return [_forward(*row) for row in rows]
    except (TypeError, ValueError) as error:
        raise InputError(f"out: {path} is not of this study ({error}); choose another folder") from error


def _forward(role: str, batch: str, width: str, context: str, seconds: str, slowest_s: str) -> Forward:
    return Forward(role, int(batch), int(width), int(context), float(seconds), float(slowest_s))


def time_missing(study: Study, pair: ModelPair, wanted: Sequence[Shape], file: ForwardsFile) -> list[str]:
    """Time what `file` lacks, smallest first; returns what was left out, and why."""
    skipped: list[str] = []
    plain = replace(pair, cuda_graphs=False)
    for role in ROLES:
        missing = [shape for shape in wanted if shape.role == role and shape not in file.found]
        if not missing:
            continue
        loaded = plain.load_target() if role == "target" else plain.load_draft()
        for shape in missing:
            try:
                file.append(time_forward(loaded, shape, study))
            except RunError as error:
                skipped.append(left_out(str(shape), error))
            _release_memory()
        del loaded
        _release_memory()
    return skipped


def time_forward(loaded: LoadedModel, shape: Shape, study: Study) -> Forward:
    """Time one shape over a cache of its own; RunError where memory does not suffice."""
    import torch

    from executor.config import EngineConfig
    from executor.decoder import Decoder
    from executor.graphs import EXTENT_STEP, GraphedModel
    from executor.memory import check_cache_fits, out_of_memory_explained

    capacity = -(-(shape.context + shape.width) // EXTENT_STEP) * EXTENT_STEP
    config = EngineConfig(
        mode=Mode.AR, batch_size=shape.batch, max_context_tokens=capacity, vocab_size=loaded.vocab_size
    )
    with torch.inference_mode(), out_of_memory_explained(config):
        check_cache_fits(config, loaded.model)
        # Graphs end with their cache, and a pool whose graphs have all ended cannot be captured into again.
        model = GraphedModel(loaded.model) if study.models.cuda_graphs else loaded.model
        decoder = Decoder(model, shape.batch, capacity)
        drawn = np.random.default_rng(study.texts.seed)
        tokens = drawn.integers(loaded.vocab_size, size=(shape.batch, shape.width))
        times = [_seconds(decoder, tokens, shape.context) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    return Forward(*shape, median(times), max(times))


def _seconds(decoder: Decoder, tokens: np.ndarray[Any, np.dtype[np.int64]], context: int) -> float:
    """One forward of `tokens` behind `context` cached ones."""
    batch, width = tokens.shape
    decoder.lengths[:] = context
    _wait_for(decoder)
    began = perf_counter()
    decoder.extend(np.arange(batch), tokens, np.full(batch, width))
    _wait_for(decoder)
    return perf_counter() - began


def _wait_for(decoder: Decoder) -> None:
    if decoder.device.type == "cuda":
        import torch

        torch.cuda.synchronize(decoder.device)


def _release_memory() -> None:
    """Give the device back what nobody holds any more: the next shape asks how much is free."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()  # nothing where no GPU is in use


def left_out(what: str, error: RunError) -> str:
    """The line of something that could not be done, told on stderr."""
    line = f"{what}: {error}"
    print(f"left out: {line}", file=sys.stderr, flush=True)
    return line


def split(forwards: Iterable[Forward]) -> list[Split]:
    """Dense part and attention by a line over the contexts, of which a role, batch and width must have two."""
    groups: dict[tuple[str, int, int], list[Forward]] = {}
    for forward in forwards:
        groups.setdefault((forward.role, forward.batch, forward.width), []).append(forward)
    found = []
    for (role, batch, width), members in groups.items():
        contexts = np.array([f.context for f in members], float)
        if len(set(contexts)) < 2:
            continue
        slope, dense = np.polyfit(contexts * batch, [f.seconds for f in members], 1)
        found.append(Split(role, batch, width, float(dense), float(slope)))
    return found
