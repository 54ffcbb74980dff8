"""Fixtures shared by every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_configure() -> None:
    """Hear Ctrl-C although a shell that started the tests in the background ignores it: programs under test inherit
    that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference data that lies beside the project; the test skips where it is absent."""
    if not _SHARED_DATA.is_dir():
        pytest.skip("reference data (../shared/data) is not beside this checkout")
    return _SHARED_DATA
