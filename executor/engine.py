"""The engine: requests in, tokens and records out. The whole algorithm is `Engine.step`.

    engine = Engine(config, target, LocalSpeculator(config, draft))
    generation = engine.generate(requests)

Modes differ in where speculations come from: `ar` has no speculator, `sd` one that drafts when asked, `ssd` one
that has prepared. Slots are refilled as requests finish (continuous batching). If the speculator is lost, the
engine goes on alone, one token per round, and takes a successor in when there is one: a request's tokens do not
depend on who proposed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from executor.batch import Batch, Emitted
from executor.config import EngineConfig, Output, Request
from executor.connection import Connection, SpeculatorLink
from executor.contexts import Ints
from executor.decoder import Decoder
from executor.messages import SpeculationMessage
from executor.models import LoadedModel
from executor.recording import RecordKeeper, RoundInProgress, delay_s
from executor.verifier import Outcome, Verifier
from ssdsim.errors import DomainError
from ssdsim.records import Fallback, Lookup, Records, Source
from ssdsim.scenario import Mode


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What `generate` returns: outputs in the order of the requests, and the run's records."""

    outputs: tuple[Output, ...]
    records: Records


class _Speculation(NamedTuple):
    """What the rows of a round verify, and how the round began."""

    tokens: Ints  # [n, K]
    num_proposed: Ints  # [n]
    draft_probs: NDArray[np.float32] | None  # [n, K, V]
    sources: Ints  # [n]
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
        self._config = config
        self._verifier = Verifier(config, target, decoder)
        self._batch = Batch(config.batch_size, self._verifier.contexts)
        self._connection = Connection(speculator, config.layout, replace_lost)
        self._keeper = RecordKeeper(Records(), 0.0)
        self._num_rounds = 0
        self._sent_s = self._prefill_s = 0.0

    @property
    def has_lost_speculator(self) -> bool:
        """Whether it decodes alone although its mode has a speculator."""
        return self._config.mode is not Mode.AR and not self._connection.is_open

    def generate(self, requests: Sequence[Request], about: Mapping[str, Any] | None = None) -> Generation:
        """Run all `requests`; `about` is kept with the records. Raises DomainError for a request that cannot fit."""
        for index, request in enumerate(requests):
            self._check(index, request)
        self._keeper = RecordKeeper(Records(about), perf_counter())
        ids = self._batch.queue(requests)
        with torch.inference_mode():
            self._admit_and_tell(None)
            while len(self._batch.rows):
                self.step()
            self._drain()
        return Generation(outputs=self._batch.take_outputs(ids), records=self._keeper.records)

    def step(self) -> None:
        """One round of the batch."""
        rows = self._batch.rows
        speculation = self._speculation()
        outcome = self._verifier.verify(rows, *speculation[:4])
        accepted_s = perf_counter()
        emitted = self._batch.emit(speculation.sources, speculation.num_proposed, outcome, self._keeper)
        self._admit_and_tell((rows, outcome))
        self._record(rows, speculation, outcome, emitted, accepted_s)

    def close(self) -> None:
        """End the speculator. May be called twice."""
        self._connection.close()

    def _check(self, index: int, request: Request) -> None:
        needed, limit = len(request.prompt) + request.max_tokens, self._config.max_context_tokens
        if needed > limit:
            raise DomainError("max_context_tokens", f"request {index} needs {needed} tokens of context", limit)
        if request.temperature > 0 and not self._config.sampled:
            raise DomainError("sampled", f"must be set, request {index} has a temperature", False)
        lowest, highest = min(request.prompt), max(request.prompt)
        if lowest < 0 or highest >= self._config.vocab_size:
            allowed = f"request {index}: token ids from 0 to {self._config.vocab_size - 1}"
            raise DomainError("prompt", allowed, lowest if lowest < 0 else highest)

    def _speculation(self) -> _Speculation:
        """The speculator's answer to the last outcome; nothing proposed where there is no speculator."""
        asked_s = perf_counter()
        reply = self._connection.receive()
        if reply is not None:
            return self._read(reply, asked_s, perf_counter())
        self._keeper.flush(perf_counter())
        count = len(self._batch.rows)
        return _Speculation(
            tokens=np.zeros((count, self._config.layout.num_speculative_tokens), np.int64),
            num_proposed=np.zeros(count, np.int64),
            draft_probs=None,
            sources=np.full(count, Source.AR),
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
        rows, header = self._batch.rows, reply.view
        slots = reply.slots[rows]
        probs = reply.draft_probs
        if probs is not None and len(rows) < len(probs):
            probs = probs[rows]
        start_s, fed_s = float(header["received_s"]), self._sent_s + self._prefill_s
        left_s = max(asked_s, float(header["sent_s"]))
        return _Speculation(
            tokens=slots["tokens"].astype(np.int64),
            num_proposed=slots["num_proposed"].astype(np.int64),
            draft_probs=probs,
            sources=slots["source"].astype(np.int64),
            start_s=start_s,
            taken_s=taken_s,
            terms={
                "lookup_s": float(header["lookup_s"]),
                "fallback_s": float(header["fallback_s"]),
                "reply_s": taken_s - left_s,
                "verifier_wait_s": left_s - start_s,
                "prefill_s": delay_s(header, self._sent_s, fed_s),
                "host_s": delay_s(header, fed_s, asked_s),
            },
            num_hits=int((slots["lookup"] == Lookup.HIT).sum()),
            num_misses=int((slots["lookup"] == Lookup.MISS).sum()),
            fallback=int(header["fallback"]),
        )

    def _admit_and_tell(self, ended: tuple[Ints, Outcome] | None) -> None:
        """Fill free slots, tell the speculator what became of its proposals and who comes next, feed who comes
        next."""
        admitted = self._batch.refill()
        for slot, request in admitted:
            self._verifier.admit(slot, np.asarray(request.prompt, np.int64), request.seed, request.temperature)
        slots = np.array([slot for slot, _ in admitted], np.int64)
        self._connection.tell(self._verifier.contexts, self._batch.rows, ended, slots, self._num_rounds)
        self._sent_s, self._prefill_s = perf_counter(), 0.0
        if admitted:
            self._verifier.prefill(slots)
            self._prefill_s = perf_counter() - self._sent_s

    def _record(
        self, rows: Ints, speculation: _Speculation, outcome: Outcome, emitted: Emitted, accepted_s: float
    ) -> None:
        ended_s = {
            "verify_s": outcome.verified_s - speculation.taken_s,
            "accept_s": accepted_s - outcome.verified_s,
            "host_s": speculation.terms["host_s"] + self._sent_s - accepted_s,
        }
        self._keeper.end(
            RoundInProgress(
                index=self._num_rounds,
                rows=rows,
                request_ids=emitted.request_ids,
                sources=speculation.sources,
                num_proposed=speculation.num_proposed,
                num_accepted=outcome.num_accepted,
                num_emitted=emitted.num_emitted,
                context_tokens=outcome.context_tokens,
                start_s=speculation.start_s,
                num_hits=speculation.num_hits,
                num_misses=speculation.num_misses,
                fallback=speculation.fallback,
                outcome_sent_s=self._sent_s,
                terms=speculation.terms | ended_s,
            )
        )
        self._num_rounds += 1
        if not self._connection.is_open:
            self._keeper.flush(self._sent_s)

    def _drain(self) -> None:
        """The answer to the last outcome completes the records."""
        reply = self._connection.receive()
        if reply is not None:
            self._keeper.reply(reply)
        self._keeper.flush(perf_counter())
