"""Local processes, Ray and Dask for real: the same results whichever of them computes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from toy_scenarios import toy_pair

from ssdsim.errors import InputError
from ssdsim.evaluate import Method
from ssdsim.planning.engines import EngineKind, open_engine
from ssdsim.planning.plan import SweepPlan, make_plan
from ssdsim.planning.store import MemoryStore
from ssdsim.planning.sweep import run_sweep
from ssdsim.scenario_files import complete

pytestmark = pytest.mark.serial


def plan() -> SweepPlan:
    """Simulated, exact and printed rows, one of the points invalid."""
    workload = {"num_requests": 20, "output_tokens": 30}
    axes = ["batch_size=1,2,0", "run.seed=1,2"]
    return make_plan(
        complete({"pair": toy_pair(), "workload": workload}), axes, [Method.SIM, Method.EXACT, Method.PAPER]
    )


@pytest.fixture(scope="module")
def expected():
    with open_engine(EngineKind.LOCAL, 1) as engine:
        return run_sweep(plan(), MemoryStore(plan()), engine)


@pytest.mark.parametrize("kind", EngineKind)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_two_workers_of_every_engine_give_what_this_process_gives(kind: EngineKind, expected) -> None:
    if kind is not EngineKind.LOCAL:
        pytest.importorskip({"ray": "ray", "dask": "distributed"}[kind])
    with open_engine(kind, 2) as engine:
        table = run_sweep(plan(), MemoryStore(plan()), engine)
    assert table.keys() == expected.keys()
    assert expected["error"][0] is None
    for name, column in expected.items():
        np.testing.assert_array_equal(table[name], column, err_msg=name)
    assert table["status"].tolist().count("ok") == 12


def test_an_engine_needs_a_worker() -> None:
    with pytest.raises(InputError, match="--workers: must be at least 1"), open_engine(EngineKind.LOCAL, 0):
        pass


_WAITING_PARENT = """
import os, time
from ssdsim.planning.engines import EngineKind, open_engine
if __name__ == "__main__":
    with open_engine(EngineKind.LOCAL, 2) as engine:
        print(engine.submit(os.getpid).result(), flush=True)
        time.sleep(60)
"""


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_WAITING_PARENT)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(worker)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as status:
        return status.read().rpartition(")")[2].split()[0] != "Z"
