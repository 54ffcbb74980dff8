"""What verifier and speculator say to each other: one message each way per round, of one fixed layout.

The verifier sends an *outcome message* (per slot: what was accepted, what happens to the slot next); the
speculator answers with a *speculation message* (per slot: the proposed tokens and how they were found; at
temperature above 0 also the draft's probabilities). Both are flat byte buffers whose size depends only on the
`Layout`, so that a pipe, a shared memory segment or a collective can carry them without knowing what they
mean. The KV cache never travels.

Timings ride along: the reply to round t carries the speculator's share of round t (look-up, fallback) and
of the build that ended since its previous reply, so that one side, the verifier's, owns every record even
if the other is killed.

Used by `executor.engine` and `executor.speculator`; carried by whatever implements `Channel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import DomainError, RunError

Bytes = NDArray[np.uint8]
"""One message on the wire: a contiguous one-dimensional uint8 array."""


_LARGEST_MESSAGE = (1 << 31) - (1 << 20)
"""Bytes: numpy's limit for one structure, less what surrounds the probabilities."""


class ChannelClosed(RunError):
    """The other side is gone: it ended, was killed, or closed the channel."""


class NoAnswer(ChannelClosed):
    """The other side has not done its part for as long as this end is patient; it may still be alive."""


class Channel(Protocol):
    """One end of the connection between the two roles; both ends know the sizes from the `Layout`."""

    def send(self, message: Bytes) -> None:
        """Hand over one message (copied or written out before this returns). Raises ChannelClosed, and NoAnswer
        where the other side has not made room for it in time."""

    def recv(self) -> Bytes:
        """Wait for the next message; the array is valid until the next `recv`. Raises ChannelClosed, and NoAnswer
        where this end is patient for a limited time only and that is over."""

    def poll(self) -> bool:
        """Whether `recv` would return at once (also True when it would raise at once)."""

    def close(self) -> None:
        """Release this end; may be called twice. The other end's next `recv` raises ChannelClosed."""


class SlotState(IntEnum):
    """What a slot does in the coming round."""

    IDLE = 0
    CONTINUE = 1
    ADMIT = 2
    """A new request (or, for a new speculator, a running one with its output so far) takes the slot."""


class MessageKind(IntEnum):
    """What an outcome message is for."""

    ROUND = 0
    """The outcome of a round: the speculator answers it."""
    PROMPT = 1
    """More prompt tokens than fit into one message: keep them, the ROUND message follows."""
    STOP = 2
    """The speculator is no longer needed: it ends without an answer."""


OUTCOME_SLOT = np.dtype(
    [
        ("state", "<i4"),
        ("request_id", "<i4"),
        ("num_accepted", "<i4"),  # -1: this slot had nothing to verify in the round just ended
        ("bonus_token", "<i4"),
        ("num_prompt_tokens", "<i4"),  # of an admission; its tokens lie in the prompt stream, in slot order
        ("seed", "<u8"),
        ("temperature", "<f8"),
    ],
    align=True,
)

