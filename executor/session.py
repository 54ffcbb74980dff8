"""One machine's arrangement of an engine: models loaded, roles placed, speculator started; all undone at the end.

    with open_engine(config, pair) as session:
        generation = session.engine.generate(requests, session.about)

Used by `python -m executor`, by `ssdsim measure` and by the tests; several ranks: `executor.torchrun`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from executor.config import EngineConfig
from executor.connection import SpeculatorLink
from executor.engine import Engine
from executor.launch import PATIENCE_S, SPIN_S, SpeculatorProcess
from executor.local import LocalSpeculator
from executor.memory import check_cache_fits, out_of_memory_explained
from executor.models import LoadedModel
from executor.placement import CoreReservation, Placement
from executor.roles import ModelPair
from executor.transport import Transport, best_transport
from ssdsim.errors import DomainError
from ssdsim.scenario import Mode


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """How the two roles share the machine."""

    transport: Transport | None = None
    """None: `local` for SD, whose roles take turns anyway, else the best that the machine offers."""
    num_threads: int = 1
    """Of each role."""
    pin: bool = True
    """Whether each role gets cores of its own, as far as there are any."""
    cores: tuple[int, ...] = ()
    """These cores, the verifier's first, whoever else uses them: for engines that take turns. Empty: cores that no
    other engine on the machine has taken."""
    spin_s: float = SPIN_S
    """How long a side on cores of its own looks for a message before it sleeps; more than a round saves the wake-up.
    Where the roles may share a core a side sleeps at once: looking would keep the other from running."""
    patience_s: float | None = PATIENCE_S
    """How long the verifier waits for a speculator in a process of its own that lives but does not answer; then it
    counts as lost. None: without limit."""
    replace_lost: bool = False
    """Whether a speculator that was lost gets a successor; if not, the engine goes on alone."""

    def transport_for(self, mode: Mode) -> Transport:
        """What carries the messages in this mode."""
        if self.transport is not None:
            return self.transport
        return best_transport() if mode is Mode.SSD else Transport.LOCAL


@dataclass(frozen=True, kw_only=True)
class Session:
    """An engine that can be asked, and what a reader of its records must know of it."""

    engine: Engine
    target: LoadedModel
    about: dict[str, Any]
    speculator: SpeculatorProcess | None = None
    """The speculator's process, where it has one."""


@contextmanager
def open_engine(config: EngineConfig, pair: ModelPair, arrangement: Arrangement | None = None) -> Iterator[Session]:
    """An engine in this process, its speculator in another one unless the transport is `local`.

    The draft loads while the target does. Raises InputError for models or a context that cannot be used,
    RunError where memory does not suffice or the speculator fails; nothing is left running in either case.
    """
    arrangement = arrangement or Arrangement()
    transport = arrangement.transport_for(config.mode)
    apart = config.mode is not Mode.AR and transport is not Transport.LOCAL
    with ExitStack() as stack, out_of_memory_explained(config):
        verifier, speculator = _place(stack, arrangement, apart)
        process = None
        if apart:
            process = _start_speculator(config, pair, arrangement, speculator)
            stack.callback(process.close)
        pair.check()
        target = pair.load_target()
        check_cache_fits(config, target.model)
        link: SpeculatorLink | None = process
        if config.mode is not Mode.AR and not apart:
            link = LocalSpeculator(config, pair.load_draft())
        engine = Engine(config, target, link, replace_lost=arrangement.replace_lost)
        if process is not None:
            process.wait_until_ready()
        stack.callback(engine.close)
        about = {
            "target": pair.target,
            "draft": pair.draft,
            "dtype": pair.dtype,
            "transport": str(transport) if apart else None,
            "verifier_placement": verifier.describe(),
            "speculator_placement": speculator.describe() if apart else None,
        }
        yield Session(engine=engine, target=target, about=about, speculator=process)


def _start_speculator(
    config: EngineConfig, pair: ModelPair, arrangement: Arrangement, placement: Placement
) -> SpeculatorProcess:
    return SpeculatorProcess(
        entry="executor.speculator:prepare",
        payload=pair.speculator_task(config),
        layout=config.layout,
        transport=arrangement.transport_for(config.mode),
        placement=placement,
        spin_s=arrangement.spin_s if placement.cores else 0.0,
        patience_s=arrangement.patience_s,
    )


def _place(stack: ExitStack, arrangement: Arrangement, apart: bool) -> tuple[Placement, Placement]:
    """Threads and cores of both roles, and this process bound to the verifier's; the same where they share it."""
    if arrangement.num_threads < 1:
        raise DomainError("num_threads", "an integer of at least 1", arrangement.num_threads)
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(arrangement.num_threads)
    free = Placement(num_threads=arrangement.num_threads)
    if not arrangement.pin:
        return free, free
    cores = CoreReservation([arrangement.num_threads] * (2 if apart else 1), arrangement.cores)
    stack.callback(cores.release)
    cores.bind_caller(0)
    return cores.placements[0], cores.placements[-1]
