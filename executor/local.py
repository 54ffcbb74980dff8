"""Both roles in one process: the channel whose other end is called instead of waited for.

SD drafts and verifies one after the other anyway, so nothing is lost there; for SSD it is the deterministic
arrangement that tests and debuggers want, with the build and the verification in turn instead of side by
side.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter

import torch

from executor.config import EngineConfig
from executor.inbox import Inbox
from executor.messages import Bytes, ChannelClosed
from executor.models import LoadedModel
from executor.speculator import Speculator


class SynchronousChannel:
    """The verifier's end of a channel to a speculator in the same process and thread."""

    def __init__(self, config: EngineConfig, draft: LoadedModel) -> None:
        self._speculator = Speculator(config, draft)
        self._waiting: deque[Bytes] = deque()
        self._inbox = Inbox(_Ahead(self._waiting), config.layout)
        self._must_build = False
        self._closed = False
        self._left_s = 0.0

    def send(self, message: Bytes) -> None:
        """Let the speculator build, as it would have meanwhile, and leave it the message."""
        if self._closed:
            raise ChannelClosed("the channel is closed")
        if self._must_build:
            with torch.inference_mode():
                self._speculator.build()
            self._must_build = False
        self._waiting.append(message.copy())
        self._left_s = perf_counter()

    def recv(self) -> Bytes:
        """The speculator's answer."""
        delivery = None if self._closed else self._inbox.take()
        if delivery is None:
            raise ChannelClosed("the speculator has stopped")
        with torch.inference_mode():
            reply = self._speculator.answer(*delivery)
        # It was there since it was left; that the speculator had to wait its turn belongs to the round.
        reply.view["received_s"] = self._left_s
        self._must_build = True
        return reply.buffer

    def poll(self) -> bool:
        """An answer is there once asked for."""
        return self._closed or bool(self._waiting)

    def close(self) -> None:
        """Nothing is held that needs releasing."""
        self._closed = True


class _Ahead:
    """The speculator's end: it takes what the verifier left."""

    def __init__(self, waiting: deque[Bytes]) -> None:
        self._waiting = waiting

    def send(self, message: Bytes) -> None:
        raise ChannelClosed("answers are returned, not sent, in one process")

    def recv(self) -> Bytes:
        if not self._waiting:
            raise ChannelClosed("nothing was sent")
        return self._waiting.popleft()

    def poll(self) -> bool:
        return bool(self._waiting)

    def close(self) -> None:
        self._waiting.clear()


class LocalSpeculator:
    """A speculator in the verifier's own process, as the engine sees it."""

    def __init__(self, config: EngineConfig, draft: LoadedModel) -> None:
        self._config, self._draft = config, draft
        self.channel = SynchronousChannel(config, draft)

    def is_ready(self) -> bool:
        """It is there at once."""
        return True

    def restart(self) -> None:
        """Start over with an empty cache."""
        self.channel = SynchronousChannel(self._config, self._draft)

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()
