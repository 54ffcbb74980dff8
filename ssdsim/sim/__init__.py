"""Discrete-event simulation of verifier, speculator and fallback: `simulate(scenario) -> SimResult`.

The token process (what is accepted, what hits) is drawn ahead in round index, the clock is SimPy's:

    streams      named random numbers, the same for a request whatever the policy
    rows         laws of one row's round
    requests     lengths, and the slots of the batch
    foreseen     rows that do not look at each other, whole stretches at once
    stepped      policies that look at the batch or at late builds, and replayed rank traces, round by round
    outcomes     where `stepped` gets its outcomes from
    decoding     AR, where nothing happens between admissions and finishes
    rounds       what these three produce: blocks of rounds
    round_times  seconds of every phase; `late_builds` for a build that outlives verification
    clock        what the processes exchange; `verifier`, `speculator`, `fallback` are the processes
    recorder     the three tables, as `sinks` keep them
"""

from ssdsim.sim.engine import SimResult, simulate
from ssdsim.sim.sinks import Aggregates, AllRows, Sample, Sink

__all__ = ["Aggregates", "AllRows", "Sample", "SimResult", "Sink", "simulate"]
