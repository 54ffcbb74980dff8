"""An engine over the ranks of a torchrun: the target on all ranks but the last, the draft on the last.

    torchrun --nproc-per-node 5 -m executor ...     four ranks share the target, the fifth drafts

gloo and CPUs, or NCCL and one GPU per rank where every rank has one. Rank 0 runs the engine; the other target
ranks follow it (`executor.tensor_parallel`), and the last rank serves the channel
(`executor.transport.collective`). Every stage before the first token is agreed: if one rank cannot load its
part, all end, and the rank that failed says why.

There are no restarts here: when a rank dies, torchrun ends them all, the engine that could go on alone included. When
torchrun itself dies, its ranks end too (`executor.parent`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from executor.config import EngineConfig
from executor.engine import Engine
from executor.llama import LlamaModel
from executor.memory import check_cache_fits, out_of_memory_explained
from executor.messages import Channel, ChannelClosed
from executor.models import LoadedModel
from executor.placement import CoreReservation, allowed_cores
from executor.roles import ModelPair
from executor.session import Session
from executor.speculator import prepare
from executor.tensor_parallel import LeadingModel, follow, sharded_over
from executor.transport import Transport
from executor.transport.collective import CollectiveChannel
from ssdsim.errors import InputError, RunError, SsdsimError
from ssdsim.scenario import Mode

T = TypeVar("T")

_PATIENCE = timedelta(days=7)
"""A long wait is no fault: ranks that died are torchrun's to notice."""


class FailedElsewhere(RunError):
    """Another rank could not go on, and says why; `bad_input` is what kind of failure it was."""

    def __init__(self, rank: int, bad_input: bool) -> None:
        self.bad_input = bad_input
        super().__init__(f"rank {rank} could not go on")


@dataclass(frozen=True)
class Ranks:
    """Who is who in this run."""

    rank: int
    world_size: int
    device: torch.device
    mesh: DeviceMesh
    """Of the target ranks only: no collective over it may wait for the draft's rank."""
    messages: dist.ProcessGroup
    """Rank 0 and the draft's rank."""

    @property
    def draft_rank(self) -> int:
        """The last one."""
        return self.world_size - 1

    @property
    def target_tp(self) -> int:
        """Ranks that share the target."""
        return self.world_size - 1

    def agree(self, stage: Callable[[], T]) -> T:
        """Run a stage on every rank. Where it fails its error is raised, on all others FailedElsewhere."""
        failure: Exception | None = None
        try:
            result = stage()
        except (InputError, RunError) as error:
            failure = error
        verdicts: list[bool | None] = [None] * self.world_size
        dist.all_gather_object(verdicts, None if failure is None else isinstance(failure, InputError))
        failed = [rank for rank, verdict in enumerate(verdicts) if verdict is not None]
        if not failed:
            return result
        if failure is not None and self.rank == failed[0]:
            raise failure
        raise FailedElsewhere(failed[0], bool(verdicts[failed[0]]))


def under_torchrun() -> bool:
    """Whether this process is one of several that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def join() -> Iterator[Ranks]:
    """Meet the other ranks; at the end all leave together."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpu = torch.cuda.is_available() and torch.cuda.device_count() >= local_size
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend, bound_to = ("nccl", device) if on_gpu else ("gloo", None)
    dist.init_process_group(backend, timeout=_PATIENCE, device_id=bound_to)
    try:
        # Every rank takes part in making every group, whether it belongs to it or not.
        mesh = DeviceMesh(device.type, list(range(world_size - 1)))
        messages = dist.new_group([0, world_size - 1], timeout=_PATIENCE)
        try:
            yield Ranks(rank, world_size, device, mesh, messages)
        except SsdsimError:
            dist.barrier()
            raise
        dist.barrier()
    finally:
        dist.destroy_process_group()


