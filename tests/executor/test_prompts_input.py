"""Prompts: from a file, a data set or the project, and what a tokenizer makes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from executor.measure import requests_of
from executor.prompts_input import TokenPrompt, gather_prompts, tokenise
from ssdsim.errors import InputError
from ssdsim.measurement import Texts


def test_requests_differ_in_their_seeds_only_by_place() -> None:
    prompts = [TokenPrompt("a", "chat", (1, 2)), TokenPrompt("b", "code", (3,))]
    requests = requests_of(prompts, Texts(seed=7, max_tokens=4), 1.0, frozenset({0}))
    assert [request.seed for request in requests] == [7, 8]
    assert [request.prompt_kind for request in requests] == [0, 1]


def test_prompts_of_a_file_keep_their_kinds(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one", "kind": "a"}\n{"prompt": "two", "id": "second"}\n')
    prompts = gather_prompts(Texts(prompts=str(file), num_prompts=5))
    assert [(p.id, p.kind, p.prompt) for p in prompts] == [("1", "a", "one"), ("second", "other", "two")]


def test_a_broken_line_of_a_prompt_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(InputError, match='line 2: needs a non-empty string "prompt"'):
        gather_prompts(Texts(prompts=str(file)))


def offer_datasets(monkeypatch: pytest.MonkeyPatch, load_dataset: Callable[..., Any]) -> None:
    """A package `datasets` that does what is asked of it: the real one is an extra and wants a hub."""
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))  # type: ignore[arg-type]


def test_a_data_set_out_of_reach_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host\nand much more")

    offer_datasets(monkeypatch, fail)
    with pytest.raises(
        InputError, match=r"dataset: some/set \(split test\) cannot be read \(no route to host\); where"
    ):
        gather_prompts(Texts(dataset="some/set:test"))


def test_the_field_of_a_data_set_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"turn": "hello", "answer": "x"}, {"turn": "bye", "answer": "y"}]
    offer_datasets(monkeypatch, lambda name, part, split, streaming: iter(rows))
    prompts = gather_prompts(Texts(dataset="set:train:turn", num_prompts=1))
    assert [(p.kind, p.prompt) for p in prompts] == [("set", "hello")]
    with pytest.raises(InputError, match="its fields are answer, turn"):
        gather_prompts(Texts(dataset="set"))


def test_a_data_set_in_a_folder_is_named_without_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_datasets(monkeypatch, lambda *_, **__: iter([{"prompt": "why?"}]))
    folder = tmp_path / "questions"
    folder.mkdir()
    assert [prompt.kind for prompt in gather_prompts(Texts(dataset=f"{folder}:test"))] == ["questions"]


def test_a_configuration_of_a_data_set_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def rows(*what: object, split: str, streaming: bool) -> Iterator[dict[str, str]]:
        asked.append((*what, split))
        return iter([{"question": "why?"}])

    offer_datasets(monkeypatch, rows)
    gather_prompts(Texts(dataset="some/set@main:test"))
    gather_prompts(Texts(dataset="some/set"))
    assert asked == [("some/set", "main", "test"), ("some/set", None, "train")]


def test_a_chat_template_is_used_unless_raw_prompts_are_wanted() -> None:
    class Tokenizer:
        chat_template = "some"

        def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
            return f"<{messages[0]['content']}>"

        def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [ord(c) for c in text]}

    prompts = gather_prompts(Texts(num_prompts=1))[:1]
    chat, raw = (tokenise(prompts, Tokenizer(), raw=raw)[0].tokens for raw in (False, True))
    assert chat == (ord("<"), *raw, ord(">"))
