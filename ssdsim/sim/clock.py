"""What the processes exchange: the plan of one round, and the times at which it happened."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from simpy import Event

ProcessSteps = Generator[Event, Any, None]
"""A SimPy process: it yields the events that it waits for."""


class RoundPlan(NamedTuple):
    """What one round asks of the three processes, in seconds."""

    prefill_s: float
    """Reading the prompts of admitted requests on the target."""
    lookup_s: float
    fallback_s: float
    window_s: float
    """From the reply's leaving to the outcomes' arrival."""
    build_s: float
    """Building the next cache beside the verification."""
    unbuilt_s: float
    """What is left of a build that the outcomes interrupted; the next round's hits wait for it."""
    host_s: float
    has_hits: bool
    """Whether any row is answered from the cache."""


class Clock:
    """When the rounds of the current block happened."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.launches: list[float] = []
        """When the reply left."""
        self.prefills: list[float] = []
        """How long the round waited for prompts to be read and for nothing else."""
        self.idle: list[float] = []
        """How long the speculator waited for the outcomes with nothing left to build."""
        self.end = 0.0
        """When the last round ended."""

    def clear(self) -> None:
        """Forget the block's rounds; the end stays."""
        self.starts, self.launches, self.prefills, self.idle = [], [], [], []
