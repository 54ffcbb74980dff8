"""A speculator without a model: speaks the message layout, so that transports and processes can be tested.

Its answer to round t proposes tokens derived from the outcome it answers, which a test can recompute.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from executor.child import Serve
from executor.messages import (
    Channel,
    Layout,
    MessageKind,
    OutcomeMessage,
    SpeculationMessage,
    recv_outcome,
    send_outcome,
)
from ssdsim.errors import InputError

LAYOUT = Layout(num_slots=2, num_speculative_tokens=3, vocab_size=50, sampled=False, prompt_chunk=16)


def prepare(payload: dict[str, Any]) -> Serve:
    """`payload`: layout; before: a name below, done before serving; at_round, do: done in that round."""
    _ACTIONS[payload.get("before", "nothing")]()
    layout: Layout = payload["layout"]

    def serve(channel: Channel) -> None:
        reply = SpeculationMessage(layout)
        while True:
            outcome, prompt = recv_outcome(channel, layout)
            if outcome.view["kind"] == MessageKind.STOP:
                return
            round_ = int(outcome.view["round"])
            if round_ == payload.get("at_round"):
                _ACTIONS[payload["do"]]()
            reply.view["round"] = round_
            reply.slots["num_proposed"] = len(prompt)
            reply.slots["tokens"] = outcome.slots["bonus_token"][:, None] + 1
            channel.send(reply.buffer)

    return serve


def ask(channel: Channel, layout: Layout, round_: int, prompt: tuple[int, ...] = ()) -> SpeculationMessage:
    """One round of a verifier that checks nothing: an outcome, and the reply to it."""
    outcome = OutcomeMessage(layout)
    outcome.view["kind"] = MessageKind.ROUND
    outcome.view["round"] = round_
    outcome.slots["bonus_token"] = 7 * round_
    send_outcome(channel, outcome, prompt)
    return SpeculationMessage(layout, channel.recv())


def tell_stop(channel: Channel, layout: Layout) -> None:
    """The orderly end of a run."""
    outcome = OutcomeMessage(layout)
    outcome.view["kind"] = MessageKind.STOP
    send_outcome(channel, outcome, ())


def _refuse() -> None:
    raise InputError("draft: /no/such/model: no such directory")


def _break() -> None:
    raise ZeroDivisionError("a bug")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_ACTIONS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "refuse": _refuse,
    "break": _break,
    "die": _die,
    "exit": lambda: os._exit(3),
    "hang": lambda: time.sleep(3600),
}