TIMINGS = (
    "received_s",  # when the speculator took the outcome answered here, on the machine's one clock
    "sent_s",  # when this message left
    "lookup_s",
    "fallback_s",
    "glue_s",  # this and the following: the build between the previous message and this one
    "tree_s",
    "store_s",
    "wait_s",  # idle between the end of that build and `received_s`
)
"""Times in a speculation message's header; `*_s` of a stage are durations, the first two are instants."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The sizes both sides agree on before the first message; everything else follows from them."""

    num_slots: int
    num_speculative_tokens: int
    vocab_size: int
    sampled: bool
    """Whether draft probabilities travel, float32 [num_slots, num_speculative_tokens, vocab_size]."""
    prompt_chunk: int = 2048
    """Prompt tokens that one outcome message can carry; longer admissions take several messages."""
    outcome_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    speculation_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("num_slots", "num_speculative_tokens", "vocab_size", "prompt_chunk"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DomainError(name, "an integer of at least 1", value)
        if self.sampled and 4 * self.num_slots * self.num_speculative_tokens * self.vocab_size > _LARGEST_MESSAGE:
            most = _LARGEST_MESSAGE // (4 * self.num_speculative_tokens * self.vocab_size)
            raise DomainError(
                "batch_size",
                f"at most {most}: above temperature 0 the draft's probabilities travel, 2 GB at most in one message",
                self.num_slots,
            )
        object.__setattr__(self, "outcome_dtype", self._outcome_dtype())
        object.__setattr__(self, "speculation_dtype", self._speculation_dtype())

    @property
    def outcome_bytes(self) -> int:
        """Size of every message from verifier to speculator."""
        return int(self.outcome_dtype.itemsize)

    @property
    def speculation_bytes(self) -> int:
        """Size of every message from speculator to verifier."""
        return int(self.speculation_dtype.itemsize)

    def _outcome_dtype(self) -> np.dtype[Any]:
        return np.dtype(
            [
                ("kind", "<i4"),
                ("round", "<i4"),
                ("num_prompt_tokens", "<i4"),  # filled entries of `prompt` in this message
                ("sent_s", "<f8"),
                ("slots", OUTCOME_SLOT, (self.num_slots,)),
                ("prompt", "<i4", (self.prompt_chunk,)),
            ],
            align=True,
        )

    def _speculation_dtype(self) -> np.dtype[Any]:
        slot = np.dtype(
            [
                ("num_proposed", "<i4"),
                ("source", "<i4"),  # records.Source
                ("lookup", "<i4"),  # records.Lookup of the outcome being answered
                ("fan_out_here", "<i4"),  # candidates prepared at the position of the outcome being answered
                ("bonus_rank", "<i4"),  # of the outcome before that one; see records.OUTCOME_COLUMNS
                ("tokens", "<i4", (self.num_speculative_tokens,)),
            ],
            align=True,
        )
        fields: list[tuple[Any, ...]] = [
            ("round", "<i4"),
            ("num_branches", "<i4"),  # of the build reported here
            ("fallback", "<i4"),  # records.Fallback: what the misses were answered with
            *[(name, "<f8") for name in TIMINGS],
            ("slots", slot, (self.num_slots,)),
        ]
        if self.sampled:
            shape = (self.num_slots, self.num_speculative_tokens, self.vocab_size)
            fields.append(("draft_probs", "<f4", shape))
        return np.dtype(fields, align=True)


class _Message:
    """A byte buffer and its structured view; fields are read and written in place."""

    def __init__(self, dtype: np.dtype[Any], buffer: Bytes | None = None) -> None:
        self.buffer: Bytes = np.zeros(dtype.itemsize, np.uint8) if buffer is None else buffer
        if self.buffer.nbytes != dtype.itemsize:
            raise RunError(f"message: {self.buffer.nbytes} bytes arrived, the layout has {dtype.itemsize}")
        self.view: NDArray[Any] = self.buffer.view(dtype).reshape(())
        self.slots: NDArray[Any] = self.view["slots"]


class OutcomeMessage(_Message):
    """Verifier -> speculator; without `buffer` an empty message to fill."""

    def __init__(self, layout: Layout, buffer: Bytes | None = None) -> None:
        super().__init__(layout.outcome_dtype, buffer)


class SpeculationMessage(_Message):
    """Speculator -> verifier; without `buffer` an empty message to fill."""

    def __init__(self, layout: Layout, buffer: Bytes | None = None) -> None:
        super().__init__(layout.speculation_dtype, buffer)
        self.draft_probs: NDArray[np.float32] | None = self.view["draft_probs"] if layout.sampled else None


def send_outcome(channel: Channel, message: OutcomeMessage, prompt: Sequence[int] | NDArray[Any]) -> None:
    """Send `message` and the stream of admitted prompts; what does not fit goes ahead in PROMPT messages."""
    view = message.view
    kind, chunk = int(view["kind"]), view["prompt"]
    stream = np.asarray(prompt, np.int32)
    while len(stream) > len(chunk):
        view["kind"], view["num_prompt_tokens"] = MessageKind.PROMPT, len(chunk)
        chunk[:], stream = stream[: len(chunk)], stream[len(chunk) :]
        channel.send(message.buffer)
    view["kind"], view["num_prompt_tokens"] = kind, len(stream)
    chunk[: len(stream)] = stream
    channel.send(message.buffer)


def recv_outcome(channel: Channel, layout: Layout) -> tuple[OutcomeMessage, NDArray[np.int32]]:
    """The next ROUND or STOP message and the stream of admitted prompts, in however many messages it came."""
    pieces: list[NDArray[np.int32]] = []
    while True:
        message = OutcomeMessage(layout, channel.recv())
        count = int(message.view["num_prompt_tokens"])
        if count:
            pieces.append(message.view["prompt"][:count].copy())
        if message.view["kind"] != MessageKind.PROMPT:
            return message, np.concatenate(pieces) if pieces else np.empty(0, np.int32)


def admissions(message: OutcomeMessage, prompt: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """(slot, prompt tokens) of every slot that takes a new request in this message, in slot order."""
    start = 0
    for slot in np.flatnonzero(message.slots["state"] == SlotState.ADMIT):
        end = start + int(message.slots["num_prompt_tokens"][slot])
        yield int(slot), prompt[start:end]
        start = end
