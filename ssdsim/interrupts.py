"""Ctrl-C that is heard wherever the program is.

C code that calls Python code may drop the KeyboardInterrupt raised there, and the program goes on as if nothing had
been pressed, or put an error of its own in its place. NumPy drops it where it asks an operand's class for
`__array_ufunc__` and its like (numpy/numpy#14801); before Python 3.12 the class of an Enum member answers in Python.
torch makes a ValueError of it where it asks a storage for its elements, as it does when safetensors are loaded.

Used by `ssdsim`, `python -m executor` and the studies, around what they run.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_REPEAT_EVERY_S = 0.1


@contextmanager
def insistent_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt again and again until something handles it, and in the place of an error that ends an
    interrupted program; what is done while it is handled is left in peace. Changes nothing where Ctrl-C is ignored or
    has a handler already, beside the main thread, or on systems without timers (Windows)."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (in_main_thread and usual and hasattr(signal, "setitimer")):
        yield
        return
    alarm = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except Exception as error:
        if _was_pressed():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if _was_pressed():
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)


def _interrupt(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGALRM, _insist)
    signal.setitimer(signal.ITIMER_REAL, _REPEAT_EVERY_S, _REPEAT_EVERY_S)
    raise KeyboardInterrupt


def _insist(number: int, frame: FrameType | None) -> None:
    if not _is_handled():
        raise KeyboardInterrupt


def _was_pressed() -> bool:
    return signal.getsignal(signal.SIGALRM) is _insist


def _is_handled() -> bool:
    """Whether the code that was interrupted by a signal runs because of a KeyboardInterrupt: `except`, `finally`, the
    end of a `with`."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
