"""Records: columns that grow, and tables that survive a trip to disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy_scenarios import toy

from ssdsim.errors import InputError
from ssdsim.records import TABLES, ColumnBuffer, Records
from ssdsim.sim import simulate

COLUMNS = {"name": np.int32, "value": np.float64}


def test_a_buffer_grows_and_keeps_what_it_has() -> None:
    buffer = ColumnBuffer(COLUMNS, capacity=2)
    for start in range(0, 50, 5):
        buffer.extend(5, name=np.arange(start, start + 5), value=start / 2)
    assert len(buffer) == 50
    assert buffer.columns()["name"].tolist() == list(range(50))
    assert buffer.columns()["value"][-1] == 22.5


def test_a_view_of_a_buffer_outlives_its_growth() -> None:
    buffer = ColumnBuffer(COLUMNS, capacity=1)
    buffer.extend(1, name=7, value=0.5)
    before = buffer.columns()
    buffer.extend(1000, name=0, value=0.0)
    assert before["name"].tolist() == [7]


def test_room_can_be_made_beforehand() -> None:
    buffer = ColumnBuffer(COLUMNS, capacity=1)
    buffer.extend(1, name=7, value=0.5)
    buffer.reserve(100)
    first = buffer.columns()["name"].__array_interface__["data"]
    buffer.extend(99, name=1, value=0.0)
    assert buffer.columns()["name"].__array_interface__["data"] == first
    assert buffer.columns()["name"][0] == 7


def test_every_column_must_be_given() -> None:
    with pytest.raises(ValueError, match="value"):
        ColumnBuffer(COLUMNS).extend(1, name=1)


@pytest.fixture(scope="module")
def records() -> Records:
    return simulate(toy(output_tokens={"kind": "constant", "value": 20}, num_requests=10, batch_size=3)).records


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_tables_come_back_as_they_were_written(records: Records, suffix: str, tmp_path: Path) -> None:
    paths = records.write(tmp_path, suffix)
    assert [path.name for path in paths] == [f"{table}{suffix}" for table in TABLES]
    back = Records.read(tmp_path)
    assert back.about == records.about
    for table in TABLES:
        for name, column in getattr(records, table).columns().items():
            read = getattr(back, table).columns()[name]
            assert read.dtype == column.dtype
            np.testing.assert_array_equal(read, column)


def test_only_known_suffixes_are_written(records: Records, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        records.write(tmp_path, ".json")


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is it the folder of a run"):
        Records.read(tmp_path)


def test_other_columns_are_named(records: Records, tmp_path: Path) -> None:
    records.write(tmp_path, ".csv")
    rounds = tmp_path / "rounds.csv"
    rounds.write_text(rounds.read_text().replace("host_s", "hosting_s", 1))
    with pytest.raises(InputError, match="host_s, hosting_s"):
        Records.read(tmp_path)


@pytest.mark.parametrize("name", ["about.json", "rounds.parquet"])
def test_a_file_that_was_cut_off_is_named(records: Records, tmp_path: Path, name: str) -> None:
    records.write(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=rf"{name}: cannot be read .* remove the run's folder"):
        Records.read(tmp_path)


def test_frames_have_the_columns(records: Records) -> None:
    assert list(records.frame("outcomes").columns) == list(TABLES["outcomes"])
