"""One run: the scenario in numbers, the source of its rounds, the processes that play them, and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import simpy

from ssdsim.design_point import DesignPoint, resolve
from ssdsim.errors import InputError
from ssdsim.exact import resolve_fallback
from ssdsim.metrics import Tally, Window, summarise
from ssdsim.quantities import Quantity
from ssdsim.records import Fallback, Records
from ssdsim.scenario import FallbackKind, Mode, Scenario
from ssdsim.sim.clock import Clock, RoundPlan
from ssdsim.sim.decoding import Decoding
from ssdsim.sim.foreseen import Foreseen
from ssdsim.sim.outcomes import OutcomeSource, RandomOutcomes, ReplayedOutcomes
from ssdsim.sim.recorder import Recorder
from ssdsim.sim.requests import Requests
from ssdsim.sim.round_times import RoundTimes, TimedRounds
from ssdsim.sim.rounds import Answer, RoundBlock, Rounds
from ssdsim.sim.rows import RowLaws
from ssdsim.sim.sinks import AllRows, Sink
from ssdsim.sim.speculator import Speculator
from ssdsim.sim.stepped import Stepped
from ssdsim.sim.streams import Streams

Progress = Callable[[int], None]
"""Called now and then with the number of rounds that have been simulated."""


@dataclass(frozen=True)
class SimResult:
    """What a run leaves behind."""

    records: Records
    tally: Tally | None
    """Running sums, where the sink did not keep every row."""

    def quantities(self) -> dict[str, Quantity]:
        """Everything that is reported of the run."""
        return summarise(self.records, self.tally)


def simulate(scenario: Scenario, *, sink: Sink | None = None, progress: Progress | None = None) -> SimResult:
    """Simulate `scenario` and return its records; the same seed gives the same run, whatever `sink` keeps.

    All rows are kept where no `sink` is given. Raises InputError where a rank trace cannot be replayed with the
    scenario's fallback.
    """
    sink = sink or AllRows()
    streams = Streams(scenario.run.seed)
    point = resolve(scenario)
    laws, times = RowLaws(point), RoundTimes(scenario, streams)
    env, clock = simpy.Environment(), Clock()
    about = _about(scenario)
    records = Records(about)
    recorder = Recorder(records, sink, laws, clock, Window.from_scenario(about["scenario"]))
    if scenario.workload.output_tokens is None and sink.keeps_all:
        num_rounds = scenario.run.warmup_rounds + scenario.run.num_rounds
        records.rounds.reserve(num_rounds)
        records.outcomes.reserve(num_rounds * scenario.workload.batch_size)
    speculator = Speculator(env, clock, beside=scenario.mode is Mode.SSD)
    rounds = _rounds_of(point, laws, times, streams)
    env.run(env.process(speculator.run(_plans(rounds, times, clock, recorder, progress))))
    return SimResult(records, recorder.tally)


def _plans(
    rounds: Rounds, times: RoundTimes, clock: Clock, recorder: Recorder, progress: Progress | None
) -> Iterator[RoundPlan]:
    """The rounds' plans in order; a block is written down when its last round has been played."""
    for block in rounds.blocks():
        timed = times.of(block)
        clock.clear()
        yield from plans_of(block, timed)
        recorder.record(block, timed)
        if progress is not None:
            progress(block.first_round + len(block))


def plans_of(block: RoundBlock, timed: TimedRounds) -> Iterator[RoundPlan]:
    """One plan per round, or per run of rounds in which only the verifier has something to do."""
    if block.runs is not None:
        return (_run_plan(run_s) for run_s in np.add.reduceat(timed.terms.alone_s, block.runs).tolist())
    terms = timed.terms
    columns = (
        terms.prefill_s,
        terms.lookup_s,
        terms.fallback_s,
        terms.window_s,
        terms.build_s - timed.unbuilt_s,
        timed.unbuilt_s,
        terms.host_s,
        block.rows.num_hits > 0,
    )
    return map(RoundPlan._make, zip(*(column.tolist() for column in columns), strict=True))


def _run_plan(run_s: float) -> RoundPlan:
    """A run of rounds as one long verification."""
    return RoundPlan(
        prefill_s=0.0,
        lookup_s=0.0,
        fallback_s=0.0,
        window_s=run_s,
        build_s=0.0,
        unbuilt_s=0.0,
        host_s=0.0,
        has_hits=False,
    )


def _rounds_of(point: DesignPoint, laws: RowLaws, times: RoundTimes, streams: Streams) -> Rounds:
    answer = _answer(point)
    scenario, trace = point.scenario, point.behaviour.rank_trace
    requests = Requests(scenario, trace, streams)
    if scenario.mode is Mode.AR and scenario.workload.output_tokens is not None:
        return Decoding(scenario.workload, requests)
    if trace is None and not looks_at_batch(scenario, answer):
        return Foreseen(scenario, laws, requests, streams, Fallback(answer.to_misses[1]))
    outcomes = outcome_source(point, laws, requests, streams)
    return Stepped(scenario, laws, requests, outcomes, answer, times)


def outcome_source(point: DesignPoint, laws: RowLaws, requests: Requests, streams: Streams) -> OutcomeSource:
    """Chance, or the rank trace of the pair's behaviour where there is one."""
    trace, batch_size = point.behaviour.rank_trace, point.scenario.workload.batch_size
    if trace is None:
        return RandomOutcomes(laws, requests, streams, batch_size)
    if laws.looks_up and point.scenario.drafting.fallback.kind is FallbackKind.NGRAM:
        raise InputError(
            "drafting.fallback.kind: 'ngram' cannot be replayed from a rank trace, which ranks the draft model's "
            "tokens only; choose another kind or a behaviour without rank_trace"
        )
    return ReplayedOutcomes(laws, trace, batch_size)


def looks_at_batch(scenario: Scenario, answer: Answer) -> bool:
    """Whether what a row proposes depends on the other rows or on the clock."""
    drafting = scenario.drafting
    coupled = answer.looks_at_batch or drafting.redraft_hits or drafting.on_late == "truncate"
    return scenario.mode is Mode.SSD and coupled


def _answer(point: DesignPoint) -> Answer:
    """What misses get; outside SSD nothing can miss."""
    scenario = point.scenario
    if scenario.mode is not Mode.SSD:
        return Answer(FallbackKind.NONE, None, scenario.workload.batch_size)
    kind, threshold = resolve_fallback(point)
    return Answer(kind, threshold, scenario.workload.batch_size)


def _about(scenario: Scenario) -> dict[str, Any]:
    return {
        "producer": "ssdsim.sim",
        "version": version("ssdsim"),
        "seed": scenario.run.seed,
        "mode": scenario.mode.value,
        "scenario": scenario.model_dump(mode="json"),
    }
