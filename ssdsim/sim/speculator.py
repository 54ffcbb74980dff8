"""The speculator: the round as it really runs.

Every mode is this process with less to do: SD drafts while the verifier waits and builds nothing, AR sends a round
that proposes nothing. What a build does that outlives verification is in its plan (see `late_builds`).

Where the two roles are processes of their own (SSD), the verifier reads the prompts of new requests from the moment
that the last outcomes are out, while the speculator ends its build, looks up and drafts: the round is launched when
both are done. Otherwise (AR, SD) one follows the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from simpy import Environment

from ssdsim.sim.clock import Clock, ProcessSteps, RoundPlan
from ssdsim.sim.fallback import FallbackLane
from ssdsim.sim.verifier import Verifier


class Speculator:
    """The process that leads the rounds; `clock` notes when they happened."""

    def __init__(self, env: Environment, clock: Clock, *, beside: bool) -> None:
        """`beside`: whether it works on while the verifier reads prompts."""
        self._env, self._clock, self._beside = env, clock, beside
        self._verifier = Verifier(env)
        self._fallback = FallbackLane(env)

    def run(self, plans: Iterator[RoundPlan]) -> ProcessSteps:
        """Play `plans`, one round after the other."""
        env, clock, timeout = self._env, self._clock, self._env.timeout
        unbuilt_s = informed_s = 0.0
        for plan in plans:
            clock.starts.append(env.now)
            unread_s = plan.prefill_s
            if unread_s and not self._beside:
                yield timeout(unread_s)
            if plan.lookup_s:
                yield timeout(plan.lookup_s)
            answers = self._fallback.answer(plan) if plan.fallback_s else None
            if unbuilt_s and plan.has_hits:
                yield timeout(unbuilt_s)
            if answers is not None:
                yield answers
            if unread_s and self._beside:
                unread_s = max(0.0, informed_s + unread_s - env.now)
                yield timeout(unread_s)
            clock.prefills.append(unread_s)
            clock.launches.append(env.now)
            informed_s = env.now + plan.window_s + plan.host_s
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
