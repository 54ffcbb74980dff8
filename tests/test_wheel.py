"""The built wheel, not the checkout: an editable install hides a package or a data file that the wheel lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(folder)]
    done = subprocess.run([*build, str(PROJECT)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("ssdsim-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel unpacked: what an installation puts on the path."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the wheel's packages in front, started outside the checkout."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_wheel_holds_the_four_packages_and_their_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {
        "ssdsim",
        "executor",
        "experiments",
        "figures",
    }
    tracked = subprocess.run(
        ["git", "ls-files", "ssdsim", "executor", "experiments", "figures"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode == 0:
        assert set(tracked.stdout.split()) <= names


def test_the_command_runs_from_the_wheel(installed: Path) -> None:
    code = "import ssdsim, sys; from ssdsim.cli import main; sys.stderr.write(ssdsim.__file__); main()"
    done = run(installed, code, "evaluate", "--method", "exact", "--json")
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stderr
    rates = {a["mode"]: a["quantities"]["tokens_per_s"]["value"] for a in json.loads(done.stdout)["answers"]}
    assert rates["ar"] < rates["sd"] < rates["ssd"]


def test_the_built_in_pair_loads_from_the_wheel(installed: Path) -> None:
    code = "from executor.pairs import pair_paths; print(pair_paths('tiny').target)"
    done = run(installed, code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed)
