"""What a run keeps: every row, a sample, or the requests and running sums only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.records import Records

Columns = dict[str, NDArray[Any]]


class Sink(Protocol):
    """Writes the rows of a block of rounds into the tables."""

    @property
    def keeps_all(self) -> bool:
        """Whether the tables are complete, so that metrics need no running sums."""

    @property
    def keeps_outcomes(self) -> bool:
        """Whether the outcome table is written at all."""

    def write(self, records: Records, rounds: Columns, outcomes: Columns | None, requests: Columns) -> None:
        """Keep what this sink keeps; `outcomes` is absent where it keeps none."""


@dataclass(frozen=True)
class AllRows:
    """All three tables, complete."""

    keeps_all: bool = True
    keeps_outcomes: bool = True

    def write(self, records: Records, rounds: Columns, outcomes: Columns | None, requests: Columns) -> None:
        records.rounds.extend(len(rounds["round"]), **rounds)
        records.requests.extend(len(requests["request_id"]), **requests)
        if outcomes is not None:
            records.outcomes.extend(len(outcomes["round"]), **outcomes)


@dataclass(frozen=True)
class Sample:
    """Every n-th round with its outcomes, and every n-th request."""

    every: int
    keeps_all: bool = False
    keeps_outcomes: bool = True

    def write(self, records: Records, rounds: Columns, outcomes: Columns | None, requests: Columns) -> None:
        AllRows().write(
            records,
            self._sampled(rounds, "round"),
            None if outcomes is None else self._sampled(outcomes, "round"),
            self._sampled(requests, "request_id"),
        )

    def _sampled(self, columns: Columns, key: str) -> Columns:
        chosen = np.flatnonzero(columns[key] % self.every == 0)
        return {name: column[chosen] for name, column in columns.items()}


@dataclass(frozen=True)
class Aggregates:
    """The request table and the running sums of rounds and outcomes."""

    keeps_all: bool = False
    keeps_outcomes: bool = False

    def write(self, records: Records, rounds: Columns, outcomes: Columns | None, requests: Columns) -> None:
        records.requests.extend(len(requests["request_id"]), **requests)
