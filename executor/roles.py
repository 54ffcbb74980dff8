"""What each role's process loads: the pair, and the speculator's side of a run.

`prepare_speculator` is the entry of the speculator's process (`executor.launch`), and what the draft's rank
runs under torchrun.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.child import Serve
from executor.config import EngineConfig
from executor.memory import out_of_memory_explained
from executor.messages import Channel
from executor.models import LoadedModel, Share, check_same_vocabulary, load_model
from executor.speculator import Speculator
from ssdsim.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelPair:
    """Where the two models come from (see `executor.models`) and where they go."""

    target: str
    draft: str | None = None
    """None: mode `ar` only."""
    dtype: str = "float32"
    target_device: str = "cpu"
    draft_device: str = "cpu"
    seed: int = 0
    """Of dummy weights."""

    def check(self) -> None:
        """Refuse models whose tokens differ, before anything large is loaded."""
        if self.draft is not None:
            check_same_vocabulary(self.target, self.draft)

    def load_target(self, share: Share | None = None) -> LoadedModel:
        """The target; `share` keeps one rank's part of it."""
        return load_model(self.target, dtype=self.dtype, device=self.target_device, seed=self.seed, share=share)

    def load_draft(self) -> LoadedModel:
        """The draft; what it shares with its target is read from the target's files."""
        if self.draft is None:
            raise InputError("draft: needed in modes sd and ssd")
        return load_model(
            self.draft,
            dtype=self.dtype,
            device=self.draft_device,
            embedding_source=self.target,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class SpeculatorTask:
    """All that the speculator's process is told."""

    config: EngineConfig
    pair: ModelPair
    num_threads: int = 1


def prepare_speculator(task: SpeculatorTask) -> Serve:
    """Load the draft and make room; what is returned serves a channel until the run is over."""
    torch.set_num_threads(task.num_threads)
    with out_of_memory_explained(task.config):
        speculator = Speculator(task.config, task.pair.load_draft())

    def serve(channel: Channel) -> None:
        with out_of_memory_explained(task.config):
            speculator.serve(channel)

    return serve
