"""Messages through anonymous shared memory: no system call while both sides are busy.

Each direction is a *lane*: two slots for messages and four counters, each on its own cache line.

    written    messages the sender has completed; message i lies in slot i % 2
    released   messages the receiver no longer looks at
    receiver_asleep, sender_asleep   set by a side that went to sleep in the kernel

The sender copies the message into a free slot and only then raises `written`; the receiver reads `written`
and only then the message. That order is what makes it correct, and x86 keeps it: its stores become visible
in program order (TSO; glibc's memcpy fences the non-temporal stores that it uses for large copies).
Elsewhere `executor.transport.link` refuses and the pipe is used.

A side that waits reads the counter for `spin_s` and then sleeps in `poll` on a socket pair whose other end
the peer holds. The socket is doorbell and lifeline in one: the peer writes a byte to wake a sleeper, and the
kernel closes it when the peer dies, which wakes the sleeper too. x86 lets a load overtake an earlier
store, so a sleeper and a sender may just miss each other: the sleep is bounded, and the counter read again.
"""

from __future__ import annotations

import math
import mmap
import os
import select
import socket
import tempfile
from time import perf_counter

import numpy as np

from executor.messages import Bytes, ChannelClosed, NoAnswer
from ssdsim.errors import RunError

_LINE = 64
"""Bytes of a cache line: counters that different cores write lie on different lines."""
_WRITTEN, _RELEASED, _RECEIVER_ASLEEP, _SENDER_ASLEEP = (i * _LINE // 8 for i in range(4))
_HEADER = 4 * _LINE
_SLOTS = 2
_READS_PER_CLOCK = 50
"""Reads of the counter between two looks at the clock."""
_FIRST_SLEEP_MS, _LONGEST_SLEEP_MS = 1, 64


def segment_bytes(sizes: tuple[int, int]) -> int:
    """Bytes of a segment whose two lanes carry messages of `sizes` bytes."""
    return sum(_lane_bytes(size) for size in sizes)


def anonymous_memory(num_bytes: int) -> int:
    """A descriptor of zeroed memory that has no name, so that no end of any process can leave it behind."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("ssdsim")
    else:
        with tempfile.TemporaryFile() as unlinked:
            fd = os.dup(unlinked.fileno())
    os.ftruncate(fd, num_bytes)
    return fd


class SharedMemoryChannel:
    """One end: sends on lane `sends`, receives on the other.

    `sizes` are the message sizes of lanes 0 and 1. The descriptor `memory_fd` stays the caller's to close;
    `doorbell` becomes this object's. `patience_s`: how long a call waits for the other side (None: while it lives).
    """

    def __init__(
        self,
        memory_fd: int,
        doorbell: socket.socket,
        sizes: tuple[int, int],
        *,
        sends: int,
        spin_s: float,
        patience_s: float | None = None,
    ) -> None:
        memory = memoryview(mmap.mmap(memory_fd, segment_bytes(sizes)))
        lanes = (_Lane(memory, 0, sizes[0]), _Lane(memory, _lane_bytes(sizes[0]), sizes[1]))
        self._out, self._in = lanes[sends], lanes[1 - sends]
        self._sent = self._received = 0
        self._bell = doorbell
        self._bell.setblocking(False)
        self._poller = select.poll()
        self._poller.register(doorbell, select.POLLIN)
        self._spin_s = spin_s
        self._patience_s = math.inf if patience_s is None else patience_s
        self._peer_gone = False

    def send(self, message: Bytes) -> None:
        """Copy the message into a free slot; waits only while the other side is two messages behind."""
        out = self._out
        if self._peer_gone:
            raise ChannelClosed("channel: the other side is gone")
        if message.nbytes != out.size:
            raise RunError(f"message: {message.nbytes} bytes to send, the layout has {out.size}")
        if self._sent - out.words[_RELEASED] >= _SLOTS:
            self._wait(out.words, _RELEASED, self._sent - _SLOTS + 1, _SENDER_ASLEEP)
        out.slots[self._sent % _SLOTS][:] = message
        self._sent += 1
        out.words[_WRITTEN] = self._sent
        if out.words[_RECEIVER_ASLEEP]:
            self._ring()

    def recv(self) -> Bytes:
        """The next message, in place: its slot is given back by the next `recv`."""
        words = self._in.words
        words[_RELEASED] = self._received
        if words[_SENDER_ASLEEP]:
            self._ring()
        self._wait(words, _WRITTEN, self._received + 1, _RECEIVER_ASLEEP)
        slot = self._in.slots[self._received % _SLOTS]
        self._received += 1
        return slot

    def poll(self) -> bool:
        """Whether a message is here or the other side is gone."""
        if self._in.words[_WRITTEN] > self._received:
            return True
        if not self._peer_gone and self._poller.poll(0):
            self._peer_gone = self._hear_bell()
        return self._peer_gone

    def close(self) -> None:
        """Hang up and let go of the memory; a message still being read keeps it until it is dropped."""
        if self._bell.fileno() >= 0:
            self._poller.unregister(self._bell)
            self._bell.close()
            self._peer_gone = True
            self._out = self._in = _Lane(memoryview(bytearray(_HEADER)), 0, 0)

    def _wait(self, words: memoryview, index: int, target: int, asleep: int) -> None:
        """Return when `words[index]` has reached `target`. Raises ChannelClosed if it never will, NoAnswer if it has
        not in time."""
        give_up = perf_counter() + self._spin_s
        while True:
            for _ in range(_READS_PER_CLOCK):
                if words[index] >= target:
                    return
            if perf_counter() >= give_up:
                break
        words[asleep] = 1
        try:
            self._sleep(words, index, target)
        finally:
            words[asleep] = 0

    def _sleep(self, words: memoryview, index: int, target: int) -> None:
        sleep_ms, give_up = _FIRST_SLEEP_MS, perf_counter() + self._patience_s
        while words[index] < target:
            if self._peer_gone:
                # What it wrote before it went still counts: everything it stored is visible by now.
                if words[index] >= target:
                    return
                raise ChannelClosed("channel: the other side is gone")
            if self._poller.poll(sleep_ms):
                self._peer_gone = self._hear_bell()
            if perf_counter() >= give_up and words[index] < target:
                raise NoAnswer("channel: the other side does not stir")
            sleep_ms = min(2 * sleep_ms, _LONGEST_SLEEP_MS)

    def _ring(self) -> None:
        try:
            self._bell.send(b"\0")
        except BlockingIOError:
            return  # The buffer is full of rings that nobody has heard yet.
        except OSError:
            self._peer_gone = True

    def _hear_bell(self) -> bool:
        """Take the rings; True when the line is dead."""
        try:
            return not self._bell.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            return True


class _Lane:
    """One direction's counters and slots."""

    def __init__(self, memory: memoryview, offset: int, size: int) -> None:
        self.size = size
        self.words = memory[offset : offset + _HEADER].cast("Q")
        first = offset + _HEADER
        self.slots: list[Bytes] = [
            np.frombuffer(memory, np.uint8, size, first + i * _padded(size)) for i in range(_SLOTS)
        ]


def _lane_bytes(size: int) -> int:
    return _HEADER + _SLOTS * _padded(size)


def _padded(size: int) -> int:
    return -(-size // _LINE) * _LINE
