"""The engine: requests in, tokens and records out. The whole algorithm is `Engine.step`.

    engine = Engine(config, target, LocalSpeculator(config, draft))
    generation = engine.generate(requests)

Modes differ in where speculations come from: `ar` has no speculator, `sd` one that drafts when asked, `ssd`
one that has prepared. Slots are refilled as requests finish (continuous batching). If the speculator is
lost, the engine goes on alone, one token per round, and takes a successor in when there is one: a request's
tokens do not depend on who proposed them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from executor.config import EngineConfig, Output, Request
from executor.contexts import Ints
from executor.decoder import Decoder
from executor.messages import (
    Channel,
    ChannelClosed,
    MessageKind,
    OutcomeMessage,
    SlotState,
    SpeculationMessage,
    send_outcome,
)
from executor.models import LoadedModel
from executor.recording import RecordKeeper, RoundInProgress, delay_s
from executor.verifier import Outcome, Verifier
from ssdsim.errors import DomainError, InputError, RunError
from ssdsim.records import Fallback, FinishReason, Lookup, Records, Source
from ssdsim.scenario import Mode

_log = logging.getLogger(__name__)


class SpeculatorLink(Protocol):
    """A speculator as the engine sees it: `executor.launch.SpeculatorProcess`, or `executor.local`."""

    @property
    def channel(self) -> Channel:
        """The channel to the current speculator."""

    def is_ready(self) -> bool:
        """Whether it can be spoken to."""

    def restart(self) -> None:
        """Put a new one in place of one that was lost."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What `generate` returns: outputs in the order of the requests, and the run's records."""

    outputs: tuple[Output, ...]
    records: Records


@dataclass(kw_only=True)
class _Running:
    """A request in a slot."""

    request_id: int
    request: Request
    admitted_s: float
    tokens: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    first_token_s: float = 0.0
    num_hits: int = 0
    num_misses: int = 0
    num_proposed: int = 0

    def emit(self, tokens: list[int]) -> tuple[int, FinishReason | None]:
        """Take up to `max_tokens` of a round's tokens, up to a stop token; how many, and whether that was
        the end."""
        room = self.request.max_tokens - len(self.tokens)
        kept, reason = tokens[:room], FinishReason.LENGTH if len(tokens) >= room else None
        if not self.request.ignore_eos:
            for index, token in enumerate(kept):
                if token in self.request.stop_tokens:
                    kept, reason = kept[: index + 1], FinishReason.STOP
                    break
        self.tokens += kept
        return len(kept), reason


class _Speculation(NamedTuple):
    """What the rows of a round verify, and how the round began."""

    tokens: Ints  # [n, K]
    num_proposed: Ints  # [n]
    sources: Ints  # [n]
    draft_probs: NDArray[np.float32] | None  # [n, K, V]
    start_s: float
    taken_s: float
    terms: dict[str, float]
    num_hits: int
    num_misses: int
    fallback: int


