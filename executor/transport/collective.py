"""Messages between two ranks of a torchrun: gloo on CPU, NCCL on GPU.

Each message travels with one header word, so that closing one end can be told to the other: a collective
library has no end of stream. A killed rank shows as an error of the library, with gloo at once.

Neither library can say whether a message has arrived without receiving it (gloo's receive completes only
when waited for), so the first `poll` after a `recv` lets a thread receive, and asks whether it is done.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from executor.messages import Bytes, ChannelClosed, Layout

_HEADER = 64
"""Bytes before the message; the first says whether a message follows. A cache line, to keep it aligned."""
_MESSAGE, _FAREWELL = 0, 1
_FAREWELL_WAIT = timedelta(seconds=1)


class CollectiveChannel:
    """One end, between this rank and the global rank `peer`, over a `group` that holds both.

    `sends_outcomes` tells the verifier's end from the speculator's. `device` is where the library wants its
    tensors: the CPU for gloo, this rank's GPU for NCCL.
    """

    def __init__(
        self,
        layout: Layout,
        peer: int,
        group: dist.ProcessGroup,
        *,
        sends_outcomes: bool,
        device: torch.device,
    ) -> None:
        sizes = (layout.outcome_bytes, layout.speculation_bytes)
        outgoing, incoming = sizes if sends_outcomes else sizes[::-1]
        self._peer, self._group = peer, group
        self._out = _Wire(outgoing, device)
        # Two, because a polled message arrives while the previous one may still be read.
        self._in = (_Wire(incoming, device), _Wire(incoming, device))
        self._received = 0
        self._pending: Future[Bytes] | None = None
        self._closed = False

    def send(self, message: Bytes) -> None:
        """Hand the message to the library; returns when the buffer may be used again."""
        self._out.message[:] = message
        self._send(_MESSAGE)

    def recv(self) -> Bytes:
        """Wait for the next message."""
        if self._pending is None:
            return self._receive()
        pending, self._pending = self._pending, None
        return pending.result()

    def poll(self) -> bool:
        """Whether the next message, or the news that there is none, has come in."""
        if self._pending is None:
            self._pending = Future()
            threading.Thread(target=self._receive_into, args=(self._pending,), daemon=True).start()
        return self._pending.done()

    def close(self) -> None:
        """Say farewell, if there is anybody left to hear it."""
        if not self._closed:
            self._closed = True
            with suppress(RuntimeError):
                self._out.load(_FAREWELL)
                work = dist.isend(self._out.tensor, self._peer, group=self._group)
                if work is not None:
                    work.wait(_FAREWELL_WAIT)

    def _send(self, header: int) -> None:
        try:
            self._out.load(header)
            dist.send(self._out.tensor, self._peer, group=self._group)
        except RuntimeError as error:
            raise self._gone(error) from error

    def _receive(self) -> Bytes:
        wire = self._in[self._received % 2]
        self._received += 1
        try:
            dist.recv(wire.tensor, self._peer, group=self._group)
            header = wire.unload()
        except RuntimeError as error:
            raise self._gone(error) from error
        if header == _FAREWELL:
            raise ChannelClosed(f"channel: rank {self._peer} has closed it")
        return wire.message

    def _gone(self, error: RuntimeError) -> ChannelClosed:
        why = str(error).partition("\n")[0]
        return ChannelClosed(f"channel: rank {self._peer} is gone ({why}), for which torchrun may end this one too")

    def _receive_into(self, future: Future[Bytes]) -> None:
        try:
            future.set_result(self._receive())
        except ChannelClosed as error:
            future.set_exception(error)


class _Wire:
    """A buffer as the host sees it and as the library wants it: one and the same on a CPU."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._host: Tensor = torch.zeros(_HEADER + num_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self.tensor: Tensor = self._host.to(device)
        array: Bytes = self._host.numpy()
        self._header, self.message = array[:_HEADER], array[_HEADER:]

    def load(self, header: int) -> None:
        """Ready `tensor` for sending."""
        self._header[0] = header
        if self.tensor is not self._host:
            self.tensor.copy_(self._host)

    def unload(self) -> int:
        """Ready `message` for reading; returns the header."""
        if self.tensor is not self._host:
            self._host.copy_(self.tensor)
        return int(self._header[0])
