"""Entry points: how the executor and other packages add a method or a verb's work without being imported here.

Groups: `ssdsim.methods` (what `evaluate` asks, name `real`) and `ssdsim.verbs` (what `measure` runs). Used by
`evaluate` and by the command line.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ssdsim.errors import InputError

_DEPENDENCIES = frozenset({"torch", "transformers", "safetensors", "psutil"})
"""What the extra `executor` brings."""


def load_extension(group: str, name: str) -> Any:
    """The object behind an entry point.

    Raises InputError, saying what to install or remove, where it is not registered, where the executor's dependencies
    are absent, and where another distribution's package called `executor` hides ours.
    """
    found = tuple(entry_points(group=group, name=name))
    if not found:
        raise InputError(
            f"{name}: no installed package offers it; ssdsim's own metadata is stale or incomplete, install it "
            "again: pip install --force-reinstall --no-deps ssdsim"
        )
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise _explained(name, error) from error


def _explained(name: str, error: ImportError | AttributeError) -> Exception:
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if missing in _DEPENDENCIES:
        return InputError(f"{name}: needs {missing}; install it with: pip install 'ssdsim[executor]'")
    foreign = _foreign_executor()
    if foreign is not None:
        return InputError(
            f"{name}: another package called `executor` ({foreign}) hides ssdsim's own; remove it and install ssdsim "
            "again: pip uninstall executor && pip install --force-reinstall --no-deps ssdsim"
        )
    if missing == "executor":
        return InputError(f"{name}: ssdsim's package `executor` is missing; install it with: pip install ssdsim")
    return error


def _foreign_executor() -> str | None:
    """What the `executor` that Python finds belongs to, if not to this installation."""
    from importlib.metadata import packages_distributions
    from importlib.util import find_spec

    others = sorted(set(packages_distributions().get("executor", ())) - {"ssdsim"})
    if others:
        return f"distribution {others[0]}"
    spec = find_spec("executor")
    ours = Path(__file__).resolve().parents[1] / "executor" / "__init__.py"
    if spec is None or spec.origin is None or Path(spec.origin).resolve() == ours:
        return None
    return spec.origin
