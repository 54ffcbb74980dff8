"""What a sweep has finished is never lost: parts on disk, resuming, and the three kinds of files."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from toy_scenarios import toy_pair

from ssdsim.errors import InputError, RunError
from ssdsim.evaluate import Method
from ssdsim.planning.engines import EngineKind, open_engine
from ssdsim.planning.plan import SweepPlan, make_plan
from ssdsim.planning.store import FileStore, MemoryStore, read_results
from ssdsim.planning.sweep import run_sweep
from ssdsim.scenario_files import complete

AXES = ("batch_size=1,2,4", "num_speculative_tokens=2,-1")


def plan_of(*axes: str, methods=(Method.PAPER,)) -> SweepPlan:
    data = complete(
        {"pair": toy_pair(), "workload": {"output_tokens": None}, "drafting": {"fallback": {"kind": "none"}}}
    )
    return make_plan(data, axes or AXES, methods)


def run(plan: SweepPlan, store, engine=None, on_progress: Callable[[int], None] = lambda _: None):
    if engine is not None:
        return run_sweep(plan, store, engine, on_progress)
    with open_engine(EngineKind.LOCAL, 1) as here:
        return run_sweep(plan, store, here, on_progress)


class Interrupted:
    """An engine that is interrupted (or whose worker dies) at a given task."""

    num_workers = 1

    def __init__(self, after: int, error: BaseException) -> None:
        self.left, self.error = after, error

    def submit(self, function, *args) -> Future:
        if self.left == 0:
            raise self.error
        self.left -= 1
        future: Future = Future()
        future.set_result(function(*args))
        return future


@pytest.fixture
def one_row_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssdsim.planning.sweep._ROWS_PER_TASK", {Method.PAPER: 1})


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(
        pd.Series(first[name]).equals(pd.Series(second[name])) for name in first
    )


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_every_kind_of_file_holds_the_whole_table_and_what_it_came_from(tmp_path: Path, suffix: str) -> None:
    plan, out = plan_of(), tmp_path / f"sweep{suffix}"
    table = run(plan, FileStore(plan, out))
    assert equal(table, run(plan, MemoryStore(plan)))
    written = read_results(out)
    assert list(written) == list(table)
    np.testing.assert_allclose(written["tokens_per_s"].astype(float), table["tokens_per_s"])
    assert written["status"].tolist() == ["ok", "invalid"] * 3
    about = json.loads((tmp_path / f"sweep{suffix}.about.json").read_text())
    assert about["fingerprint"] == plan.fingerprint
    assert about["scenario"]["pair"]["name"] == "toy"
    assert about["over"] == [{"workload.batch_size": [1, 2, 4]}, {"drafting.num_speculative_tokens": [2, -1]}]
    assert {path.name for path in tmp_path.iterdir()} == {out.name, f"{out.name}.about.json"}


def test_an_interrupted_sweep_keeps_every_finished_row_and_computes_only_the_rest(
    tmp_path: Path, one_row_per_task: None
) -> None:
    plan, out = plan_of(), tmp_path / "s.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(plan, FileStore(plan, out), Interrupted(4, KeyboardInterrupt()))
    assert not out.exists()
    store, computed = FileStore(plan, out, resume=True), []
    assert store.finished_rows().tolist() == [0, 1, 2, 3]
    table = run(plan, store, on_progress=computed.append)
    assert computed == [1, 1]
    assert equal(table, run(plan, MemoryStore(plan)))


def test_when_a_worker_dies_the_finished_rows_are_kept_too(tmp_path: Path, one_row_per_task: None) -> None:
    plan, out = plan_of(), tmp_path / "s.csv"
    with pytest.raises(RunError, match=r"a worker died.*--resume"):
        run(plan, FileStore(plan, out), Interrupted(2, BrokenProcessPool("killed")))
    assert FileStore(plan, out, resume=True).finished_rows().tolist() == [0, 1]


def test_a_part_that_was_being_written_does_not_count(tmp_path: Path, one_row_per_task: None) -> None:
    plan, out = plan_of(), tmp_path / "s.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(plan, FileStore(plan, out), Interrupted(3, KeyboardInterrupt()))
    (tmp_path / "s.parquet.parts" / "unfinished").write_bytes(b"PAR1 half a part")
    assert equal(run(plan, FileStore(plan, out, resume=True)), run(plan, MemoryStore(plan)))


def test_rows_that_were_computed_twice_count_once(tmp_path: Path, one_row_per_task: None) -> None:
    plan, out = plan_of(), tmp_path / "s.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(plan, FileStore(plan, out), Interrupted(3, KeyboardInterrupt()))
    (part,) = (tmp_path / "s.parquet.parts").glob("*.parquet")
    (part.parent / "000007.parquet").write_bytes(part.read_bytes())
    assert equal(run(plan, FileStore(plan, out, resume=True)), run(plan, MemoryStore(plan)))


def test_resuming_a_finished_sweep_reads_it(tmp_path: Path) -> None:
    plan, out = plan_of(), tmp_path / "s.parquet"
    table = run(plan, FileStore(plan, out))
    computed: list[int] = []
    assert equal(run(plan, FileStore(plan, out, resume=True), on_progress=computed.append), table)
    assert computed == []


def test_an_unfinished_sweep_is_not_overwritten_and_not_mixed_with_another(
    tmp_path: Path, one_row_per_task: None
) -> None:
    plan, out = plan_of(), tmp_path / "s.parquet"
    with pytest.raises(KeyboardInterrupt):
        run(plan, FileStore(plan, out), Interrupted(3, KeyboardInterrupt()))
    with pytest.raises(InputError, match=r"an unfinished sweep.*--resume or delete"):
        FileStore(plan, out)
    with pytest.raises(InputError, match="belongs to another sweep"):
        FileStore(plan_of("batch_size=1,2"), out, resume=True)


def test_a_finished_file_of_another_sweep_is_computed_anew(tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    run(plan_of(), FileStore(plan_of(), out))
    other = plan_of("batch_size=8")
    assert len(run(other, FileStore(other, out, resume=True))["status"]) == 1


@pytest.mark.parametrize(
    ("name", "complaint"), [("s.xlsx", "must end in .parquet"), ("none/s.csv", "there is no folder")]
)
def test_a_file_that_cannot_be_written_is_refused_before_the_sweep(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint.replace(".", r"\.")):
        FileStore(plan_of(), tmp_path / name)


def test_what_is_no_results_file_is_refused(tmp_path: Path) -> None:
    for name in ("s.parquet", "s.json"):
        (tmp_path / name).write_text("nonsense")
        with pytest.raises(InputError, match="not a sweep's results"):
            read_results(tmp_path / name)
