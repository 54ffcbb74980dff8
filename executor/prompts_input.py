"""Prompts in, token ids out: the project's own prompts, a user's file, or a data set of the Hugging Face hub.

Used by `executor.measure` and `executor.teacher_forced`.
"""

from __future__ import annotations

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from executor.machine import public_name
from executor.pairs.prompts import PROMPTS_FILE, Prompt, read_prompts, select_prompts
from ssdsim.errors import InputError
from ssdsim.measurement import BUILT_IN_PROMPTS, Texts

_PROMPT_FIELDS = ("prompt", "instruction", "question", "text")
"""Where a data set's prompt is looked for, in this order, unless its field is named."""
_DUMMY = "dummy:"


class TokenPrompt(NamedTuple):
    """A prompt as the models read it."""

    id: str
    kind: str
    tokens: tuple[int, ...]


def gather_prompts(texts: Texts) -> list[Prompt]:
    """`texts.num_prompts` prompts whose kinds take turns; all there are where there are fewer.

    Raises InputError where a file or a data set cannot be used, naming the line or the field.
    """
    if texts.dataset is not None:
        return _from_dataset(texts.dataset, texts.num_prompts)
    path = PROMPTS_FILE if texts.prompts == BUILT_IN_PROMPTS else Path(texts.prompts)
    return select_prompts(read_prompts(path), texts.num_prompts)


def prompts_digest(prompts: list[TokenPrompt]) -> str:
    """SHA-256 of what the models read."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(f"{prompt.kind} {' '.join(map(str, prompt.tokens))}\n".encode())
    return digest.hexdigest()


def tokenise(prompts: list[Prompt], tokenizer: Any, *, raw: bool) -> list[TokenPrompt]:
    """Token ids of every prompt, in the tokenizer's chat template where it has one and `raw` does not forbid it."""
    use_template = not raw and getattr(tokenizer, "chat_template", None) is not None
    return [TokenPrompt(p.id, p.kind, _ids(p, tokenizer, use_template)) for p in prompts]


def byte_tokens(prompts: list[Prompt], vocab_size: int) -> list[TokenPrompt]:
    """The prompts' bytes as token ids, for dummy models, which have no tokenizer and understand nothing anyway."""
    return [TokenPrompt(p.id, p.kind, tuple(b % vocab_size for b in p.prompt.encode())) for p in prompts]


def _ids(prompt: Prompt, tokenizer: Any, use_template: bool) -> tuple[int, ...]:
    if use_template:
        message = [{"role": "user", "content": prompt.prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        ids = tokenizer(prompt.prompt)["input_ids"]
    if not ids:
        raise InputError(f"prompts: {prompt.id!r} has no tokens in the model's vocabulary; remove it")
    return tuple(int(i) for i in ids)


def _from_dataset(spec: str, count: int) -> list[Prompt]:
    source, _, rest = spec.partition(":")
    split, _, field = rest.partition(":")
    name, _, part = source.partition("@")
    rows = _rows(name, part or None, split or "train", count)
    if not rows:
        raise InputError(f"dataset: {name} has no rows in split {split or 'train'}; name another, {name}:SPLIT")
    kind = public_name(name)
    return [Prompt(f"{kind}-{i}", kind, _text(row, field, name)) for i, row in enumerate(rows)]


def _rows(name: str, part: str | None, split: str, count: int) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            "dataset: needs the package datasets; install it with pip install 'ssdsim[datasets]'"
        ) from error
    try:
        return list(islice(load_dataset(name, part, split=split, streaming=True), count))
    except Exception as error:  # Whatever the hub, the network or the data set's own files raise.
        why = str(error).strip().partition("\n")[0]
        raise InputError(
            f"dataset: {name} (split {split}) cannot be read ({why}); where the hub is out of reach, "
            "save the prompts as JSON lines and give them with --prompts FILE"
        ) from error


def _text(row: dict[str, Any], field: str, name: str) -> str:
    found = [key for key in ((field,) if field else _PROMPT_FIELDS) if isinstance(row.get(key), str) and row[key]]
    if not found:
        raise InputError(
            f"dataset: {name} has no text in {field or ' or '.join(_PROMPT_FIELDS)}; its fields are "
            f"{', '.join(sorted(row))}; name one as --dataset {name}:SPLIT:FIELD"
        )
    return str(row[found[0]])
