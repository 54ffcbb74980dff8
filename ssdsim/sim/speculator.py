"""The speculator: the round as it really runs, and what becomes of a build that outlives verification.

Every mode is this process with less to do: SD drafts while the verifier waits and builds nothing, AR sends a round
that proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from simpy import Environment, Event

from ssdsim.sim.clock import Clock, ProcessSteps, RoundPlan
from ssdsim.sim.fallback import FallbackLane
from ssdsim.sim.verifier import Verifier


class Speculator:
    """The process that leads the rounds; `late_build` decides what is waited for."""

    def __init__(self, env: Environment, clock: Clock, late_build: LateBuild) -> None:
        self._env, self._clock, self._late_build = env, clock, late_build
        self._verifier = Verifier(env)
        self._fallback = FallbackLane(env)

    def run(self, plans: Iterator[RoundPlan]) -> ProcessSteps:
        """Play `plans`, one round after the other."""
        env, clock, late_build = self._env, self._clock, self._late_build
        for plan in plans:
            clock.starts.append(env.now)
            if plan.lookup_s:
                yield env.timeout(plan.lookup_s)
            answers = self._fallback.answer(plan) if plan.fallback_s else None
            if plan.has_hits:
                yield from late_build.finish()
            if answers is not None:
                yield answers
            clock.launches.append(env.now)
            outcomes = self._verifier.check(plan)
            yield from late_build.build(plan, outcomes)
            if plan.host_s:
                yield env.timeout(plan.host_s)
            clock.end = env.now


class WaitForBuild:
    """The outcomes are looked up when the whole cache is there (a truncated build ends with the window)."""

    def __init__(self, env: Environment, clock: Clock) -> None:
        self._env, self._clock = env, clock

    def build(self, plan: RoundPlan, outcomes: Event) -> ProcessSteps:
        """Build the next cache while the verifier is busy."""
        if plan.build_s:
            yield self._env.timeout(plan.build_s)
        built = self._env.now
        yield outcomes
        self._clock.idle.append(self._env.now - built)

    def finish(self) -> ProcessSteps:
        """Nothing is left over."""
        yield from ()


class AbortBuild:
    """Outcomes interrupt the build: misses are answered at once, hits wait for what is left of it."""

    def __init__(self, env: Environment, clock: Clock) -> None:
        self._env, self._clock = env, clock
        self._left_s = 0.0

    def build(self, plan: RoundPlan, outcomes: Event) -> ProcessSteps:
        """Build until the outcomes arrive."""
        yield outcomes
        self._left_s = max(plan.build_s - plan.window_s, 0.0)
        self._clock.idle.append(max(plan.window_s - plan.build_s, 0.0))

    def finish(self) -> ProcessSteps:
        """Some row has hit: build the rest, beside the fallback."""
        if self._left_s:
            yield self._env.timeout(self._left_s)


LateBuild = WaitForBuild | AbortBuild


def late_build_of(on_late: Literal["wait", "abort", "truncate"], env: Environment, clock: Clock) -> LateBuild:
    """The behaviour that `drafting.on_late` names; a truncated build is already cut in its plan."""
    return (AbortBuild if on_late == "abort" else WaitForBuild)(env, clock)
