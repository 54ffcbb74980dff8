"""How a process ends when the one that started it does.

Used by `executor.child` and, for the ranks of a torchrun, by `executor.__main__`: light, so that it can come first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

ORPHANED = 1
"""Exit code of a process whose parent is gone: nobody is left to read it."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of <sys/prctl.h>."""
_LOOK_EVERY_S = 1.0


def die_with(parent_pid: int) -> None:
    """Have the kernel kill this process with the thread that started it (Linux); covers even a process that is
    stopped."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent_pid:  # It died before the request.
        os._exit(ORPHANED)


def end_with_parent() -> None:
    """Look once a second whether the parent is still there, and end at once if not: for a parent whose threads are
    unknown."""
    parent_pid = os.getppid()

    def look() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_LOOK_EVERY_S)
        os._exit(ORPHANED)

    threading.Thread(target=look, daemon=True).start()