class Engine:
    """One target, its slots, and possibly a speculator beside it."""

    def __init__(
        self,
        config: EngineConfig,
        target: LoadedModel,
        speculator: SpeculatorLink | None = None,
        *,
        decoder: Decoder | None = None,
        replace_lost: bool = False,
    ) -> None:
        """`replace_lost`: start a new speculator for one that was lost. `decoder`: see `Verifier`."""
        if (speculator is None) != (config.mode is Mode.AR):
            raise DomainError("speculator", "needed in modes sd and ssd, and only there", config.mode.value)
        self._config, self._link, self._replace_lost = config, speculator, replace_lost
        self._verifier = Verifier(config, target, decoder)
        self._layout = config.layout
        self._message = OutcomeMessage(self._layout)
        self._slots: list[_Running | None] = [None] * config.batch_size
        self._rows: Ints = np.empty(0, np.int64)
        self._waiting: deque[tuple[int, Request]] = deque()
        self._done: dict[int, Output] = {}
        self._connected = speculator is not None
        self._num_rounds = self._num_requests = 0
        self._sent_s = self._prefill_s = 0.0
        self._keeper = RecordKeeper(Records(), 0.0)

    def generate(self, requests: Sequence[Request], about: Mapping[str, Any] | None = None) -> Generation:
        """Run all `requests`; `about` is kept with the records. Raises DomainError for a request that
        cannot fit."""
        for index, request in enumerate(requests):
            self._check(index, request)
        self._keeper = RecordKeeper(Records(about), perf_counter())
        ids = range(self._num_requests, self._num_requests + len(requests))
        self._num_requests += len(requests)
        self._waiting.extend(zip(ids, requests, strict=True))
        with torch.inference_mode():
            self._announce(None, self._refill())
            while len(self._rows):
                self.step()
            self._drain()
        return Generation(outputs=tuple(self._done.pop(i) for i in ids), records=self._keeper.records)

    def step(self) -> None:
        """One round of the batch."""
        speculation = self._speculation()
        outcome = self._verifier.verify(self._rows, *speculation[:2], speculation.draft_probs)
        accepted_s = perf_counter()
        round_ = self._emit(speculation, outcome)
        admitted = self._refill()
        self._announce((round_.rows, outcome), admitted)
        self._record(round_, speculation, outcome.verified_s, accepted_s)

    def close(self) -> None:
        """End the speculator. May be called twice."""
        if self._link is not None:
            if self._connected:
                self._connected = False
                self._message.view["kind"] = MessageKind.STOP
                with contextlib.suppress(ChannelClosed):
                    send_outcome(self._link.channel, self._message, ())
            self._link.close()

    def _check(self, index: int, request: Request) -> None:
        needed, limit = len(request.prompt) + request.max_tokens, self._config.max_context_tokens
        if needed > limit:
            raise DomainError("max_context_tokens", f"request {index} needs {needed} tokens of context", limit)
        if request.temperature > 0 and not self._config.sampled:
            raise DomainError("sampled", f"must be set, request {index} has a temperature", False)
        if not 0 <= min(request.prompt) <= max(request.prompt) < self._config.vocab_size:
            raise DomainError(
                "prompt", f"request {index}: token ids below {self._config.vocab_size}", max(request.prompt)
            )

    def _speculation(self) -> _Speculation:
        """The speculator's answer to the last outcome; nothing proposed where there is no speculator."""
        asked_s = perf_counter()
        if self._link is not None and self._connected:
            try:
                reply = SpeculationMessage(self._layout, self._link.channel.recv())
            except ChannelClosed as error:
                self._lose(error)
            else:
                return self._read(reply, asked_s, perf_counter())
        count = len(self._rows)
        return _Speculation(
            tokens=np.zeros((count, self._layout.num_speculative_tokens), np.int64),
            num_proposed=np.zeros(count, np.int64),
            sources=np.full(count, Source.AR),
            draft_probs=None,
            start_s=self._sent_s,
            taken_s=asked_s,
            terms={
                "prefill_s": self._prefill_s,
                "host_s": asked_s - self._sent_s - self._prefill_s,
                "verifier_wait_s": asked_s - self._sent_s,
            },
            num_hits=0,
            num_misses=0,
            fallback=Fallback.NOT_NEEDED,
        )

    def _read(self, reply: SpeculationMessage, asked_s: float, taken_s: float) -> _Speculation:
        self._keeper.reply(reply)
        rows, header = self._rows, reply.view
        lookup = reply.slots["lookup"][rows]
        probs = reply.draft_probs
        if probs is not None and len(rows) < len(probs):
            probs = probs[rows]
        start_s = float(header["received_s"])
        left_s = max(asked_s, float(header["sent_s"]))
        return _Speculation(
            tokens=reply.slots["tokens"][rows].astype(np.int64),
            num_proposed=reply.slots["num_proposed"][rows].astype(np.int64),
            sources=reply.slots["source"][rows].astype(np.int64),
            draft_probs=probs,
            start_s=start_s,
            taken_s=taken_s,
            terms={
                "lookup_s": float(header["lookup_s"]),
                "fallback_s": float(header["fallback_s"]),
                "reply_s": taken_s - left_s,
                "verifier_wait_s": left_s - start_s,
                "prefill_s": delay_s(header, self._sent_s, self._sent_s + self._prefill_s),
                "host_s": delay_s(header, self._sent_s + self._prefill_s, asked_s),
            },
            num_hits=int((lookup == Lookup.HIT).sum()),
            num_misses=int((lookup == Lookup.MISS).sum()),
            fallback=int(header["fallback"]),
        )

    def _emit(self, speculation: _Speculation, outcome: Outcome) -> RoundInProgress:
        """Hand the accepted tokens to their requests; finished requests leave their slots."""
        contexts, rows = self._verifier.contexts, self._rows
        now_s = perf_counter()
        num_emitted = np.zeros(len(rows), np.int64)
        request_ids = np.zeros(len(rows), np.int64)
        ends = contexts.num_tokens[rows]
        for index, (slot, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            running = self._slots[slot]
            assert running is not None
            num_accepted = int(outcome.num_accepted[index])
            request_ids[index] = running.request_id
            running.accepted_lengths.append(num_accepted)
            running.num_proposed += int(speculation.num_proposed[index])
            running.num_hits += speculation.sources[index] == Source.HIT
            running.num_misses += speculation.sources[index] in _ON_MISS
            if not running.tokens:
                running.first_token_s = now_s
            tokens = contexts.tokens[slot, end - num_accepted - 1 : end].tolist()
            num_emitted[index], reason = running.emit(tokens)
            if reason is not None:
                self._finish(slot, running, reason, now_s)
        self._num_rounds += 1
        return RoundInProgress(
            index=self._num_rounds - 1,
            rows=rows,
            request_ids=request_ids,
            sources=speculation.sources,
            num_proposed=speculation.num_proposed,
            num_accepted=outcome.num_accepted,
            num_emitted=num_emitted,
            context_tokens=float((ends - outcome.num_accepted - 1).mean()),
            start_s=speculation.start_s,
            num_hits=speculation.num_hits,
            num_misses=speculation.num_misses,
            fallback=speculation.fallback,
            terms=speculation.terms,
        )

    def _finish(self, slot: int, running: _Running, reason: FinishReason, now_s: float) -> None:
        self._slots[slot] = None
        accepted = tuple(running.accepted_lengths)
        self._done[running.request_id] = Output(
            tokens=tuple(running.tokens), finish_reason=reason, accepted_lengths=accepted
        )
        self._keeper.finish(
            request_id=running.request_id,
            prompt_kind=running.request.prompt_kind,
            arrival_s=running.admitted_s,
            admitted_s=running.admitted_s,
            first_token_s=running.first_token_s,
            finish_s=now_s,
            prompt_tokens=len(running.request.prompt),
            output_tokens=len(running.tokens),
            num_rounds=len(accepted),
            num_hits=running.num_hits,
            num_misses=running.num_misses,
            num_proposed=running.num_proposed,
            num_accepted=sum(accepted),
            finish_reason=reason,
        )

    def _refill(self) -> Ints:
        """Give free slots to waiting requests; which slots."""
        admitted = []
        for slot, running in enumerate(self._slots):
            if running is None and self._waiting:
                request_id, request = self._waiting.popleft()
                self._slots[slot] = _Running(request_id=request_id, request=request, admitted_s=perf_counter())
                prompt = np.asarray(request.prompt, np.int64)
                self._verifier.admit(slot, prompt, request.seed, request.temperature)
                admitted.append(slot)
        self._rows = np.array([s for s, running in enumerate(self._slots) if running is not None], np.int64)
        return np.array(admitted, np.int64)

    def _announce(self, ended: tuple[Ints, Outcome] | None, admitted: Ints) -> None:
        """Tell the speculator what became of its proposals and who comes next; then feed who comes next."""
        if self._link is not None:
            if self._connected:
                self._send(ended, admitted)
            elif self._successor_ready():
                self._connected = True
                self._send(None, self._rows)
        self._sent_s = perf_counter()
        self._prefill_s = 0.0
        if len(admitted):
            self._verifier.prefill(admitted)
            self._prefill_s = perf_counter() - self._sent_s

    def _send(self, ended: tuple[Ints, Outcome] | None, admitted: Ints) -> None:
        """One outcome message; an admitted slot's whole context goes with it."""
        assert self._link is not None
        slots, contexts = self._message.slots, self._verifier.contexts
        slots["num_accepted"] = -1
        if ended is not None:
            rows, outcome = ended
            slots["num_accepted"][rows] = outcome.num_accepted
            slots["bonus_token"][rows] = outcome.bonus_tokens
        slots["state"] = SlotState.IDLE
        slots["state"][self._rows] = SlotState.CONTINUE
        slots["state"][admitted] = SlotState.ADMIT
        slots["num_prompt_tokens"][admitted] = contexts.num_tokens[admitted]
        slots["seed"][admitted] = contexts.seeds[admitted]
        slots["temperature"][admitted] = contexts.temperatures[admitted]
        prompts = [contexts.tokens[slot, : contexts.num_tokens[slot]] for slot in admitted]
        header = self._message.view
        header["kind"], header["round"], header["sent_s"] = MessageKind.ROUND, self._num_rounds, perf_counter()
        try:
            send_outcome(self._link.channel, self._message, np.concatenate(prompts) if prompts else ())
        except ChannelClosed as error:
            self._lose(error)

    def _record(
        self, round_: RoundInProgress, speculation: _Speculation, verified_s: float, accepted_s: float
    ) -> None:
        round_.outcome_sent_s = self._sent_s
        round_.terms |= {
            "verify_s": verified_s - speculation.taken_s,
            "accept_s": accepted_s - verified_s,
            "host_s": speculation.terms["host_s"] + self._sent_s - accepted_s,
        }
        self._keeper.end(round_)
        if not self._connected:
            self._keeper.flush(self._sent_s)

    def _lose(self, error: ChannelClosed) -> None:
        """Go on without the speculator."""
        _log.warning("%s; going on without it%s", error, ", a new one is starting" * self._replace_lost)
        self._connected = False
        self._keeper.flush(perf_counter())
        if self._replace_lost and self._link is not None:
            self._link.restart()

    def _successor_ready(self) -> bool:
        """Whether a new speculator can take over; one that fails to start is not tried again."""
        if not self._replace_lost or self._link is None or not len(self._rows):
            return False
        try:
            return self._link.is_ready()
        except (RunError, InputError) as error:
            _log.warning("%s; going on without a speculator", error)
            self._replace_lost = False
            return False

    def _drain(self) -> None:
        """The answer to the last outcome completes the records."""
        if self._link is not None and self._connected:
            try:
                self._keeper.reply(SpeculationMessage(self._layout, self._link.channel.recv()))
            except ChannelClosed as error:
                self._lose(error)
        self._keeper.flush(perf_counter())


_ON_MISS = frozenset({Source.JIT, Source.NGRAM, Source.NONE, Source.RANDOM})
