"""The verifier: waits for a reply, checks it, sends the outcomes back."""

from __future__ import annotations

from simpy import Environment, Event

from ssdsim.sim.clock import ProcessSteps, RoundPlan


class Verifier:
    """The target model's side of a round, a process of its own."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._inbox = env.event()
        self._outcomes = env.event()
        env.process(self._run())

    def check(self, plan: RoundPlan) -> Event:
        """Send the speculations of a round; the event returned is the arrival of their outcomes."""
        self._outcomes = self._env.event()
        self._inbox.succeed(plan)
        return self._outcomes

    def _run(self) -> ProcessSteps:
        while True:
            plan = yield self._inbox
            self._inbox = self._env.event()
            yield self._env.timeout(plan.window_s)  # reply travels, verify, accept, outcomes travel
            self._outcomes.succeed()