@contextmanager
def place(num_threads: int) -> Iterator[str]:
    """This rank on cores of its own, where every rank of the machine can have them; yields what was done."""
    torch.set_num_threads(num_threads)
    enough = len(allowed_cores()) >= num_threads * int(os.environ["LOCAL_WORLD_SIZE"])
    cores = CoreReservation([num_threads] if enough else [])
    try:
        if cores.placements:
            cores.bind_caller(0)
            yield cores.placements[0].describe()
        else:
            yield f"not pinned, {num_threads} thread{'s' if num_threads > 1 else ''}"
    finally:
        cores.release()


def serve(
    ranks: Ranks,
    config: EngineConfig,
    pair: ModelPair,
    run: Callable[[Session], None],
    num_threads: int = 1,
) -> None:
    """Play this rank's part in one run of `pair` on its device; rank 0 calls `run` with the engine, and ends the
    others' parts after it."""
    if ranks.target_tp > 1 and ranks.rank != ranks.draft_rank:
        pair = replace(pair, cuda_graphs=False)  # the target's ranks meet within every step
    ranks.agree(pair.check)
    with place(num_threads) as placement, out_of_memory_explained(config):
        if ranks.rank == ranks.draft_rank:
            _serve_draft(ranks, config, pair)
        elif ranks.rank == 0:
            _lead(ranks, config, pair, run, placement)
        else:
            share = sharded_over(ranks.mesh)
            model = ranks.agree(lambda: pair.load_target(share).model)
            follow(model, ranks.mesh)


def _serve_draft(ranks: Ranks, config: EngineConfig, pair: ModelPair) -> None:
    idle = config.mode is Mode.AR
    served = ranks.agree(lambda: None if idle else prepare(pair.speculator_task(config)))
    if served is not None:
        with suppress(ChannelClosed):  # Rank 0 could not begin, and says why.
            served(_channel(ranks, config))


def _lead(
    ranks: Ranks, config: EngineConfig, pair: ModelPair, run: Callable[[Session], None], placement: str
) -> None:
    sharded = ranks.target_tp > 1
    target = ranks.agree(lambda: pair.load_target(sharded_over(ranks.mesh) if sharded else None))
    about = {
        "target": pair.target,
        "draft": pair.draft,
        "dtype": pair.dtype,
        "transport": f"{Transport.DISTRIBUTED} ({dist.get_backend()})",
        "target_tp": ranks.target_tp,
        "verifier_placement": placement,
        "speculator_placement": f"rank {ranks.draft_rank}",
    }
    with _leading(target.model, ranks) as model:
        target = replace(target, model=model)
        engine = _engine(ranks, config, target)
        try:
            run(Session(engine=engine, target=target, about=about))
        finally:
            engine.close()


@contextmanager
def _leading(model: LlamaModel, ranks: Ranks) -> Iterator[LlamaModel]:
    """The model that the other target ranks follow. They are dismissed at the end, and after a failure that
    left them waiting for an announcement; one in mid-pass leaves them to torchrun."""
    if ranks.target_tp == 1:
        yield model
        return
    leader = LeadingModel(model, ranks.mesh)
    try:
        yield leader
    except SsdsimError:
        leader.dismiss()
        raise
    leader.dismiss()


def _engine(ranks: Ranks, config: EngineConfig, target: LoadedModel) -> Engine:
    channel = _channel(ranks, config)
    link = None if config.mode is Mode.AR else _RankLink(channel)
    try:
        check_cache_fits(config, target.model)
        return Engine(config, target, link)
    except SsdsimError:
        channel.close()
        raise


def _channel(ranks: Ranks, config: EngineConfig) -> Channel:
    first = ranks.rank == 0
    return CollectiveChannel(
        config.layout,
        ranks.draft_rank if first else 0,
        ranks.messages,
        sends_outcomes=first,
        device=ranks.device,
    )


class _RankLink:
    """The draft's rank as the engine sees it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def is_ready(self) -> bool:
        """It has agreed to start."""
        return True

    def restart(self) -> None:
        """A rank cannot be replaced."""
        raise RunError("speculator: a rank of a torchrun cannot be restarted")

    def close(self) -> None:
        """Nothing is left to do: the engine has told it to stop."""
