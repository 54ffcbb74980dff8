"""The speculator's process: it starts, it answers, its end is noticed and explained, nothing outlives it."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_speculator import LAYOUT, ask, tell_stop
from processes import becomes_true, is_alive, start_python
from test_transport import LOCAL

from executor import placement
from executor.launch import PeerLost, SpeculatorProcess
from executor.messages import ChannelClosed
from executor.placement import CoreReservation, Placement, allowed_cores
from executor.transport import Transport, best_transport
from ssdsim.errors import DomainError, InputError, RunError

pytestmark = pytest.mark.serial

Launch = Callable[..., SpeculatorProcess]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a fake speculator; whatever the test leaves is ended."""
    started: list[SpeculatorProcess] = []

    def start(
        transport: Transport | None = None, placement: Placement | None = None, **payload: Any
    ) -> SpeculatorProcess:
        process = SpeculatorProcess(
            entry="fake_speculator:prepare",
            payload={"layout": LAYOUT, **payload},
            layout=LAYOUT,
            transport=transport or best_transport(),
            placement=placement or Placement(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()


@pytest.mark.parametrize("transport", LOCAL)
def test_rounds_are_answered_and_the_end_is_orderly(launch: Launch, transport: Transport) -> None:
    speculator = launch(transport)
    speculator.wait_until_ready()
    for round_ in range(5):
        reply = ask(speculator.channel, LAYOUT, round_, tuple(range(40)))
        assert reply.view["round"] == round_
        assert reply.slots["num_proposed"].tolist() == [40, 40]
        assert (reply.slots["tokens"] == 7 * round_ + 1).all()
    tell_stop(speculator.channel, LAYOUT)
    assert becomes_true(lambda: not is_alive(speculator.pid))
    assert speculator.lost().exit_code == 0


@pytest.mark.parametrize("transport", LOCAL)
def test_a_killed_process_is_noticed_in_the_middle_of_a_wait(launch: Launch, transport: Transport) -> None:
    speculator = launch(transport, at_round=1, do="hang")
    speculator.wait_until_ready()
    ask(speculator.channel, LAYOUT, 0)
    killed = []

    def kill() -> None:
        time.sleep(0.3)
        killed.append(time.perf_counter())
        os.kill(speculator.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(PeerLost, match=rf"process {speculator.pid} was killed by SIGKILL") as caught:
        ask(speculator.channel, LAYOUT, 1)
    # 0.1 s is promised; the rest is for a machine that is busy with other tests.
    assert time.perf_counter() - killed[0] < 1.0
    assert caught.value.exit_code == -signal.SIGKILL
    killer.join()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("die", "was killed by SIGKILL"),
        ("exit", "ended with exit code 3"),
        ("break", r"failed: ZeroDivisionError at fake_speculator:\d+: a bug"),
        ("refuse", "failed: draft: /no/such/model"),
    ],
)
def test_however_a_run_is_lost_the_error_says_how(launch: Launch, action: str, words: str) -> None:
    speculator = launch(at_round=2, do=action)
    speculator.wait_until_ready()
    ask(speculator.channel, LAYOUT, 1)
    with pytest.raises(PeerLost, match=words):
        ask(speculator.channel, LAYOUT, 2)


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        ("refuse", InputError, "speculator: draft: /no/such/model"),
        ("break", RunError, "speculator: ZeroDivisionError at fake_speculator"),
        ("die", PeerLost, "was killed by SIGKILL"),
    ],
)
def test_a_process_that_cannot_prepare_itself_says_why(
    launch: Launch, action: str, error: type[Exception], words: str
) -> None:
    speculator = launch(before=action)
    with pytest.raises(error, match=words):
        speculator.wait_until_ready()
    assert not is_alive(speculator.pid)


def test_a_process_that_takes_too_long_to_prepare_is_given_up(launch: Launch) -> None:
    speculator = launch(before="hang")
    assert not speculator.is_ready()
    with pytest.raises(RunError, match=r"not ready after 0\.3 s"):
        speculator.wait_until_ready(timeout_s=0.3)
    assert not is_alive(speculator.pid)


def test_a_successor_takes_over_while_the_verifier_goes_on(launch: Launch) -> None:
    speculator = launch(at_round=1, do="die")
    speculator.wait_until_ready()
    first = speculator.pid
    with pytest.raises(PeerLost):
        ask(speculator.channel, LAYOUT, 1)
    speculator.restart()
    assert becomes_true(speculator.is_ready)
    assert ask(speculator.channel, LAYOUT, 2).view["round"] == 2
    assert speculator.pid != first
    assert speculator.num_started == 2


def test_a_process_that_does_not_end_by_itself_is_killed(launch: Launch) -> None:
    speculator = launch(at_round=0, do="hang")
    speculator.wait_until_ready()
    threading.Thread(target=_ask_and_be_cut_off, args=(speculator,), daemon=True).start()
    time.sleep(0.1)
    speculator.close()
    assert not is_alive(speculator.pid)


def _ask_and_be_cut_off(speculator: SpeculatorProcess) -> None:
    with pytest.raises(ChannelClosed):
        ask(speculator.channel, LAYOUT, 0)


