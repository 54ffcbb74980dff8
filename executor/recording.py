"""Fills the three record tables while an engine runs.

Some of a round's terms are known a message later: the reply to the next outcome says how this round's
outcome fared in the look-up and what the build beside this round's verification cost, the one after that
how its bonus tokens ranked. So rows wait here until they are complete; nothing is kept per row but arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from executor.contexts import Ints
from executor.messages import SpeculationMessage
from ssdsim.records import Fallback, Lookup, Records, Source

_TERMS = (
    "lookup_s",
    "fallback_s",
    "reply_s",
    "verify_s",
    "accept_s",
    "outcome_s",
    "glue_s",
    "tree_s",
    "store_s",
    "host_s",
    "prefill_s",
    "verifier_wait_s",
    "speculator_wait_s",
)


@dataclass(kw_only=True)
class RoundInProgress:
    """What the verifier's side knows of a round when it ends."""

    index: int
    rows: Ints
    request_ids: Ints
    sources: Ints
    num_proposed: Ints
    num_accepted: Ints
    num_emitted: Ints
    context_tokens: float
    start_s: float
    num_hits: int = 0
    num_misses: int = 0
    fallback: int = Fallback.NOT_NEEDED
    outcome_sent_s: float = 0.0
    terms: dict[str, float] = field(default_factory=dict)
    """Durations known so far, by column."""
    lookup: Ints | None = None
    fan_out: Ints | None = None


def delay_s(reply: NDArray[Any], start_s: float, end_s: float) -> float:
    """How much of what the verifier did from `start_s` to `end_s` held up the round that the message `reply` opened.

    Nothing where the speculator was at work on its answer meanwhile; in one process it is not, it waits its turn.
    """
    received_s, sent_s = float(reply["received_s"]), float(reply["sent_s"])
    begun_s = sent_s - float(reply["lookup_s"]) - float(reply["fallback_s"])
    before = min(end_s, begun_s) - max(start_s, received_s)
    after = end_s - max(start_s, sent_s)
    return max(0.0, before) + max(0.0, after)


class RecordKeeper:
    """Completes rounds in order and writes them."""

    def __init__(self, records: Records, origin_s: float) -> None:
        """Instants are written relative to `origin_s`."""
        self.records, self._origin_s = records, origin_s
        self._ended: RoundInProgress | None = None
        self._unranked: RoundInProgress | None = None

    def end(self, round_: RoundInProgress) -> None:
        """A round's outcomes are on their way."""
        self._ended = round_

    def reply(self, reply: SpeculationMessage) -> None:
        """The speculator's answer to the last outcome completes the last round, and the ranks of the one
        before."""
        header, slots = reply.view, reply.slots
        if self._unranked is not None:
            self._write_outcomes(self._unranked, slots["bonus_rank"][self._unranked.rows])
            self._unranked = None
        if self._ended is None:
            return
        done = self._ended
        done.lookup, done.fan_out = slots["lookup"][done.rows].copy(), slots["fan_out_here"][done.rows].copy()
        # A message that found the speculator busy has travelled only since that was over.
        idle_s = float(header["wait_s"])
        done.terms["outcome_s"] = max(0.0, min(float(header["received_s"]) - done.outcome_sent_s, idle_s))
        done.terms["speculator_wait_s"] = idle_s
        for name in ("glue_s", "tree_s", "store_s"):
            done.terms[name] = float(header[name])
        self._write_round(done, float(header["received_s"]), int(header["num_branches"]))
        self._unranked, self._ended = done, None

    def flush(self, now_s: float) -> None:
        """No further answer comes: what is not known stays unknown."""
        if self._ended is not None:
            self._write_round(self._ended, now_s, 0)
            self._write_outcomes(self._ended, -1)
        if self._unranked is not None:
            self._write_outcomes(self._unranked, -1)
        self._ended = self._unranked = None

    def finish(self, **row: Any) -> None:
        """A request is done; instants on the machine's clock."""
        for name in ("arrival_s", "admitted_s", "first_token_s", "finish_s"):
            row[name] -= self._origin_s
        self.records.requests.extend(1, **row)

    def _write_round(self, done: RoundInProgress, end_s: float, num_branches: int) -> None:
        unknown = dict.fromkeys(_TERMS, 0.0)
        self.records.rounds.extend(
            1,
            round=done.index,
            start_s=done.start_s - self._origin_s,
            round_s=end_s - done.start_s,
            batch_size=len(done.rows),
            num_query_tokens=int(done.num_proposed.sum()) + len(done.rows),
            context_tokens=done.context_tokens,
            num_branches=num_branches,
            num_hits=done.num_hits,
            num_misses=done.num_misses,
            num_first=int((done.sources == Source.FIRST).sum()),
            fallback=done.fallback,
            **(unknown | done.terms),
        )

    def _write_outcomes(self, done: RoundInProgress, bonus_rank: NDArray[Any] | int) -> None:
        self.records.outcomes.extend(
            len(done.rows),
            round=done.index,
            request_id=done.request_ids,
            source=done.sources,
            lookup=Lookup.NOT_MADE if done.lookup is None else done.lookup,
            num_proposed=done.num_proposed,
            num_accepted=done.num_accepted,
            num_emitted=done.num_emitted,
            fan_out_here=0 if done.fan_out is None else done.fan_out,
            bonus_rank=bonus_rank,
        )
