"""The speculator: the round as it really runs.

Every mode is this process with less to do: SD drafts while the verifier waits and builds nothing, AR sends a round
that proposes nothing. What a build does that outlives verification is in its plan (see `late_builds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from simpy import Environment

from ssdsim.sim.clock import Clock, ProcessSteps, RoundPlan
from ssdsim.sim.fallback import FallbackLane
from ssdsim.sim.verifier import Verifier


class Speculator:
    """The process that leads the rounds; `clock` notes when they happened."""

    def __init__(self, env: Environment, clock: Clock) -> None:
        self._env, self._clock = env, clock
        self._verifier = Verifier(env)
        self._fallback = FallbackLane(env)

    def run(self, plans: Iterator[RoundPlan]) -> ProcessSteps:
        """Play `plans`, one round after the other."""
        env, clock, timeout = self._env, self._clock, self._env.timeout
        unbuilt_s = 0.0
        for plan in plans:
            clock.starts.append(env.now)
            if plan.prefill_s:
                yield timeout(plan.prefill_s)
            if plan.lookup_s:
                yield timeout(plan.lookup_s)
            answers = self._fallback.answer(plan) if plan.fallback_s else None
            if unbuilt_s and plan.has_hits:
                yield timeout(unbuilt_s)
            if answers is not None:
                yield answers
            clock.launches.append(env.now)
            outcomes = self._verifier.check(plan)
            if plan.build_s:
                yield timeout(plan.build_s)
            built_at = env.now
            yield outcomes
            clock.idle.append(env.now - built_at)
            unbuilt_s = plan.unbuilt_s
            if plan.host_s:
                yield timeout(plan.host_s)
            clock.end = env.now
