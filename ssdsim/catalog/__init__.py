"""What ships with the package: pair profiles (JSON files in `profiles/`), each number with its provenance.

`load_profile` takes the name of an embedded profile or the path of a profile file.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from ssdsim.errors import InputError
from ssdsim.profile import in_current_schema

DEFAULT_PROFILE = "llama-3.1-70b"


def profile_names() -> list[str]:
    """Names of the embedded profiles, in alphabetical order."""
    folder = resources.files(__package__) / "profiles"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def load_profile(reference: str) -> dict[str, Any]:
    """The plain data of an embedded profile (by name) or of a profile file (by path ending in .json)."""
    if reference.endswith(".json"):
        return _parse(_read(Path(reference)), reference)
    names = profile_names()
    if reference not in names:
        raise InputError(
            f"pair: no embedded profile {reference!r}; choose one of {', '.join(names)}, or give a .json file"
        )
    text = (resources.files(__package__) / "profiles" / f"{reference}.json").read_text()
    return _parse(text, reference)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"pair: cannot read profile {path}: {error.strerror}") from None


def _parse(text: str, reference: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"pair: {reference} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"pair: {reference} must hold one JSON object; got {type(data).__name__}")
    return in_current_schema(data, reference)
