"""Messages over a socket pair: the transport for every Unix and every processor.

A message has a fixed size per direction, so the stream needs no framing. The kernel reports the death of
the other process as the end of the stream, at once.
"""

from __future__ import annotations

import select
import socket

import numpy as np

from executor.messages import Bytes, ChannelClosed, NoAnswer

_BUFFER_BYTES = 1 << 20
"""Asked of the kernel for each direction, so that a message is usually handed over in one call."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected stream sockets; a descriptor is inherited only by a child that is handed it."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends


class PipeChannel:
    """One end of a socket pair; receives messages of `incoming` bytes.

    `patience_s`: how long a call waits for the other side to read or write anything (None: while it lives).
    """

    def __init__(self, end: socket.socket, incoming: int, patience_s: float | None = None) -> None:
        self._end = end
        self._end.settimeout(patience_s)
        self._buffer: Bytes = np.empty(incoming, np.uint8)
        self._poller = select.poll()
        self._poller.register(end, select.POLLIN)

    def send(self, message: Bytes) -> None:
        """Write the message out; blocks while the other side has not taken the previous ones."""
        try:
            self._end.sendall(message.data)
        except TimeoutError as error:
            raise NoAnswer("channel: the other side takes no message") from error
        except OSError as error:
            raise ChannelClosed(f"channel: the other side is gone ({error})") from error

    def recv(self) -> Bytes:
        """Sleep in the kernel until a whole message is here."""
        view, got = self._buffer.data, 0
        while got < len(view):
            try:
                count = self._end.recv_into(view[got:])
            except TimeoutError as error:
                raise NoAnswer("channel: the other side sends nothing") from error
            except OSError as error:
                raise ChannelClosed(f"channel: the other side is gone ({error})") from error
            if count == 0:
                raise ChannelClosed("channel: the other side has closed it")
            got += count
        return self._buffer

    def poll(self) -> bool:
        """Whether bytes, or the end of the stream, are waiting."""
        return bool(self._poller.poll(0))

    def close(self) -> None:
        """End the stream: the other side's next `recv` raises."""
        if self._end.fileno() >= 0:
            self._poller.unregister(self._end)
            self._end.close()
