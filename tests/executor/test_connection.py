"""The engine's line to its speculator: how often a lost one is replaced."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from executor.connection import Connection
from executor.contexts import Contexts
from executor.messages import Bytes, ChannelClosed, Layout, SpeculationMessage

LAYOUT = Layout(num_slots=1, num_speculative_tokens=2, vocab_size=10, sampled=False)
ROWS = np.array([0])
NOBODY = np.empty(0, np.int64)


class Speculators:
    """One after the other; `answers[i]` is how many messages the i-th answers before it is lost."""

    def __init__(self, answers: list[int]) -> None:
        self._answers = iter(answers)
        self.num_started, self.is_closed = 0, False
        self.restart()

    @property
    def channel(self) -> Speculators:
        return self

    def send(self, message: Bytes) -> None:
        if not self._left:
            raise ChannelClosed("lost")

    def recv(self) -> Bytes:
        self._left -= 1
        return SpeculationMessage(LAYOUT).buffer

    def poll(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return True

    def restart(self) -> None:
        self._left = next(self._answers)
        self.num_started += 1

    def close(self) -> None:
        self.is_closed = True


def rounds(connection: Connection, count: int) -> int:
    """Run so many rounds; how many were answered."""
    contexts = Contexts(1, 8)
    answered = 0
    for number in range(count):
        connection.tell(contexts, ROWS, None, NOBODY, number)
        answered += connection.receive() is not None
    return answered


@pytest.mark.parametrize(
    ("answers", "started", "answered"),
    [
        ([0, 0, 0, 100], 3, 0),  # three that never answer: no fourth
        ([1, 1, 1, 1, 100], 5, 16),  # each was good for something; a round goes without one whenever one is lost
        ([2, 0, 0, 0, 100], 3, 2),
    ],
)
def test_speculators_that_die_without_an_answer_are_not_replaced_for_ever(
    answers: list[int], started: int, answered: int
) -> None:
    speculators = Speculators(answers)
    connection = Connection(speculators, LAYOUT, replace_lost=True)
    assert rounds(connection, 20) == answered
    assert speculators.num_started == started
    assert speculators.is_closed == (started == 3)


def test_without_replacement_a_lost_speculator_is_ended() -> None:
    speculators = Speculators([1, 100])
    connection = Connection(speculators, LAYOUT, replace_lost=False)
    assert rounds(connection, 5) == 1
    assert (speculators.num_started, speculators.is_closed) == (1, True)
