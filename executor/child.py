"""The speculator's process: from `python -m executor.child` to serving the channel.

The parent (`executor.launch`) speaks first, on stdin: a pickled `Assignment`. The answer goes to what was
stdout, one JSON line: ready, or failed and why; a failure while serving is reported the same way. After
that stdin is the lifeline: it says nothing more until it ends, which means that the parent is gone, and so
this process ends at once, whatever it is computing.

A module of its own, so that starting it imports what the role needs and nothing of the program that
launched it.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from executor.messages import Channel, ChannelClosed, Layout
from executor.parent import ORPHANED, die_with
from executor.placement import Placement
from executor.transport import FarEnd, attach
from ssdsim.errors import InputError, SsdsimError

Serve = Callable[[Channel], None]
"""Runs a role over its channel until the run is over (or raises ChannelClosed when the other side is)."""

BAD_INPUT, RUN_FAILED = 2, 1
"""Exit codes, those of the command line."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What the parent tells its child."""

    entry: str
    """`module:function`, called with `payload`; prepares the role (loads its model) and returns its
    `Serve`."""
    payload: Any
    layout: Layout
    far_end: FarEnd
    placement: Placement
    parent_pid: int
    die_with_parent: bool
    """Whether the kernel is to kill the child with the thread that started it."""


def main() -> int:
    """Take the assignment, prepare, report, serve."""
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Whatever a library prints must not land between the reports.
    try:
        assignment: Assignment = pickle.load(sys.stdin.buffer)
    except EOFError:
        return ORPHANED
    if assignment.die_with_parent:
        die_with(assignment.parent_pid)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    return _run(assignment, report)


def _run(assignment: Assignment, report: TextIO) -> int:
    try:
        assignment.placement.bind()
        channel = attach(assignment.far_end, assignment.layout)
        serve = _entry(assignment.entry)(assignment.payload)
        _say(report, ready=True)
        serve(channel)
        channel.close()
    except ChannelClosed:
        return 0  # The verifier has ended or gone on without us.
    except BrokenPipeError:
        return ORPHANED
    except Exception as error:
        bad_input = isinstance(error, InputError)
        known = isinstance(error, SsdsimError)
        _say(report, ready=False, bad_input=bad_input, why=str(error) if known else _unexpected(error))
        return BAD_INPUT if bad_input else RUN_FAILED
    return 0


def _entry(name: str) -> Callable[[Any], Serve]:
    module, _, function = name.partition(":")
    entry: Callable[[Any], Serve] = getattr(importlib.import_module(module), function)
    return entry


def _say(report: TextIO, **message: Any) -> None:
    report.write(json.dumps(message) + "\n")


def _unexpected(error: Exception) -> str:
    """What went wrong and where, in one line: the traceback's last frame is where to look."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}"
    return f"{type(error).__name__}{where}: {error}"


def _exit_with_parent() -> None:
    # Not through sys.stdin: a thread inside a buffered read would hold its lock when the interpreter ends.
    os.read(0, 1)
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
