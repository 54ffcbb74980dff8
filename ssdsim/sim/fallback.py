"""The fallback: answers the rows that the speculation cache cannot, while the verifier waits."""

from __future__ import annotations

from simpy import Environment, Event

from ssdsim.sim.clock import ProcessSteps, RoundPlan


class FallbackLane:
    """Drafting now, a process of its own: it may run beside a build that only the hits need."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._inbox = env.event()
        self._answers = env.event()
        env.process(self._run())

    def answer(self, plan: RoundPlan) -> Event:
        """Ask for the missing speculations of a round; the event returned is when they are ready."""
        self._answers = self._env.event()
        self._inbox.succeed(plan)
        return self._answers

    def _run(self) -> ProcessSteps:
        while True:
            plan = yield self._inbox
            self._inbox = self._env.event()
            yield self._env.timeout(plan.fallback_s)
            self._answers.succeed()
