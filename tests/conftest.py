"""Fixtures shared by every test."""

from __future__ import annotations

from pathlib import Path

import pytest

_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data that lies beside the project; the test skips where it is absent."""
    if not _SHARED_DATA.is_dir():
        pytest.skip("reference data (../shared/data) is not beside this checkout")
    return _SHARED_DATA
