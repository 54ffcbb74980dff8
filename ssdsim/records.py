"""The three tables that the simulator and the executor both emit, column by column.

- `ROUND_COLUMNS`: one row per round of a batch, with every term of the round
- `OUTCOME_COLUMNS`: one row per request and round
- `REQUEST_COLUMNS`: one row per finished request

Tables are columnar: no Python object per row. Round t begins when the speculator answers the outcomes of round t-1:
`num_hits`, `num_misses` and an outcome row's `source` tell how the round's speculations came about; its `lookup`
tells how the look-up of the outcome reached IN that round ended (`final` where the request ended and nothing was
looked up).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ssdsim.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


class Source(IntEnum):
    """How a speculation came about."""

    AR = 0
    FIRST = 1
    """Drafted just in time in the first round of a request: neither hit nor miss."""
    HIT = 2
    JIT = 3
    NGRAM = 4
    NONE = 5
    RANDOM = 6
    SD = 7


class Lookup(IntEnum):
    """How the look-up of an outcome ended."""

    NOT_MADE = 0
    """AR and SD have no cache."""
    HIT = 1
    MISS = 2
    FINAL = 3


class Fallback(IntEnum):
    """What a round's misses were answered with."""

    NOT_NEEDED = 0
    JIT = 1
    NONE = 2
    RANDOM = 3
    NGRAM = 4


class FinishReason(IntEnum):
    LENGTH = 0
    STOP = 1
    ABORTED = 2


ROUND_COLUMNS: dict[str, DTypeLike] = {
    "round": np.int64,
    "start_s": np.float64,
    "round_s": np.float64,
    "batch_size": np.int32,
    "num_query_tokens": np.int32,
    "context_tokens": np.float64,
    "num_branches": np.int32,
    "num_hits": np.int32,
    "num_misses": np.int32,
    "num_first": np.int32,
    "fallback": np.int8,
    "lookup_s": np.float64,
    "fallback_s": np.float64,
    "reply_s": np.float64,
    "verify_s": np.float64,
    "accept_s": np.float64,
    "outcome_s": np.float64,
    "glue_s": np.float64,
    "tree_s": np.float64,
    "store_s": np.float64,
    "host_s": np.float64,
    "prefill_s": np.float64,
    "verifier_wait_s": np.float64,
    "speculator_wait_s": np.float64,
}
"""A round lasts from its look-up to the next round's:

    round_s = prefill_s + lookup_s + fallback_s + window_s + build_wait_s + host_s,
    window_s = reply_s + verify_s + accept_s + outcome_s

where `build_wait_s` (no column) is what a late build adds, and `prefill_s` what reading the prompts of newly admitted
requests adds, beyond what the speculator did meanwhile. `fallback_s` is all drafting that the verifier waits for:
SSD's misses and first rounds, SD's whole drafting. `glue_s`, `tree_s` and `store_s` run beside the window.
`verifier_wait_s` lasts from the start of the round until the reply leaves, so a round's tokens are out at start_s +
verifier_wait_s + reply_s + verify_s + accept_s; `speculator_wait_s` is how long a finished build waits for the
outcomes. AR and SD have no reply, no look-up and no build."""

OUTCOME_COLUMNS: dict[str, DTypeLike] = {
    "round": np.int64,
    "request_id": np.int64,
    "source": np.int8,
    "lookup": np.int8,
    "num_proposed": np.int16,
    "num_accepted": np.int16,
    "num_emitted": np.int16,
    "fan_out_here": np.int16,
    "bonus_rank": np.int32,
}
"""`bonus_rank` is the bonus token's rank among the candidates of its position (1 the best, the rejected token not
counted), so that a hit takes a fan-out of at least that; -1 where it is not known. `fan_out_here` is how many
candidates were cached there."""

REQUEST_COLUMNS: dict[str, DTypeLike] = {
    "request_id": np.int64,
    "prompt_kind": np.int16,
    "arrival_s": np.float64,
    "admitted_s": np.float64,
    "first_token_s": np.float64,
    "finish_s": np.float64,
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
    "num_rounds": np.int32,
    "num_hits": np.int32,
    "num_misses": np.int32,
    "num_proposed": np.int32,
    "num_accepted": np.int32,
    "finish_reason": np.int8,
}

