"""How the messages of `executor.messages` travel: three implementations of `Channel`.

| transport     | between                    | carries a message by                                          |
|---------------|----------------------------|---------------------------------------------------------------|
| `shm`         | two processes, one machine | a copy into anonymous shared memory; no system call when busy |
| `pipe`        | two processes, one machine | a socket pair; any processor, any Unix                        |
| `distributed` | two ranks of a torchrun    | torch.distributed send and recv: gloo on CPU, NCCL on GPU     |

Nothing here has a name in the file system or a port: memory and sockets are file descriptors that the child
inherits, so the kernel removes them with the last of the two processes, however it ends.

`link` makes both ends of the first two; `executor.launch` hands the far end to the speculator's process.
The third (`executor.transport.collective`, which needs torch) is built by the ranks of `executor.torchrun`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from enum import StrEnum

from executor.messages import Channel, Layout
from executor.transport.pipe import PipeChannel, socket_pair
from executor.transport.shared_memory import SharedMemoryChannel, anonymous_memory, segment_bytes
from ssdsim.errors import DomainError

__all__ = ["FarEnd", "Transport", "attach", "best_transport", "link"]

_ORDERED_STORES = frozenset({"x86_64", "amd64", "i386", "i686"})
"""Processors that make one core's stores visible to the others in program order (x86 TSO)."""


class Transport(StrEnum):
    """What carries the messages; the value is the name on the command line and in the records."""

    LOCAL = "local"
    """Both roles in one process, taking turns (`executor.local`): nothing is carried."""
    SHM = "shm"
    PIPE = "pipe"
    DISTRIBUTED = "distributed"


@dataclass(frozen=True)
class FarEnd:
    """What the speculator's process needs to open its end: inherited file descriptors, by number."""

    transport: Transport
    fds: tuple[int, ...]
    spin_s: float


def best_transport() -> Transport:
    """`shm` where the processor keeps the order of stores that it relies on, else `pipe`."""
    return Transport.SHM if platform.machine().lower() in _ORDERED_STORES else Transport.PIPE


def link(
    transport: Transport, layout: Layout, spin_s: float, patience_s: float | None = None
) -> tuple[Channel, FarEnd]:
    """The verifier's end, and what the speculator needs to `attach`; the caller closes the far end's fds
    once they are handed over.

    `spin_s`: how long a waiting side polls the shared memory before it sleeps in the kernel. `patience_s`: how long
    the verifier's end waits before it raises NoAnswer (None: as long as the other process lives); the speculator's
    waits without limit, because nobody may want anything of it for hours.
    """
    if transport not in (Transport.SHM, Transport.PIPE):
        raise DomainError("transport", "shm or pipe (distributed: under torchrun)", str(transport))
    if transport is Transport.SHM and best_transport() is not Transport.SHM:
        raise DomainError("transport", f"pipe: {platform.machine()} may reorder stores", str(transport))
    near, far = socket_pair()
    far_socket = far.detach()
    sizes = (layout.outcome_bytes, layout.speculation_bytes)
    if transport is Transport.PIPE:
        return PipeChannel(near, incoming=sizes[1], patience_s=patience_s), FarEnd(transport, (far_socket,), spin_s)
    memory_fd = anonymous_memory(segment_bytes(sizes))
    channel = SharedMemoryChannel(memory_fd, near, sizes, sends=0, spin_s=spin_s, patience_s=patience_s)
    return channel, FarEnd(transport, (far_socket, memory_fd), spin_s)


def attach(end: FarEnd, layout: Layout) -> Channel:
    """The speculator's end, in the process that inherited the descriptors of `end`."""
    from socket import socket

    doorbell = socket(fileno=end.fds[0])
    sizes = (layout.outcome_bytes, layout.speculation_bytes)
    if end.transport is Transport.PIPE:
        return PipeChannel(doorbell, incoming=sizes[0])
    return SharedMemoryChannel(end.fds[1], doorbell, sizes, sends=1, spin_s=end.spin_s)
