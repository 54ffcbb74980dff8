"""A folder of results that one process at a time writes into: a second one is told so instead of mixing its own in.

Used by `executor.measure` and `executor.teacher_forced`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ssdsim.errors import InputError


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold `folder`, which is made if need be. The kernel lets go of it when this process ends, however it ends.

    Raises InputError where another process holds it or it cannot be made. File systems without locks grant them all.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"out: cannot write {folder} ({error.strerror}); choose another folder") from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    with suppress(OSError):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"out: another process is writing into {folder}; wait for it, or choose another folder"
            ) from error
