"""The command as a process of its own: what a shell, a pipe, Ctrl-C and `kill -9` see of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from toy_scenarios import toy_pair

pytestmark = pytest.mark.serial

SSDSIM = (sys.executable, "-c", "from ssdsim.cli import main; main()")
NUM_SEEDS = 16


def run(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SSDSIM, *args], capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


@pytest.fixture(scope="module")
def slow_sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Arguments of a sweep that takes a few seconds: long enough to be stopped in the middle."""
    path = tmp_path_factory.mktemp("slow") / "toy.json"
    workload = {"num_requests": 1000, "output_tokens": 150, "batch_size": 4}
    path.write_text(json.dumps({"pair": toy_pair(), "workload": workload}))
    return ("sweep", str(path), "--over", f"run.seed=1:{NUM_SEEDS}", "--method", "sim", "--workers", "2")


@pytest.fixture(scope="module")
def uninterrupted(slow_sweep: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    out = tmp_path_factory.mktemp("whole") / "s.parquet"
    assert run(*slow_sweep, "--out", str(out)).returncode == 0
    return pd.read_parquet(out)


def stop_in_the_middle(args: tuple[str, ...], out: Path, how: signal.Signals) -> tuple[int, str]:
    """Start a sweep, wait for its first finished rows, and stop it; its exit code and stderr."""
    parts = out.with_name(out.name + ".parts")
    command = [*SSDSIM, *args, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not list(parts.glob("*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.02)
        if how is signal.SIGINT:
            os.killpg(process.pid, how)  # as a terminal does: to the workers as well
        else:
            process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def finished_rows(out: Path) -> int:
    return sum(len(pd.read_parquet(part)) for part in out.with_name(out.name + ".parts").glob("*.parquet"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    slow_sweep: tuple[str, ...], uninterrupted: pd.DataFrame, tmp_path: Path, how: signal.Signals
) -> None:
    out = tmp_path / "s.parquet"
    code, stderr = stop_in_the_middle(slow_sweep, out, how)
    assert not out.exists()
    assert 0 < finished_rows(out) < NUM_SEEDS
    if how is signal.SIGINT:
        assert code == 130
        assert "--resume" in stderr
        assert "Traceback" not in stderr
    resumed = run(*slow_sweep, "--out", str(out), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    pd.testing.assert_frame_equal(pd.read_parquet(out), uninterrupted)


def test_stdout_is_one_json_document_even_when_there_is_much_to_say(tmp_path: Path) -> None:
    args = ("sweep", "--over", "batch_size=0,1,64", "--figure", "s.png", "--json")
    result = run(*args, cwd=tmp_path)
    assert result.returncode == 0
    assert len(json.loads(result.stdout)["rows"]) == 3
    assert "have no answer" in result.stderr
    assert "wrote s.png" in result.stderr


def test_quiet_leaves_stderr_to_errors() -> None:
    result = run("evaluate", "--method", "sim", "--set", "num_requests=20", "--set", "output_tokens=20", "--quiet")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("args", "code"),
    [(("catalog", "list"), 0), (("evaluate", "--set", "batch_size=0"), 2), (("evaluate", "--nonsense"), 2), ((), 2)],
)
def test_exit_codes(args: tuple[str, ...], code: int) -> None:
    assert run(*args).returncode == code


def test_a_reader_that_leaves_early_is_no_failure_worth_a_traceback() -> None:
    command = f"{sys.executable} -c 'from ssdsim.cli import main; main()' catalog show llama-3.1-70b | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout
    assert "Traceback" not in result.stderr


def test_help_imports_nothing_heavy() -> None:
    """numpy, pydantic, pandas and the rest are for the verbs that need them."""
    code = (
        "import sys\nfrom ssdsim.cli.app import app\n"
        "heavy = {'numpy', 'pydantic', 'pandas', 'pyarrow', 'matplotlib', 'scipy', 'simpy', 'torch', 'rich.table'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


def test_evaluate_needs_neither_pandas_nor_matplotlib_nor_the_simulator() -> None:
    code = (
        "import sys, contextlib, io\nfrom ssdsim.cli.app import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    app(['evaluate'])\n"
        "print(sorted({'pandas', 'pyarrow', 'matplotlib', 'simpy', 'torch', 'scipy.stats'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"