def test_starting_and_ending_leaves_no_descriptor_open(launch: Launch) -> None:
    def open_descriptors() -> int:
        gc.collect()  # what earlier tests left in circles of references
        return len(os.listdir("/proc/self/fd"))

    launch().close()
    before = open_descriptors()
    for _ in range(3):
        with launch() as speculator:
            speculator.wait_until_ready()
            speculator.restart()
    assert open_descriptors() == before


PARENT = """
import sys, time
from fake_speculator import LAYOUT, ask
from executor.launch import SpeculatorProcess
payload = {{"layout": LAYOUT, {payload}}}
speculator = SpeculatorProcess(entry="fake_speculator:prepare", payload=payload, layout=LAYOUT)
if {serving}:
    speculator.wait_until_ready()
print(speculator.pid, flush=True)
if {serving}:
    ask(speculator.channel, LAYOUT, 0)
time.sleep(3600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("serving", "payload"),
    [(True, "'at_round': -1"), (True, "'at_round': 0, 'do': 'hang'"), (False, "'before': 'hang'")],
    ids=["waiting", "computing", "loading"],
)
def test_the_child_ends_with_its_parent(how: signal.Signals, serving: bool, payload: str) -> None:
    parent = start_python(PARENT.format(serving=serving, payload=payload))
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(how)
    parent.communicate(timeout=20)
    assert becomes_true(lambda: not is_alive(child))


def test_two_engines_at_once_do_not_hear_each_other(launch: Launch) -> None:
    one, other = launch(), launch()
    one.wait_until_ready()
    other.wait_until_ready()
    for round_ in range(50):
        assert ask(one.channel, LAYOUT, round_, (1,)).slots["tokens"].max() == 7 * round_ + 1
        assert ask(other.channel, LAYOUT, 1000 + round_).slots["tokens"].max() == 7 * (1000 + round_) + 1
    os.kill(one.pid, signal.SIGKILL)
    with pytest.raises(PeerLost):
        ask(one.channel, LAYOUT, 99)
    assert ask(other.channel, LAYOUT, 99).view["round"] == 99


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_each_role_has_its_own_cores_and_no_other_engine_gets_them(launch: Launch) -> None:
    allowed = allowed_cores()
    reservations = [CoreReservation([1, 1]) for _ in range(len(allowed))]
    held = [core for r in reservations for p in r.placements for core in p.cores]
    assert len(held) == len(set(held))
    assert all(not p.cores for p in reservations[-1].placements)  # One more than there can be pairs.
    for reservation in reservations:
        reservation.release()


def test_hardware_threads_of_one_core_are_not_given_to_two_roles_while_others_are_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for core, siblings in enumerate(["0-1", "0-1", "2,3", "2,3"]):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(placement, "_TOPOLOGY", tmp_path)
    monkeypatch.setattr(placement, "allowed_cores", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(placement, "_lock", lambda core: socket.socket())
    reservation = CoreReservation([1, 1])
    assert [p.cores for p in reservation.placements] == [(0,), (2,)]
    reservation.release()


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_the_child_runs_where_it_was_placed_and_the_parent_gets_its_cores_back(launch: Launch) -> None:
    before = allowed_cores()
    last = Placement(cores=before[-1:])
    speculator = launch(placement=last)
    speculator.wait_until_ready()
    assert os.sched_getaffinity(speculator.pid) == set(before[-1:])
    assert last.describe() == f"cores {before[-1]}, 1 thread"
    reservation = CoreReservation([1, 1])
    reservation.bind_caller(0)
    reservation.release()
    assert allowed_cores() == before


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_engines_that_take_turns_share_the_cores_they_are_given() -> None:
    first, second, *_ = allowed_cores()
    holder = CoreReservation([1, 1])
    for _ in range(2):
        shared = CoreReservation([1, 1], [second, first])
        assert [p.cores for p in shared.placements] == [(second,), (first,)]
    assert CoreReservation([2], [second, first]).placements[0].cores == (second, first)
    holder.release()


@pytest.mark.parametrize("named", [[0], [0, 0], [0, 10**6], [0, -1]])
def test_cores_that_are_too_few_or_not_there_are_refused(named: list[int]) -> None:
    with pytest.raises(DomainError, match="cores"):
        CoreReservation([1, 1], named)


@pytest.mark.parametrize("threads", [0, True, 1.5])
def test_a_thread_count_that_is_none_is_refused(threads: Any) -> None:
    with pytest.raises(DomainError, match="num_threads"):
        CoreReservation([1, threads])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc on this system")
def test_neither_process_holds_memory_that_has_a_name(launch: Launch) -> None:
    speculator = launch()
    speculator.wait_until_ready()
    ask(speculator.channel, LAYOUT, 0)
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in ("self", speculator.pid)]
    # A lock of some library is there too, of which the name is deleted.
    mapped = [line for held in maps for line in held.splitlines() if "/dev/shm/" in line]
    assert all(line.endswith(" (deleted)") for line in mapped)
    if best_transport() is Transport.SHM:
        assert all("memfd:ssdsim (deleted)" in held for held in maps)
