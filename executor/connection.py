"""The engine's line to its speculator, which may break at any moment.

A lost speculator costs no token: the engine goes on alone, and a successor, once it is ready, is told every running
request with its output so far.
"""

from __future__ import annotations

import contextlib
import logging
from time import perf_counter
from typing import Protocol

import numpy as np

from executor.contexts import Contexts, Ints
from executor.messages import (
    Channel,
    ChannelClosed,
    Layout,
    MessageKind,
    OutcomeMessage,
    SlotState,
    SpeculationMessage,
    send_outcome,
)
from executor.verifier import Outcome
from ssdsim.errors import InputError, RunError

_log = logging.getLogger(__name__)

_MOST_FRUITLESS = 3
"""Speculators lost one after the other without an answer from any, after which no further one is started."""


class SpeculatorLink(Protocol):
    """A speculator as the engine sees it: `executor.launch.SpeculatorProcess`, or `executor.local`."""

    @property
    def channel(self) -> Channel:
        """The channel to the current speculator."""

    def is_ready(self) -> bool:
        """Whether it can be spoken to."""

    def restart(self) -> None:
        """Put a new one in place of one that was lost."""

    def close(self) -> None:
        """End it."""


class Connection:
    """Outcomes out, speculations in, until the speculator is lost or the run is over."""

    def __init__(self, link: SpeculatorLink | None, layout: Layout, replace_lost: bool) -> None:
        """`link` None: there is no speculator. `replace_lost`: start a new one for one that was lost."""
        self._link, self._layout, self._replace_lost = link, layout, replace_lost
        self._message = OutcomeMessage(layout)
        self._num_fruitless = 0
        self.is_open = link is not None
        """Whether there is a speculator that answers what it is told."""

    def receive(self) -> SpeculationMessage | None:
        """The answer to the last outcome; None where there is nobody to answer."""
        if self._link is None or not self.is_open:
            return None
        try:
            reply = SpeculationMessage(self._layout, self._link.channel.recv())
            self._num_fruitless = 0
            return reply
        except ChannelClosed as error:
            self._lose(error)
            return None

    def tell(
        self, contexts: Contexts, rows: Ints, ended: tuple[Ints, Outcome] | None, admitted: Ints, round_: int
    ) -> None:
        """Say what became of the last proposals and which slots go on or are new; a successor is told all of
        `rows`."""
        if self._link is None:
            return
        if self.is_open:
            self._send(self._link, contexts, rows, ended, admitted, round_)
        elif len(rows) and self._successor_ready(self._link):
            self.is_open = True
            self._send(self._link, contexts, rows, None, rows, round_)

    def close(self) -> None:
        """End the speculator. May be called twice."""
        if self._link is None:
            return
        if self.is_open:
            self.is_open = False
            self._message.view["kind"] = MessageKind.STOP
            with contextlib.suppress(ChannelClosed):
                send_outcome(self._link.channel, self._message, ())
        self._link.close()

    def _send(
        self,
        link: SpeculatorLink,
        contexts: Contexts,
        rows: Ints,
        ended: tuple[Ints, Outcome] | None,
        admitted: Ints,
        round_: int,
    ) -> None:
        """One outcome message; an admitted slot's whole context goes with it."""
        slots, header = self._message.slots, self._message.view
        slots["num_accepted"] = -1
        if ended is not None:
            verified, outcome = ended
            slots["num_accepted"][verified] = outcome.num_accepted
            slots["bonus_token"][verified] = outcome.bonus_tokens
        slots["state"] = SlotState.IDLE
        slots["state"][rows] = SlotState.CONTINUE
        slots["state"][admitted] = SlotState.ADMIT
        slots["num_prompt_tokens"][admitted] = contexts.num_tokens[admitted]
        slots["seed"][admitted] = contexts.seeds[admitted]
        slots["temperature"][admitted] = contexts.temperatures[admitted]
        prompts = [contexts.tokens[slot, : contexts.num_tokens[slot]] for slot in admitted]
        header["kind"], header["round"], header["sent_s"] = MessageKind.ROUND, round_, perf_counter()
        try:
            send_outcome(link.channel, self._message, np.concatenate(prompts) if prompts else ())
        except ChannelClosed as error:
            self._lose(error)

    def _lose(self, error: ChannelClosed) -> None:
        self.is_open = False
        self._num_fruitless += 1
        self._replace_lost &= self._num_fruitless < _MOST_FRUITLESS
        _log.warning("%s; going on without it%s", error, ", a new one is starting" * self._replace_lost)
        if self._link is None:
            return
        if self._replace_lost:
            self._link.restart()
        else:
            self._link.close()  # it may live, and hang

    def _successor_ready(self, link: SpeculatorLink) -> bool:
        """Whether a new speculator can take over; one that fails to start is not tried again."""
        if not self._replace_lost:
            return False
        try:
            return link.is_ready()
        except (RunError, InputError) as error:
            _log.warning("%s; going on without a speculator", error)
            self._replace_lost = False
            return False
