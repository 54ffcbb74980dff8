"""Discrete-event simulation of verifier, speculator and fallback: `simulate(scenario) -> SimResult`.

The token process (what is accepted, what hits) is drawn ahead in round index, the clock is SimPy's:

    streams    named random numbers, the same for a request whatever the policy
    rows       laws of one row's round        requests   lengths and slots
    foreseen   rows that do not look at each other, whole stretches at once
    stepped    policies that look at the batch or at late builds, and replayed rank traces, round by round
    decoding   AR, where nothing happens between admissions and finishes
    round_times  seconds of every phase       clock, verifier, speculator, fallback   the processes
    recorder, sinks  the three tables
"""

from ssdsim.sim.engine import SimResult, simulate
from ssdsim.sim.sinks import Aggregates, AllRows, Sample, Sink

__all__ = ["Aggregates", "AllRows", "Sample", "SimResult", "Sink", "simulate"]
