"""Where a sweep keeps what it has finished, so that nothing finished is lost.

While it runs, results go into numbered part files in the folder `OUT.parts`, each written under another name and then
renamed: a part is there completely or not at all. `--resume` reads which rows they hold. At the end the parts become
one file, Parquet, CSV or JSON by its suffix, with `OUT.about.json` beside it, and the folder goes.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import InputError
from ssdsim.planning.plan import SweepPlan
from ssdsim.planning.results import Columns, from_arrow, from_plain_rows, joined, plain_rows, to_arrow, whole_table

SUFFIXES = (".parquet", ".csv", ".json")

_FLUSH_AFTER_S = 0.5
"""Finished rows wait at most this long in memory (until the next one finishes)."""


class Store(Protocol):
    """Takes finished pieces."""

    def finished_rows(self) -> NDArray[np.int64]:
        """Rows that need not be computed any more."""

    def append(self, piece: Columns) -> None: ...

    def flush(self) -> None:
        """Keep what has been appended even if the process ends now."""

    def finish(self) -> Columns:
        """The whole table; to be called once all rows are there."""


class MemoryStore:
    """Keeps the results in memory only."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._pieces: list[Columns] = []

    def finished_rows(self) -> NDArray[np.int64]:
        return np.empty(0, dtype=np.int64)

    def append(self, piece: Columns) -> None:
        self._pieces.append(piece)

    def flush(self) -> None:
        """Memory is all there is."""

    def finish(self) -> Columns:
        return whole_table(self._plan, self._pieces)


class FileStore:
    """Keeps the results in part files and ends with one file; see the module's text."""

    def __init__(self, plan: SweepPlan, out: Path, *, resume: bool = False) -> None:
        """Raises `InputError` for an unknown suffix, parts in the way, or parts of another sweep."""
        if out.suffix not in SUFFIXES:
            raise InputError(f"--out {out}: the file must end in {', '.join(SUFFIXES)}")
        if not out.parent.is_dir():
            raise InputError(f"--out {out}: there is no folder {out.parent}")
        self._plan, self._out = plan, out
        self._folder = out.with_name(out.name + ".parts")
        self._about = out.with_name(out.name + ".about.json")
        self._waiting: list[Columns] = []
        self._flushed_at = time.monotonic()
        self.is_complete = False
        """Whether the finished file of this very sweep is there already."""
        if self._folder.exists():
            self._take_up(resume)
        elif resume and out.is_file() and self._fingerprint_in(self._about) == plan.fingerprint:
            self.is_complete = True
        else:
            self._start()

    def finished_rows(self) -> NDArray[np.int64]:
        import pyarrow.parquet as pq

        if self.is_complete:
            return np.arange(self._plan.num_rows)
        rows = [from_arrow(pq.read_table(part, columns=["row"]))["row"] for part in self._parts()]
        return np.unique(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)

    def append(self, piece: Columns) -> None:
        self._waiting.append(piece)
        if time.monotonic() - self._flushed_at >= _FLUSH_AFTER_S:
            self.flush()

    def flush(self) -> None:
        import pyarrow.parquet as pq

        if self._waiting:
            temporary = self._folder / "unfinished"
            pq.write_table(to_arrow(joined(self._waiting)), temporary, compression="none")
            temporary.rename(self._folder / f"{self._next_number:06d}.parquet")
            self._next_number += 1
            self._waiting = []
        self._flushed_at = time.monotonic()

    def finish(self) -> Columns:
        import pyarrow.parquet as pq

        if self.is_complete:
            return read_results(self._out)
        written = [from_arrow(pq.read_table(part)) for part in self._parts()]
        table = whole_table(self._plan, [*written, *self._waiting])
        write_results(table, self._out, self._plan)
        self._about.write_text(self._description())
        shutil.rmtree(self._folder)
        return table

    def _start(self) -> None:
        self._folder.mkdir()
        self._next_number = 0
        (self._folder / "about.json").write_text(self._description())

    def _take_up(self, resume: bool) -> None:
        if not resume:
            raise InputError(
                f"--out {self._out}: an unfinished sweep lies in {self._folder}; "
                "continue it with --resume or delete that folder"
            )
        if self._fingerprint_in(self._folder / "about.json") != self._plan.fingerprint:
            raise InputError(
                f"--resume: {self._folder} belongs to another sweep (another scenario, other axes, methods "
                "or version); delete that folder or choose another --out"
            )
        parts = self._parts()
        self._next_number = int(parts[-1].stem) + 1 if parts else 0

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("*.parquet"))

    def _description(self) -> str:
        about = {"fingerprint": self._plan.fingerprint, **self._plan.about()}
        return json.dumps(about, indent=1, default=str) + "\n"

    def _fingerprint_in(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text()).get("fingerprint")
        except (OSError, ValueError):
            return None


def write_results(table: Columns, out: Path, plan: SweepPlan) -> None:
    """Write the whole table by the suffix of `out`, completely or not at all."""
    temporary = out.with_name(f".{out.name}.unfinished")
    if out.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(to_arrow(table), temporary)
    elif out.suffix == ".csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(to_arrow(table), temporary)
    else:
        document = {"about": plan.about(), "rows": plain_rows(table)}
        temporary.write_text(json.dumps(document, default=str) + "\n")
    temporary.rename(out)


def read_results(path: Path) -> Columns:
    """The table in a finished results file; raises `InputError` where it cannot be read."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            return from_arrow(pq.read_table(path))
        if path.suffix == ".csv":
            import pyarrow.csv

            return from_arrow(pyarrow.csv.read_csv(path))
        return from_plain_rows(json.loads(path.read_text())["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a sweep's results: {error}") from None