TABLES: dict[str, dict[str, DTypeLike]] = {
    "rounds": ROUND_COLUMNS,
    "outcomes": OUTCOME_COLUMNS,
    "requests": REQUEST_COLUMNS,
}


class ColumnBuffer:
    """A table that grows by blocks of rows; appending costs no Python object per row."""

    def __init__(self, columns: Mapping[str, DTypeLike], capacity: int = 1024) -> None:
        self._columns = {name: np.empty(capacity, dtype=dtype) for name, dtype in columns.items()}
        self._capacity = capacity
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, count: int, **values: ArrayLike) -> None:
        """Append `count` rows; every column must be given, as an array of `count` values or a scalar."""
        if values.keys() != self._columns.keys():
            missing = ", ".join(sorted(self._columns.keys() ^ values.keys()))
            raise ValueError(f"columns differ from the table's: {missing}")
        end = self._size + count
        if end > self._capacity:
            self._grow(max(end, 2 * self._capacity))
        for name, column in values.items():
            self._columns[name][self._size : end] = column
        self._size = end

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` rows, so that extending up to there copies nothing."""
        if capacity > self._capacity:
            self._grow(capacity)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Views of the filled part of every column."""
        return {name: column[: self._size] for name, column in self._columns.items()}

    def _grow(self, capacity: int) -> None:
        self._capacity = capacity
        for name, column in self._columns.items():
            larger = np.empty(self._capacity, dtype=column.dtype)
            larger[: self._size] = column[: self._size]
            self._columns[name] = larger


class Records:
    """The three tables of one run, with what identifies it (scenario, seed, versions) in `about`."""

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.about: dict[str, Any] = dict(about or {})
        self.rounds = ColumnBuffer(ROUND_COLUMNS)
        self.outcomes = ColumnBuffer(OUTCOME_COLUMNS)
        self.requests = ColumnBuffer(REQUEST_COLUMNS)

    def frame(self, table: str) -> pd.DataFrame:
        """One of `rounds`, `outcomes`, `requests` as a pandas frame."""
        import pandas as pd

        buffer: ColumnBuffer = getattr(self, table)
        return pd.DataFrame(buffer.columns())

    def write(self, folder: Path, suffix: str = ".parquet") -> list[Path]:
        """Write the three tables and `about.json` into `folder`; suffix `.parquet` or `.csv`."""
        import json

        if suffix not in {".parquet", ".csv"}:
            raise InputError(f"suffix: tables are written as .parquet or .csv; got {suffix!r}")
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{table}{suffix}" for table in TABLES]
        for table, path in zip(TABLES, paths, strict=True):
            frame = self.frame(table)
            if suffix == ".csv":
                frame.to_csv(path, index=False)
            else:
                frame.to_parquet(path, index=False)
        (folder / "about.json").write_text(json.dumps(self.about, indent=1, sort_keys=True) + "\n")
        return paths

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Read what `write` wrote; `InputError` names the file that is missing, broken or has other columns."""
        records = cls(_read_about(folder / "about.json"))
        for table, columns in TABLES.items():
            path = next((p for s in (".parquet", ".csv") if (p := folder / f"{table}{s}").is_file()), None)
            if path is None:
                raise InputError(f"{folder}: no {table}.parquet or {table}.csv here; is it the folder of a run?")
            frame = _read_frame(path)
            if set(frame.columns) != set(columns):
                differing = ", ".join(sorted(set(frame.columns) ^ set(columns)))
                raise InputError(f"{path}: columns differ from this version's: {differing}")
            getattr(records, table).extend(len(frame), **{name: frame[name].to_numpy() for name in columns})
        return records


def _read_about(path: Path) -> dict[str, Any] | None:
    import json

    if not path.is_file():
        return None
    try:
        about = json.loads(path.read_text())
    except ValueError as error:
        raise _broken(path, error) from error
    if not isinstance(about, dict):
        raise InputError(f"{path}: not a JSON object; remove the run's folder and make it again")
    return about


def _read_frame(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError) as error:  # pyarrow's errors are ValueErrors
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> InputError:
    why = str(error).partition("\n")[0]
    return InputError(f"{path}: cannot be read ({why}); remove the run's folder and make it again")
