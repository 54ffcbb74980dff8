"""Turns blocks of rounds that have been played into rows of the three tables."""

from __future__ import annotations

import math

import numpy as np

from ssdsim.metrics import Tally, Window
from ssdsim.records import FinishReason, Records
from ssdsim.sim.clock import Clock
from ssdsim.sim.round_times import TimedRounds
from ssdsim.sim.rounds import FloatArray, IntArray, RequestEvents, RoundBlock, RowHistory
from ssdsim.sim.rows import RowLaws
from ssdsim.sim.sinks import Columns, Sink

_NO_PROMPT_KIND = -1


class Recorder:
    """Writes to `records` through `sink`; `tally` collects the sums where the sink does not keep all rows."""

    def __init__(self, records: Records, sink: Sink, laws: RowLaws, clock: Clock, window: Window) -> None:
        self.tally = None if sink.keeps_all else Tally()
        self._records, self._sink = records, sink
        self._laws, self._clock, self._window = laws, clock, window
        self._ledger = _Ledger()
        self._first_measured_s = math.inf if window.warmup_requests else -math.inf

    def record(self, block: RoundBlock, timed: TimedRounds) -> None:
        """Write the block that the clock has just played."""
        rounds = self._rounds(block, timed)
        emitted_s = rounds["start_s"] + rounds["verifier_wait_s"] + rounds["reply_s"]
        emitted_s = emitted_s + rounds["verify_s"] + rounds["accept_s"]
        requests = self._ledger.enter(block.requests(), rounds["start_s"], emitted_s)
        outcomes = outcome_columns(block.history(), self._laws) if self._sink.keeps_outcomes else None
        self._sink.write(self._records, rounds, outcomes, requests)
        if self.tally is not None:
            self._add_to(self.tally, block, rounds)

    def _rounds(self, block: RoundBlock, timed: TimedRounds) -> Columns:
        rows, clock = block.rows, self._clock
        start_s = self._starts(block, timed)
        prefill_s = np.array(clock.prefills) if block.runs is None else timed.terms.prefill_s
        verifier_wait_s = np.array(clock.launches) - start_s if block.runs is None else prefill_s
        speculator_wait_s = np.array(clock.idle) if self._laws.looks_up else np.zeros(len(block))
        return {
            "round": np.arange(block.first_round, block.first_round + len(block)),
            "start_s": start_s,
            "round_s": np.diff(start_s, append=clock.end),
            "batch_size": rows.batch_size,
            "num_query_tokens": timed.query_tokens,
            "context_tokens": rows.context_tokens,
            "num_branches": rows.num_branches,
            "num_hits": rows.num_hits,
            "num_misses": rows.num_misses,
            "num_first": rows.num_first,
            "fallback": block.fallback,
            **timed.terms._replace(prefill_s=prefill_s)._asdict(),
            "verifier_wait_s": verifier_wait_s,
            "speculator_wait_s": speculator_wait_s,
        }

    def _starts(self, block: RoundBlock, timed: TimedRounds) -> FloatArray:
        """When every round began; within a run that was played as one, the rounds follow each other."""
        starts = np.array(self._clock.starts)
        if block.runs is None:
            return starts
        before = np.cumsum(timed.terms.alone_s) - timed.terms.alone_s
        lengths = np.diff(block.runs, append=len(block))
        spread: FloatArray = before + np.repeat(starts - before[block.runs], lengths)
        return spread

    def _add_to(self, tally: Tally, block: RoundBlock, rounds: Columns) -> None:
        if math.isinf(self._first_measured_s) and self._first_measured_s > 0:
            self._first_measured_s = self._ledger.admitted_s(self._window.warmup_requests)
        measured = self._window.rounds(rounds, self._first_measured_s)
        if not measured.any():
            return
        tally.add_rounds(
            {name: column[measured] for name, column in rounds.items()}, block.rows.num_emitted[measured]
        )
        tally.add_histogram(block.outcomes(measured))


class _Ledger:
    """What has been seen of every request so far, by request id."""

    _COUNTS = ("output_tokens", "num_rounds", "num_hits", "num_misses", "num_proposed", "num_accepted")

    def __init__(self) -> None:
        self._times = {name: np.empty(0) for name in ("admitted_s", "first_token_s")}
        self._counts = {name: np.zeros(0, np.int64) for name in (*self._COUNTS, "prompt_tokens")}

    def admitted_s(self, request_id: int) -> float:
        """When a request was admitted; infinity where it has not been yet."""
        times = self._times["admitted_s"]
        return float(times[request_id]) if request_id < len(times) else math.inf

    def enter(self, events: RequestEvents, start_s: FloatArray, emitted_s: FloatArray) -> Columns:
        """Add what a block brings; returns the rows of the requests that ended, in the order in which they did."""
        self._grow(int(max(events.seen.max(initial=0), events.admitted.max(initial=0))) + 1)
        self._times["admitted_s"][events.admitted] = start_s[events.admitted_round]
        self._times["first_token_s"][events.admitted] = emitted_s[events.admitted_round]
        self._counts["prompt_tokens"][events.admitted] = events.prompt_tokens
        for name, amounts in events.counts.items():
            self._counts[name][events.seen] += amounts
        order = np.lexsort((events.ended, events.ended_round))
        return self._close(events.ended[order], emitted_s[events.ended_round[order]])

    def _close(self, ids: IntArray, finish_s: FloatArray) -> Columns:
        return {
            "request_id": ids,
            "prompt_kind": np.full(len(ids), _NO_PROMPT_KIND),
            "arrival_s": self._times["admitted_s"][ids],
            "finish_s": finish_s,
            "finish_reason": np.full(len(ids), FinishReason.LENGTH),
            **{name: times[ids] for name, times in self._times.items()},
            **{name: counts[ids] for name, counts in self._counts.items()},
        }

    def _grow(self, size: int) -> None:
        have = len(self._times["admitted_s"])
        if size <= have:
            return
        room = max(size, 2 * have) - have
        for name, times in self._times.items():
            self._times[name] = np.append(times, np.full(room, math.inf))
        for name, counts in self._counts.items():
            self._counts[name] = np.append(counts, np.zeros(room, np.int64))


def outcome_columns(history: RowHistory, laws: RowLaws) -> Columns:
    """The rows of the outcome table."""
    place = history.kind.astype(np.int16) * laws.fan_out.shape[1] + history.num_accepted
    return {
        "round": history.round,
        "request_id": history.request_id,
        "source": history.source,
        "lookup": history.lookup,
        "num_proposed": laws.num_proposed[history.kind],
        "num_accepted": history.num_accepted,
        "num_emitted": history.num_emitted,
        "fan_out_here": laws.fan_out.ravel()[place],
        "bonus_rank": history.bonus_rank,
    }
