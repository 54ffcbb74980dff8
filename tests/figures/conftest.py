"""Results shared by the tests of the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from results_folder import write_profile, write_run

from figures.inputs import Results
from ssdsim.scenario import Mode


@pytest.fixture(scope="session")
def measured_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AR, SD and SSD runs that pass for measured ones, at batch 1 and 4, with the profile that predicts them."""
    folder = tmp_path_factory.mktemp("measured")
    for mode in Mode:
        for batch_size in (1, 4):
            write_run(folder, mode, batch_size, measured=True, replayed=mode is Mode.SSD)
    write_profile(folder)
    return folder


@pytest.fixture(scope="session")
def measured(measured_folder: Path) -> Results:
    """The same as read by the figures."""
    return Results.read(measured_folder)
