"""The project's own prompts: twenty each of code, maths, chat and instructions, written for it.

Who uses it: `ssdsim measure` (these prompts are its default), the executor's tests, and the reports on the
built-in pairs. The same reader serves a user's file. Importing it needs the standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ssdsim.errors import InputError

PROMPTS_FILE = Path(__file__).with_name("prompts.jsonl")
KINDS = ("code", "maths", "chat", "instructions")
"""The kinds of the built-in prompts; a user's file may name others."""


class Prompt(NamedTuple):
    """One prompt and where it belongs."""

    id: str
    kind: str
    prompt: str


def read_prompts(path: Path = PROMPTS_FILE) -> list[Prompt]:
    """All prompts of a JSON-lines file with the fields `id`, `kind` and `prompt`, in its order.

    `id` and `kind` may be absent: they become the line's number and "other". Raises InputError, naming the line,
    where it is no such object, a prompt is empty, or an id repeats; and where the file is absent or has no prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"prompts: {path} cannot be read ({error}); give a JSON-lines file in UTF-8") from error
    prompts = list(_parse(path, text))
    if not prompts:
        raise InputError(f'prompts: {path} holds none; write one object per line, such as {{"prompt": "Hello"}}')
    return prompts


def select_prompts(prompts: list[Prompt], count: int) -> list[Prompt]:
    """The first `count` prompts when the kinds take turns, so that any number covers them evenly."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    longest = max(map(len, by_kind.values()), default=0)
    turns = [group[i] for i in range(longest) for group in by_kind.values() if i < len(group)]
    return turns[:count]


def _parse(path: Path, text: str) -> Iterator[Prompt]:
    seen: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        prompt = _prompt(f"{path}, line {number}", line, default_id=str(number))
        if prompt.id in seen:
            raise InputError(f"{path}, line {number}: the id {prompt.id!r} repeats; give every prompt its own")
        seen.add(prompt.id)
        yield prompt


def _prompt(where: str, line: str, default_id: str) -> Prompt:
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({str(error).partition(':')[0]}); write one object per line") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str) or not fields["prompt"]:
        raise InputError(f'{where}: needs a non-empty string "prompt"; got {line.strip()[:60]!r}')
    return Prompt(
        str(fields.get("id", default_id)), str(fields.get("kind", "other")), checked_text(where, fields["prompt"])
    )


def checked_text(where: str, text: str) -> str:
    """`text`; InputError where it is no Unicode text, which JSON's escapes and command lines allow to write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: holds {text[error.start]!r}, which is half a character; correct the text"
        ) from error
    return text
