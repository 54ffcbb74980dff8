"""Entry points that are absent, broken or hidden lead to one message with the remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from ssdsim import extensions
from ssdsim.errors import InputError
from ssdsim.extensions import load_extension

Offer = Callable[[str], None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Let one entry point, `verb` of the group `some.group`, be the only one that is installed."""

    def install(value: str) -> None:
        point = EntryPoint(name="verb", value=value, group="some.group")
        monkeypatch.setattr(extensions, "entry_points", lambda **wanted: EntryPoints([point]).select(**wanted))

    return install


def test_what_is_registered_is_loaded(offer: Offer) -> None:
    offer("json:dumps")
    assert load_extension("some.group", "verb")([1]) == "[1]"


def test_what_is_not_registered_says_what_to_install(offer: Offer) -> None:
    offer("json:dumps")
    with pytest.raises(InputError, match=r"other: no installed package offers it; .* --no-deps ssdsim"):
        load_extension("some.group", "other")


def test_absent_dependencies_of_the_executor_are_named(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    offer("torch:tensor")
    with pytest.raises(InputError, match=r"verb: needs torch; .* 'ssdsim\[executor\]'"):
        load_extension("some.group", "verb")


def test_a_foreign_executor_is_recognised(offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package of that name exists on PyPI; found first, it lacks the module that the entry point names."""
    (tmp_path / "executor").mkdir()
    (tmp_path / "executor" / "__init__.py").write_text("")
    for name in [name for name in sys.modules if name.partition(".")[0] == "executor"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    offer("executor.measure:measure")
    with pytest.raises(InputError, match=r"another package called `executor` .* pip uninstall executor"):
        load_extension("some.group", "verb")
    for name in [name for name in sys.modules if name.partition(".")[0] == "executor"]:
        del sys.modules[name]  # not by monkeypatch, which would bring the foreign package back


def test_a_mistake_within_an_extension_is_not_explained_away(offer: Offer) -> None:
    offer("json:no_such_function")
    with pytest.raises(AttributeError, match="no_such_function"):
        load_extension("some.group", "verb")
