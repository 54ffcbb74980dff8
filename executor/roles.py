"""A pair of models: where they come from and where they go. Used by whatever opens an engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.config import EngineConfig
from executor.models import LoadedModel, Share, check_same_vocabulary, load_model
from executor.speculator import SpeculatorTask
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
    cuda_graphs: bool = False
    """Capture the narrow steps of both models (see `executor.graphs`)."""

    def check(self) -> None:
        """Refuse devices that are not there and models whose tokens differ, before anything large is loaded."""
        for device in (self.target_device, self.draft_device):
            _check_device(device)
        if self.draft is not None:
            check_same_vocabulary(self.target, self.draft)

    def load_target(self, share: Share | None = None) -> LoadedModel:
        """The target; `share` keeps one rank's part of it."""
        return load_model(
            self.target,
            dtype=self.dtype,
            device=self.target_device,
            seed=self.seed,
            share=share,
            cuda_graphs=self.cuda_graphs,
        )

    def load_draft(self) -> LoadedModel:
        """The draft; what it shares with its target is read from the target's files."""
        return load_model(
            self._needed_draft(),
            dtype=self.dtype,
            device=self.draft_device,
            embedding_source=self.target,
            seed=self.seed,
            cuda_graphs=self.cuda_graphs,
        )

    def speculator_task(self, config: EngineConfig) -> SpeculatorTask:
        """What the speculator's process is started with."""
        return SpeculatorTask(
            config=config,
            draft=self._needed_draft(),
            dtype=self.dtype,
            device=self.draft_device,
            embedding_source=self.target,
            seed=self.seed,
            cuda_graphs=self.cuda_graphs,
        )

    def _needed_draft(self) -> str:
        if self.draft is None:
            raise InputError("draft: needed in modes sd and ssd")
        return self.draft


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        raise InputError(f"device: {device!r} cannot be used here ({str(error).splitlines()[0]})") from error
