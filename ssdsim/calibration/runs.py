"""The runs that a calibration starts from: their tables, what was asked of them, and which belong together.

Runs of one prompt set (or one simulation seed) meet the same requests again; `cluster` says which rows speak of the
same request, so that no interval mistakes a repetition for new evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import InputError
from ssdsim.profile import When
from ssdsim.records import Records, Source
from ssdsim.scenario import Drafting, Mode, Placement, Workload
from ssdsim.schema import validate

Columns = Mapping[str, NDArray[Any]]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

DRAFTED = (Source.FIRST, Source.HIT, Source.JIT, Source.SD)
"""Sources whose tokens the draft model proposed."""
UNDRAFTED = (Source.NONE, Source.RANDOM, Source.NGRAM)
"""Sources of a miss that the draft model did not answer."""


@dataclass(frozen=True)
class Run:
    """One run: its records and the parts of its scenario that calibration needs."""

    name: str
    records: Records
    mode: Mode
    drafting: Drafting
    workload: Workload
    placement: Placement
    only_requests: IntArray | None = None
    """Requests whose outcomes count; all where absent."""

    @classmethod
    def of(cls, records: Records, name: str) -> Run:
        """Read what the run's `about` says of its scenario; `InputError` where it says too little."""
        scenario = records.about.get("scenario")
        if not isinstance(scenario, Mapping) or "mode" not in scenario:
            raise InputError(f"{name}: about.json tells no scenario, so this run cannot be calibrated from")
        return cls(
            name=name,
            records=records,
            mode=Mode(scenario["mode"]),
            drafting=validate(Drafting, scenario.get("drafting", {}), source=name, prefix="drafting"),
            workload=validate(Workload, scenario.get("workload", {}), source=name, prefix="workload"),
            placement=validate(Placement, scenario.get("placement", {}), source=name, prefix="placement"),
        )

    @cached_property
    def rounds(self) -> Columns:
        """The round table."""
        return self.records.rounds.columns()

    @cached_property
    def outcomes(self) -> Columns:
        """The outcome table."""
        columns = self.records.outcomes.columns()
        if self.only_requests is None:
            return columns
        chosen = np.isin(columns["request_id"], self.only_requests)
        return {name: column[chosen] for name, column in columns.items()}

    @property
    def lookahead(self) -> int:
        """Tokens per draft; 0 in mode ar."""
        return 0 if self.mode is Mode.AR else self.drafting.num_speculative_tokens

    @property
    def when(self) -> When:
        """The conditions under which the pair was observed.

        Without a cache Saguaro has nothing to reweight, and greedy decoding knows no weights.
        """
        downweight = self.drafting.saguaro_downweight if self.mode is Mode.SSD else 1.0
        return When(
            temperature=self.workload.temperature,
            saguaro_downweight=downweight if self.workload.temperature > 0 else None,
            prompt_kind=self.workload.prompt_kind,
            drafter=self.drafting.drafter,
        )

    @property
    def request_set(self) -> str:
        """Equal for runs that served the same requests."""
        about = self.records.about
        return str((about.get("prompts"), about.get("seed", self.name)))

    def by_prompt_kind(self) -> list[Run]:
        """One run for each kind of prompt that it mixed, with that kind's outcomes; none where it did not mix."""
        kinds = self.records.about.get("prompt_kinds", ())
        requests = self.records.requests.columns()
        if len(kinds) < 2:
            return []
        return [
            replace(
                self,
                workload=self.workload.model_copy(update={"prompt_kind": str(kind)}),
                only_requests=requests["request_id"][requests["prompt_kind"] == number],
            )
            for number, kind in enumerate(kinds)
        ]

    def by_half(self) -> tuple[Run, Run]:
        """The run with the outcomes of one half of its prompts, and of the other: kinds take turns in both."""
        ids = self.records.requests.columns()["request_id"]
        first = ids // max(1, len(self.records.about.get("prompt_kinds", ()))) % 2 == 0
        return replace(self, only_requests=ids[first]), replace(self, only_requests=ids[~first])

    def round_index(self) -> IntArray:
        """For every row of the outcome table its row in the round table."""
        index: IntArray = np.searchsorted(self.rounds["round"], self.outcomes["round"])
        return index

    @cached_property
    def query_tokens(self) -> IntArray:
        """[rounds] tokens that each verification computes, padding included where it was asked for."""
        padded = self.mode is Mode.SSD and self.drafting.padded_verify
        if padded:
            return np.asarray(self.rounds["batch_size"], np.int64) * (self.lookahead + 1)
        return np.asarray(self.rounds["num_query_tokens"], np.int64)

    @cached_property
    def widest_query_tokens(self) -> IntArray:
        """[rounds] tokens of each verification if every row is padded to the widest one of its round."""
        outcomes = self.records.outcomes.columns()  # times are those of whole rounds, whichever outcomes count
        widest = np.zeros(len(self.rounds["round"]), np.int64)
        place = np.searchsorted(self.rounds["round"], outcomes["round"])
        np.maximum.at(widest, place, outcomes["num_proposed"].astype(np.int64))
        if self.mode is Mode.SSD and self.drafting.padded_verify:
            return self.query_tokens
        return np.asarray(self.rounds["batch_size"], np.int64) * (widest + 1)

    @cached_property
    def admissions(self) -> tuple[IntArray, FloatArray]:
        """[rounds] requests whose first round this is, and the mean number of tokens of their prompts."""
        outcomes, requests = self.records.outcomes.columns(), self.records.requests.columns()
        ids, first = np.unique(outcomes["request_id"], return_index=True)
        order = np.argsort(requests["request_id"])
        known = np.isin(ids, requests["request_id"])
        place = np.searchsorted(requests["request_id"], ids[known], sorter=order)
        prompt_tokens = np.full(len(ids), requests["prompt_tokens"].mean() if len(order) else 1.0)
        prompt_tokens[known] = requests["prompt_tokens"][order[place]]
        round_ = np.searchsorted(self.rounds["round"], outcomes["round"][first])
        count = np.bincount(round_, minlength=len(self.rounds["round"]))
        return count, np.bincount(round_, prompt_tokens, len(count)) / np.maximum(count, 1)

    @property
    def admitted(self) -> IntArray:
        """[rounds] requests whose first round this is."""
        return self.admissions[0]


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """The runs in `folders`; a folder that holds run folders stands for all of them.

    Raises `InputError` for a folder without records, or where nothing is given.
    """
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folders of runs")
        below = sorted(path.parent for path in folder.glob("**/about.json"))
        found.extend(below or [folder])
    if not found:
        raise InputError("no run folder given: name at least one")
    return [Run.of(Records.read(path), str(path)) for path in dict.fromkeys(found)]


def by_condition(runs: Sequence[Run]) -> dict[When, list[Run]]:
    """Runs with drafts, by the conditions under which the pair was observed."""
    groups: dict[When, list[Run]] = {}
    for run in runs:
        if run.mode is not Mode.AR and run.lookahead:
            groups.setdefault(run.when, []).append(run)
    return groups
