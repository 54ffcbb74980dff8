"""What the figures draw from, where `--from RESULTS` gives it: runs, profiles and reports found below that folder.

- a run is a folder with `about.json` and the three tables of `ssdsim.records` (`ssdsim simulate --out`, `measure`)
- a profile is a `.json` file with `behaviours` (`ssdsim calibrate`)
- a report is the `report.json` of `ssdsim validate`: `points`, each with what was `measured` and `predicted`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from figures.marks import Origin
from ssdsim.errors import InputError
from ssdsim.metrics import summarise
from ssdsim.profile import PairProfile, in_current_schema
from ssdsim.quantities import Quantity
from ssdsim.records import Records
from ssdsim.scenario import Drafting, Mode, Workload
from ssdsim.schema import validate


@dataclass(frozen=True)
class Run:
    """One run folder; its tables are read when they are asked for."""

    folder: Path
    about: Mapping[str, Any]

    @cached_property
    def records(self) -> Records:
        """The three tables."""
        return Records.read(self.folder)

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """Everything that is reported of the run."""
        return summarise(self.records)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def origin(self) -> Origin:
        """Simulated or measured, as its producer says."""
        return _origin_of(self.about)

    @property
    def mode(self) -> Mode:
        return Mode(self.about["mode"])

    @cached_property
    def drafting(self) -> Drafting:
        return validate(Drafting, self._scenario.get("drafting", {}), source=str(self.folder))

    @cached_property
    def workload(self) -> Workload:
        return validate(Workload, self._scenario.get("workload", {}), source=str(self.folder))

    @property
    def prompt_kinds(self) -> tuple[str, ...]:
        """The kinds that the request table's `prompt_kind` counts through."""
        return tuple(self.about.get("prompt_kinds", ()))

    @property
    def _scenario(self) -> Mapping[str, Any]:
        scenario: Mapping[str, Any] = self.about.get("scenario", {})
        return scenario


class Prediction(NamedTuple):
    """One held-out number of a validation report, beside its prediction."""

    quantity: str
    method: str
    setting: str
    predicted: float
    measured: float
    origin: Origin
    """Simulated where a simulator stood in for the executor."""


@dataclass(frozen=True)
class Results:
    """All that was found."""

    runs: tuple[Run, ...] = ()
    profiles: tuple[PairProfile, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    seed: int = 0
    """Of what is simulated for a picture."""

    @classmethod
    def read(cls, folder: Path, seed: int = 0) -> Results:
        """Everything below `folder`; `InputError` where there is nothing to draw."""
        if not folder.is_dir():
            raise InputError(f"--from {folder}: there is no such folder")
        found = cls(tuple(_runs(folder)), tuple(_profiles(folder)), tuple(_predictions(folder)), seed)
        if not (found.runs or found.profiles or found.predictions):
            raise InputError(
                f"--from {folder}: holds no run folder (about.json), no profile and no validation report"
            )
        return found

    def runs_of(self, mode: Mode) -> list[Run]:
        """The runs of one mode, measured ones before simulated ones, small batches first."""
        chosen = [run for run in self.runs if run.mode is mode]
        return sorted(chosen, key=lambda run: (run.origin is Origin.SIM, run.workload.batch_size, run.name))


def _origin_of(about: Mapping[str, Any]) -> Origin:
    return Origin.SIM if str(about.get("producer", "")).startswith("ssdsim.sim") else Origin.MEASURED


def _runs(folder: Path) -> Iterator[Run]:
    for path in sorted(folder.rglob("about.json")):
        about = _json(path)
        tables = any((path.parent / f"rounds{suffix}").is_file() for suffix in (".parquet", ".csv"))
        if tables and isinstance(about, dict) and "mode" in about and path.parent.suffix != ".partial":
            yield Run(path.parent, about)


def _profiles(folder: Path) -> Iterator[PairProfile]:
    for path in sorted(folder.rglob("*.json")):
        data = _json(path)
        if isinstance(data, dict) and "behaviours" in data and "costs" in data:
            yield validate(PairProfile, in_current_schema(data, str(path)), source=str(path))


def _predictions(folder: Path) -> Iterator[Prediction]:
    for path in sorted(folder.rglob("*.json")):
        data = _json(path)
        if isinstance(data, dict) and data.get("verb") == "validate" and "points" in data:
            yield from _predictions_in(data, path)


def _predictions_in(report: Mapping[str, Any], path: Path) -> Iterator[Prediction]:
    try:
        origin = _origin_of(report["about"])
        for point in report["points"]:
            measured = point["measured"]
            for method, predicted in point["predicted"].items():
                for quantity in sorted(predicted.keys() & measured.keys()):
                    values = float(predicted[quantity]), float(measured[quantity])
                    yield Prediction(quantity, method, point["name"], *values, origin)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: is not a report of `ssdsim validate` ({error}); write it anew") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
