"""Channels carry messages whole, in order, until the other side is gone; and leave nothing behind."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from executor.messages import (
    Channel,
    ChannelClosed,
    Layout,
    MessageKind,
    OutcomeMessage,
    SpeculationMessage,
    recv_outcome,
    send_outcome,
)
from executor.transport import Transport, attach, best_transport, link
from ssdsim.errors import DomainError, RunError

LAYOUT = Layout(num_slots=3, num_speculative_tokens=4, vocab_size=100, sampled=True, prompt_chunk=8)
LOCAL = [
    pytest.param(Transport.PIPE),
    pytest.param(
        Transport.SHM,
        marks=pytest.mark.skipif(best_transport() is not Transport.SHM, reason="this processor may reorder stores"),
    ),
]
Ends = tuple[Channel, Channel]


@pytest.fixture(params=LOCAL)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """The verifier's and the speculator's end, here in one process."""
    verifier, speculator = both_ends(request.param)
    yield verifier, speculator
    verifier.close()
    speculator.close()


def both_ends(transport: Transport, spin_s: float = 1e-4) -> Ends:
    near, far = link(transport, LAYOUT, spin_s)
    speculator = attach(far, LAYOUT)
    for fd in far.fds[1:]:  # The first became the socket of the speculator's end.
        os.close(fd)
    return near, speculator


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def outcome(round_: int) -> OutcomeMessage:
    message = OutcomeMessage(LAYOUT)
    message.view["round"] = round_
    return message


def test_a_thousand_rounds_arrive_whole_and_in_order(ends: Ends) -> None:
    verifier, speculator = ends
    rng = np.random.default_rng(0)
    replies = [rng.integers(0, 256, LAYOUT.speculation_bytes, np.uint8) for _ in range(10)]
    for round_ in range(1000):
        verifier.send(outcome(round_).buffer)
        assert OutcomeMessage(LAYOUT, speculator.recv()).view["round"] == round_
        speculator.send(replies[round_ % 10])
        assert np.array_equal(verifier.recv(), replies[round_ % 10])


def test_messages_larger_than_any_kernel_buffer_pass_in_both_directions() -> None:
    big = Layout(num_slots=2, num_speculative_tokens=8, vocab_size=100_000, sampled=True)
    for transport in (p.values[0] for p in LOCAL if not p.marks or not p.marks[0].args[0]):
        near, far = link(transport, big, 1e-4)
        speculator = attach(far, big)
        reply = SpeculationMessage(big)
        assert reply.draft_probs is not None
        reply.draft_probs[:] = np.arange(big.vocab_size, dtype=np.float32)
        sender = in_thread(lambda end=speculator, r=reply: end.send(r.buffer))
        assert np.array_equal(near.recv(), reply.buffer)
        sender.join()
        near.close()
        speculator.close()
        for fd in far.fds[1:]:
            os.close(fd)


def test_a_prompt_longer_than_a_message_arrives_as_one_stream(ends: Ends) -> None:
    verifier, speculator = ends
    prompt = np.arange(5 * LAYOUT.prompt_chunk + 3, dtype=np.int32)
    message = outcome(7)
    message.view["kind"] = MessageKind.ROUND
    sender = in_thread(lambda: send_outcome(verifier, message, prompt))
    received, stream = recv_outcome(speculator, LAYOUT)
    sender.join()
    assert received.view["round"] == 7
    assert np.array_equal(stream, prompt)


def test_a_received_message_stays_as_it_is_until_the_next_recv(ends: Ends) -> None:
    verifier, speculator = ends
    verifier.send(outcome(1).buffer)
    first = OutcomeMessage(LAYOUT, speculator.recv())
    sender = in_thread(lambda: [verifier.send(outcome(n).buffer) for n in (2, 3, 4)])
    time.sleep(0.05)
    assert first.view["round"] == 1
    assert [int(OutcomeMessage(LAYOUT, speculator.recv()).view["round"]) for _ in range(3)] == [2, 3, 4]
    sender.join()


def test_poll_tells_whether_recv_would_wait(ends: Ends) -> None:
    verifier, speculator = ends
    assert not speculator.poll()
    verifier.send(outcome(1).buffer)
    assert speculator.poll()
    speculator.recv()
    assert not speculator.poll()
    verifier.close()
    assert speculator.poll()


def test_what_was_sent_before_the_close_still_arrives(ends: Ends) -> None:
    verifier, speculator = ends
    verifier.send(outcome(1).buffer)
    verifier.close()
    assert OutcomeMessage(LAYOUT, speculator.recv()).view["round"] == 1
    with pytest.raises(ChannelClosed, match="other side"):
        speculator.recv()


def test_a_waiting_side_learns_at_once_that_the_other_has_gone(ends: Ends) -> None:
    verifier, speculator = ends
    closer = in_thread(lambda: (time.sleep(0.2), speculator.close()))
    began = time.perf_counter()
    with pytest.raises(ChannelClosed):
        verifier.recv()
    # 0.1 s is promised; the rest is for a machine that is busy with other tests.
    assert time.perf_counter() - began < 0.2 + 1.0
    closer.join()


def test_sending_to_nobody_ends_in_an_error_and_not_in_a_wait(ends: Ends) -> None:
    verifier, speculator = ends
    speculator.close()
    with pytest.raises(ChannelClosed):
        _send_more_than_is_buffered(verifier)


def _send_more_than_is_buffered(channel: Channel) -> None:
    for round_ in range(10):
        channel.send(outcome(round_).buffer)


def test_an_end_may_be_closed_twice(ends: Ends) -> None:
    for end in (*ends, *ends):
        end.close()


def test_an_idle_side_sleeps_instead_of_burning_its_core(ends: Ends) -> None:
    verifier, speculator = ends
    in_thread(lambda: (time.sleep(0.5), speculator.send(SpeculationMessage(LAYOUT).buffer)))
    began, burnt = time.perf_counter(), time.thread_time()
    verifier.recv()
    waited, burnt = time.perf_counter() - began, time.thread_time() - burnt
    assert waited > 0.4
    assert burnt < 0.2 * waited


@pytest.mark.skipif(best_transport() is not Transport.SHM, reason="this processor may reorder stores")
def test_shared_memory_refuses_a_message_of_another_layout() -> None:
    verifier, speculator = both_ends(Transport.SHM)
    with pytest.raises(RunError, match="the layout has"):
        verifier.send(np.zeros(3, np.uint8))
    verifier.close()
    speculator.close()


def test_a_processor_that_reorders_stores_gets_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert best_transport() is Transport.PIPE
    with pytest.raises(DomainError, match="transport: pipe"):
        link(Transport.SHM, LAYOUT, 1e-4)


def test_the_distributed_transport_is_not_for_one_process() -> None:
    with pytest.raises(DomainError, match="torchrun"):
        link(Transport.DISTRIBUTED, LAYOUT, 1e-4)


def test_a_message_beyond_what_one_structure_holds_is_refused_and_the_largest_batch_named() -> None:
    Layout(num_slots=4096, num_speculative_tokens=8, vocab_size=150_000, sampled=False)
    Layout(num_slots=447, num_speculative_tokens=8, vocab_size=150_000, sampled=True)
    with pytest.raises(DomainError, match=r"batch_size: .*at most 447"):
        Layout(num_slots=448, num_speculative_tokens=8, vocab_size=150_000, sampled=True)
