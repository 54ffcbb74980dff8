"""The exception tree. Every message names the field (or argument) and the remedy.

SsdsimError
├── InputError            bad input: the command line exits with 2 and prints the message
│   ├── DomainError       a formula was asked outside the domain where it holds
│   └── ScenarioError     a scenario, profile or override is invalid (carries all problems at once)
└── RunError              a run could not be completed (a worker died, a budget ran out)
"""

from __future__ import annotations

from collections.abc import Sequence


class SsdsimError(Exception):
    """Root of everything this project raises on purpose."""


class InputError(SsdsimError):
    """The user's input cannot be used; the message says which part and what is allowed."""


class DomainError(InputError, ValueError):
    """An argument lies outside the domain of a formula.

    `field` is the argument's name, `requirement` what it must satisfy, `got` the offending value.
    """

    def __init__(self, field: str, requirement: str, got: object) -> None:
        self.field = field
        self.requirement = requirement
        self.got = got
        super().__init__(f"{field}: {requirement}; got {got!r}")


class ScenarioError(InputError):
    """One or more fields of a scenario or profile are invalid; `problems` lists them all."""

    def __init__(self, problems: Sequence[str], *, source: str | None = None) -> None:
        self.problems = tuple(problems)
        self.source = source
        head = f"{source}: " if source else ""
        count = len(self.problems)
        if count == 1:
            super().__init__(f"{head}{self.problems[0]}")
        else:
            super().__init__(f"{head}{count} problems\n" + "\n".join(f"  - {p}" for p in self.problems))


class RunError(SsdsimError):
    """A run that started could not be finished; what was already computed is kept."""
