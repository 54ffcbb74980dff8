"""The speculator's process as the verifier's side sees it: started, watched, replaced, ended.

    speculator = SpeculatorProcess(entry="executor.speculator:prepare", payload=..., layout=layout)
    speculator.wait_until_ready()
    with speculator:
        ... speculator.channel ...

Loss. The channel raises `PeerLost`, naming the exit code or signal, within a moment of the process's death,
in the middle of a wait too; and where a process that lives has not answered for `patience_s`. Nothing that the
verifier has emitted depends on the speculator, so no token is lost: the engine goes on alone. `restart` starts a
successor, `is_ready` says when it can be spoken to (over a new channel), and the engine then re-admits the
running requests with their output so far.

Ends. An orderly end closes the channel and waits for the process; a process that does not end in time is
killed. If this process ends instead, in whatever way, the child notices at once and ends too
(`executor.child`). Memory and sockets have no names, so there is nothing to clean up.

Used by `executor.engine`; knows nothing of what the roles say to each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Self

from executor.child import Assignment
from executor.messages import Bytes, Channel, ChannelClosed, Layout, NoAnswer
from executor.placement import Placement
from executor.transport import FarEnd, Transport, best_transport, link
from ssdsim.errors import InputError, RunError

SPIN_S = 1.5e-3
"""How long a waiting side with a core of its own looks at the shared memory before it sleeps: being woken
takes some 50 us longer (`benchmarks/transport.py`)."""
PATIENCE_S = 60.0
"""How long the verifier waits for an answer before it gives the speculator up: many times what the slowest draft
takes for a long prompt."""
END_GRACE_S = 2.0
"""What a process gets to end by itself once its channel is closed."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class PeerLost(ChannelClosed):
    """The speculator's process is gone, or hangs; `exit_code` is negative (minus the signal) if it was killed, None
    if it lives."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        self.exit_code = exit_code
        super().__init__(message)


@dataclass(kw_only=True)
class SpeculatorProcess:
    """One child process at a time that runs `entry`, and the channel to it.

    `entry` and `payload` are described at `executor.child.Assignment`; the payload must be picklable.
    Construction starts the first process and returns at once.
    """

    entry: str
    payload: Any
    layout: Layout
    transport: Transport = field(default_factory=best_transport)
    placement: Placement = field(default_factory=Placement)
    spin_s: float = 0.0
    patience_s: float | None = PATIENCE_S
    num_started: int = field(default=0, init=False)
    """Processes started so far: 1 plus the number of restarts."""

    def __post_init__(self) -> None:
        self._start()

    @property
    def channel(self) -> Channel:
        """The channel to the current process; its methods raise PeerLost when that is gone."""
        return self._channel

    @property
    def pid(self) -> int:
        """Of the current process."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether the process has prepared itself and serves; does not wait.

        Raises InputError with the child's own message if it was given something it cannot use, RunError if
        it failed otherwise, PeerLost if it is gone without a word.
        """
        if not self._ready and self._reports.poll(0):
            self._hear_ready()
        return self._ready

    def wait_until_ready(self, timeout_s: float = 600.0) -> None:
        """Wait for `is_ready`; raises as it does, and RunError when `timeout_s` have passed."""
        if not self._ready and not self._reports.poll(timeout_s * 1000):
            self.close()
            raise RunError(f"speculator: not ready after {timeout_s:g} s; its model may be too slow to load")
        self.is_ready()

    def restart(self) -> None:
        """Put a new process in place of the current one, which is killed if it still lives."""
        self._discard(grace_s=0.0)
        self._start()

    def close(self) -> None:
        """End the process: orderly if it serves and takes the hint, by force if not. May be called twice."""
        self._discard(grace_s=END_GRACE_S if self._ready else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lost(self) -> PeerLost:
        """The current process's end as an error; waits a moment for its exit code."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = None
        return PeerLost(f"speculator: its process {self.pid} {_how(code, self._last_words())}", code)

    def _start(self) -> None:
        near, far = link(self.transport, self.layout, self.spin_s, self.patience_s)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "executor.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=far.fds,
                env=_environment(self.placement.num_threads),
                # Ctrl-C is for the parent alone, which then ends the child in an orderly way.
                process_group=0,
            )
        finally:
            for fd in far.fds:
                os.close(fd)
        self._channel: Channel = _WatchedChannel(near, self)
        self._lifeline, self._report = _pipe(self._process.stdin), _pipe(self._process.stdout)
        self._reports = select.poll()
        self._reports.register(self._report, select.POLLIN)
        self._ready = False
        self.num_started += 1
        self._assign(far)

    def _assign(self, far: FarEnd) -> None:
        """Tell the new process what it is."""
        assignment = Assignment(
            entry=self.entry,
            payload=self.payload,
            layout=self.layout,
            far_end=far,
            placement=self.placement,
            parent_pid=os.getpid(),
            # The kernel means the thread, not the process: a helper thread may end before the run does.
            die_with_parent=threading.current_thread() is threading.main_thread(),
        )
        try:
            pickle.dump(assignment, self._lifeline)
            self._lifeline.flush()
        except BrokenPipeError:
            return  # It has died already; whoever waits for it learns how.
        except BaseException:
            self.close()
            raise

    def _hear_ready(self) -> None:
        line = self._report.readline()
        report = json.loads(line) if line.endswith(b"\n") else None
        if report is None:
            error: Exception = self.lost()
        elif report["ready"]:
            self._ready = True
            return
        else:
            error = (InputError if report["bad_input"] else RunError)(f"speculator: {report['why']}")
        self.close()
        raise error

    def _last_words(self) -> str | None:
        """Why the child says that it failed; None if it did not get to say it."""
        if self._report.closed or not self._reports.poll(0):
            return None
        line = self._report.readline()
        return str(json.loads(line)["why"]) if line.endswith(b"\n") else None

    def _discard(self, grace_s: float) -> None:
        self._channel.close()
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._report.close()
            # A pickle that the dead child never read may still be in the buffer.
            with contextlib.suppress(BrokenPipeError):
                self._lifeline.close()


class _WatchedChannel:
    """A channel whose end is explained: `ChannelClosed` becomes `PeerLost`, which says what happened."""

    def __init__(self, inner: Channel, process: SpeculatorProcess) -> None:
        self._inner, self._process, self._closed = inner, process, False
        self.poll = inner.poll

    def send(self, message: Bytes) -> None:
        try:
            self._inner.send(message)
        except ChannelClosed as error:
            raise self._explained(error) from error

    def recv(self) -> Bytes:
        try:
            return self._inner.recv()
        except ChannelClosed as error:
            raise self._explained(error) from error

    def close(self) -> None:
        self._closed = True
        self._inner.close()

    def _explained(self, error: ChannelClosed) -> ChannelClosed:
        if self._closed:
            return error
        if isinstance(error, NoAnswer):
            pid, patience = self._process.pid, self._process.patience_s
            return PeerLost(f"speculator: its process {pid} has not answered for {patience:g} s", None)
        return self._process.lost()


def _environment(num_threads: int) -> dict[str, str]:
    """This process's environment with its module search path and the child's number of threads."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    threads = dict.fromkeys(_THREAD_VARIABLES, str(num_threads))
    return {**os.environ, "PYTHONPATH": path, **threads}


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # Popen was asked for it.
    return stream


def _how(code: int | None, last_words: str | None) -> str:
    """How a process ended, as the end of a sentence."""
    if last_words is not None:
        return f"failed: {last_words}"
    if code is None:
        return "has closed its channel but has not ended"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
