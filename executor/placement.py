"""Which cores each role runs on, so that neither is moved or displaced while the other computes.

An engine takes cores that no other engine on the machine has taken: holding a core means holding a socket
name in Linux's abstract namespace, which the kernel gives up with the process, however it ends, and which
leaves nothing in the file system. Where too few free cores are left, nobody is pinned and the kernel's
scheduler shares them out. Hardware threads of the same physical core are taken last: they would slow each
other down. Engines that take turns may be given the same cores by name; those are not held.

Used by `executor.launch`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssdsim.errors import DomainError

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where one role computes: `cores` it is bound to (empty: not bound) and its number of threads."""

    cores: tuple[int, ...] = ()
    num_threads: int = 1

    def bind(self) -> None:
        """Bind the calling thread, and the threads it starts from now on."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)

    def describe(self) -> str:
        """For the records: what was pinned."""
        where = f"cores {','.join(map(str, self.cores))}" if self.cores else "not pinned"
        return f"{where}, {self.num_threads} thread{'s' if self.num_threads > 1 else ''}"


class CoreReservation:
    """Cores held for this engine until `release`, one group per role."""

    def __init__(self, threads_per_role: Iterable[int], named: Sequence[int] = ()) -> None:
        """Reserve as many cores per role as it has threads; all or none.

        `named`: take these, the first role first, and hold none of them. Raises DomainError where they are too few
        or the process may not use one of them.
        """
        counts = list(threads_per_role)
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise DomainError("num_threads", "an integer of at least 1", count)
        self._locks: dict[int, socket.socket] = {}
        self._unbound: tuple[int, ...] = ()
        allowed = allowed_cores()
        if named:
            _check_named(named, sum(counts), allowed)
        elif len(allowed) >= sum(counts):
            self._take(allowed, sum(counts))
        held = list(named) or list(self._locks)
        self.placements: list[Placement] = []
        for count in counts:
            self.placements.append(Placement(cores=tuple(held[:count]), num_threads=count))
            held = held[count:]

    def bind_caller(self, role: int) -> None:
        """Bind the calling thread as role number `role`, until `release`."""
        self._unbound = allowed_cores()
        self.placements[role].bind()

    def release(self) -> None:
        """Give the cores up and unbind the caller; may be called twice."""
        if self._unbound:
            os.sched_setaffinity(0, self._unbound)
            self._unbound = ()
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _take(self, allowed: tuple[int, ...], count: int) -> None:
        for core in sorted(allowed, key=_place_among_siblings):
            lock = _lock(core)
            if lock is not None:
                self._locks[core] = lock
            if len(self._locks) == count:
                return
        self.release()


def allowed_cores() -> tuple[int, ...]:
    """The cores this process may use, ascending; empty where the system cannot bind to cores."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def _check_named(named: Sequence[int], needed: int, allowed: tuple[int, ...]) -> None:
    if len(set(named)) < needed or len(set(named)) < len(named):
        raise DomainError("cores", f"at least {needed} different cores, one per thread of each role", list(named))
    if unknown := sorted(set(named) - set(allowed)):
        raise DomainError("cores", f"cores that this process may use: {list(allowed)}", unknown)


def _place_among_siblings(core: int) -> int:
    """0 for the first hardware thread of a physical core, 1 for its second."""
    try:
        text = (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return 0
    siblings = [number for part in text.split(",") for number in _numbers(part)]
    return siblings.index(core) if core in siblings else 0


def _numbers(part: str) -> range:
    """The cores of one part of a kernel list, such as `3` or `0-1`."""
    first, _, last = part.strip().partition("-")
    return range(int(first), int(last or first) + 1)


def _lock(core: int) -> socket.socket | None:
    """A socket whose name stands for the core; None where another engine holds it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0ssdsim-core-{core}")
    except OSError:
        lock.close()
        return None
    return lock
