"""The requests of a run: which wait, which holds which slot, what each has written.

Continuous batching is here: a request that finishes leaves its slot to the next waiting one at once. Used by
`executor.engine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import numpy as np

from executor.config import Output, Request
from executor.contexts import Contexts, Ints
from executor.recording import RecordKeeper
from executor.verifier import Outcome
from ssdsim.records import FinishReason, Source

_ON_MISS = frozenset({Source.JIT, Source.NGRAM, Source.NONE, Source.RANDOM})


@dataclass(kw_only=True)
class Running:
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
        """Take a round's tokens, up to `max_tokens` in all and to a stop token: how many, and whether that ends
        it."""
        room = self.request.max_tokens - len(self.tokens)
        kept, reason = tokens[:room], FinishReason.LENGTH if len(tokens) >= room else None
        if not self.request.ignore_eos:
            for index, token in enumerate(kept):
                if token in self.request.stop_tokens:
                    kept, reason = kept[: index + 1], FinishReason.STOP
                    break
        self.tokens += kept
        return len(kept), reason


class Emitted(NamedTuple):
    """What a round gave the requests in its rows."""

    request_ids: Ints  # [n]
    num_emitted: Ints  # [n]


class Batch:
    """Slots and queue; tells the record keeper of every request that is done."""

    def __init__(self, num_slots: int, contexts: Contexts) -> None:
        """`contexts`: the verifier's, where the tokens of every slot are."""
        self._contexts = contexts
        self._slots: list[Running | None] = [None] * num_slots
        self._waiting: deque[tuple[int, Request]] = deque()
        self._outputs: dict[int, Output] = {}
        self._num_requests = 0
        self.rows: Ints = np.empty(0, np.int64)
        """Slots that hold a request, ascending."""

    def queue(self, requests: Sequence[Request]) -> range:
        """Let requests wait for a slot; the ids under which their outputs are kept."""
        ids = range(self._num_requests, self._num_requests + len(requests))
        self._num_requests += len(requests)
        self._waiting.extend(zip(ids, requests, strict=True))
        return ids

    def take_outputs(self, ids: range) -> tuple[Output, ...]:
        """What came of finished requests, in their order."""
        return tuple(self._outputs.pop(i) for i in ids)

    def refill(self) -> list[tuple[int, Request]]:
        """Give free slots to waiting requests; which got which."""
        admitted = []
        for slot, running in enumerate(self._slots):
            if running is None and self._waiting:
                request_id, request = self._waiting.popleft()
                self._slots[slot] = Running(request_id=request_id, request=request, admitted_s=perf_counter())
                admitted.append((slot, request))
        self.rows = np.array([slot for slot, running in enumerate(self._slots) if running is not None], np.int64)
        return admitted

    def emit(self, sources: Ints, num_proposed: Ints, outcome: Outcome, keeper: RecordKeeper) -> Emitted:
        """Hand a round's tokens to the requests in `rows`; finished ones leave their slots."""
        now_s = perf_counter()
        request_ids, num_emitted = np.zeros((2, len(self.rows)), np.int64)
        for index, slot in enumerate(self.rows.tolist()):
            running = self._slots[slot]
            assert running is not None
            num_accepted, source = int(outcome.num_accepted[index]), sources[index]
            request_ids[index] = running.request_id
            running.accepted_lengths.append(num_accepted)
            running.num_proposed += int(num_proposed[index])
            running.num_hits += source == Source.HIT
            running.num_misses += source in _ON_MISS
            if not running.tokens:
                running.first_token_s = now_s
            end = self._contexts.num_tokens[slot]
            tokens = self._contexts.tokens[slot, end - num_accepted - 1 : end].tolist()
            num_emitted[index], reason = running.emit(tokens)
            if reason is not None:
                self._slots[slot] = None
                self._finish(running, reason, now_s, keeper)
        return Emitted(request_ids, num_emitted)

    def _finish(self, running: Running, reason: FinishReason, now_s: float, keeper: RecordKeeper) -> None:
        accepted = tuple(running.accepted_lengths)
        self._outputs[running.request_id] = Output(
            tokens=tuple(running.tokens), finish_reason=reason, accepted_lengths=accepted
        )
        keeper.finish(
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
