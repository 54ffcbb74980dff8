"""Ctrl-C ends what it is meant to end, also where C code drops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from ssdsim.interrupts import insistent_interrupts

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs the timers of Unix")


class PressedInLookup(type):
    """The class of a class that NumPy asks for its methods, in Python, as that of an Enum before 3.12."""

    to_be_pressed = False

    def __getattr__(cls, name: str) -> object:
        if PressedInLookup.to_be_pressed:
            PressedInLookup.to_be_pressed = False
            signal.raise_signal(signal.SIGINT)
        raise AttributeError(name)


class Operand(int, metaclass=PressedInLookup):
    """Its class is asked."""


def press_in_numpy() -> None:
    PressedInLookup.to_be_pressed = True
    assert (np.zeros(3) == Operand(0)).all()
    assert not PressedInLookup.to_be_pressed


def press_and_wait() -> None:
    signal.raise_signal(signal.SIGINT)
    pytest.fail("was not interrupted")


def wait() -> None:
    time.sleep(30)
    pytest.fail("was not interrupted")


def interrupted(run: Callable[[], None]) -> KeyboardInterrupt:
    """What ends `run` when a command line runs it."""
    with pytest.raises(KeyboardInterrupt) as ended, insistent_interrupts():
        run()
    return ended.value


def test_numpy_drops_an_interrupt_of_its_lookups() -> None:
    press_in_numpy()


def test_an_interrupt_that_was_dropped_comes_again() -> None:
    def run() -> None:
        press_in_numpy()
        wait()

    interrupted(run)


def test_torch_makes_an_error_of_an_interrupt_of_its_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def pressed(storage: object, index: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.UntypedStorage, "__getitem__", pressed)
    with pytest.raises(ValueError, match="could not determine the shape"):
        torch.asarray(torch.UntypedStorage(8), dtype=torch.uint8)


def test_an_error_in_the_place_of_an_interrupt_is_one() -> None:
    def run() -> None:
        try:
            press_and_wait()
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape") from None

    assert isinstance(interrupted(run).__cause__, ValueError)


def test_an_error_without_an_interrupt_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="a shape"), insistent_interrupts():
        raise ValueError("a shape")


def test_what_is_done_on_an_interrupt_is_not_interrupted_by_its_repetition() -> None:
    done = []

    def clean_up() -> None:
        try:
            raise ValueError
        except ValueError:
            time.sleep(0.3)
        done.append("cleaned up")

    def run() -> None:
        try:
            press_and_wait()
        except KeyboardInterrupt:
            clean_up()
            raise
        finally:
            clean_up()

    interrupted(run)
    assert done == ["cleaned up"] * 2


def test_a_second_press_is_heard_while_the_first_is_handled() -> None:
    def run() -> None:
        try:
            press_and_wait()
        finally:
            press_and_wait()

    assert isinstance(interrupted(run).__context__, KeyboardInterrupt)


def test_afterwards_signals_are_what_they_were() -> None:
    numbers = (signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    interrupted(press_and_wait)
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_without_timers_an_interrupt_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "setitimer")
    interrupted(press_and_wait)


def test_a_program_that_ignores_ctrl_c_goes_on_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with insistent_interrupts():
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
    finally:
        signal.signal(signal.SIGINT, before)
