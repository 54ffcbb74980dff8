"""What the speculator hears: outcome messages with their prompts, one at a time, with a look ahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor.messages import Channel, Layout, MessageKind, OutcomeMessage, recv_outcome

Delivery = tuple[OutcomeMessage, NDArray[np.int32]]
"""An outcome and the stream of prompts that it admits."""


class Inbox:
    """The receiving side of a channel; `peek` lets a late build see whether it is still worth finishing."""

    def __init__(self, channel: Channel, layout: Layout) -> None:
        self.channel, self._layout = channel, layout
        self._next: Delivery | None = None

    def take(self) -> Delivery | None:
        """Wait for the next outcome; None: the speculator is no longer needed. Raises ChannelClosed."""
        message, prompt = self.peek()
        self._next = None
        return None if message.view["kind"] == MessageKind.STOP else (message, prompt)

    def peek(self) -> Delivery:
        """Wait for the next outcome and leave it there."""
        if self._next is None:
            self._next = recv_outcome(self.channel, self._layout)
        return self._next

    def arrived(self) -> bool:
        """Whether `peek` would return without waiting."""
        return self._next is not None or self.channel.poll()
