"""What every validated document shares: strict frozen models, and errors that name the field and the remedy.

Scenario, profile, costs and distributions are built from `Document`. Nothing here knows what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ssdsim.errors import ScenarioError

PositiveInt = Annotated[int, Field(strict=True, ge=1)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


_WORDING = {
    "Input should be": "must be",
    "a valid dictionary or object to extract fields from": "a mapping of fields",
    "a valid tuple": "a list",
}


class Document(BaseModel):
    """A frozen part of a document; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Inconsistent(ValueError):
    """Several fields do not fit together; raised by validators, it carries one problem for each misfit."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


Model = TypeVar("Model", bound="Document")


def validate(model: type[Model], data: Any, *, source: str | None = None, prefix: str = "") -> Model:
    """Build `model` from plain data, or raise one `ScenarioError` that lists every problem.

    `prefix` is where `data` lies in the user's document, so that a part checked alone is named in full.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ScenarioError(describe_problems(error, model, data, prefix), source=source) from None


def describe_problems(error: ValidationError, model: type[BaseModel], data: Any, prefix: str = "") -> list[str]:
    """One line per problem of `data`: `path.to.field: what is allowed; got ...`."""
    by_path: dict[str, list[str]] = {}
    items = error.errors(include_url=False)
    for item in items:
        if item["type"] == "too_short" and any(_lies_below(other["loc"], item["loc"]) for other in items):
            continue  # the list is too short only because its items are refused
        path = ".".join(filter(None, (prefix, *_path_in(data, item["loc"]))))
        by_path.setdefault(path, []).extend(_messages(item, model))
    return [line for path, messages in by_path.items() for line in _lines(path, messages)]


def _lies_below(loc: tuple[int | str, ...], above: tuple[int | str, ...]) -> bool:
    return len(loc) > len(above) and loc[: len(above)] == above


def _lines(path: str, messages: list[str]) -> list[str]:
    """What spans fields names them itself; alternatives of one field (a number or a list) become one line."""
    if not path or messages[0].startswith(path):
        return messages
    heads, got, value = messages[0].partition("; got ")
    if len(messages) > 1 and all(message.endswith(got + value) for message in messages):
        heads = " or ".join(dict.fromkeys(message.removesuffix(got + value) for message in messages))
        return [f"{path}: {heads}{got}{value}"]
    return [f"{path}: {message}" for message in messages]


def _messages(item: Any, model: type[BaseModel]) -> Sequence[str]:
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, Inconsistent):
        return cause.problems
    if item["type"] == "extra_forbidden":
        return [f"unknown field{_suggestion(item['loc'], model)}"]
    if item["type"] == "missing":
        return ["this field is required"]
    message = item["msg"].removeprefix("Value error, ")
    for pydantic_words, ours in _WORDING.items():
        message = message.replace(pydantic_words, ours)
    return [message if item["type"] == "value_error" else f"{message}; got {_short(item['input'])}"]


def _path_in(data: Any, loc: tuple[int | str, ...]) -> list[str]:
    """The location in the user's document: without the names of alternatives that pydantic puts in between."""
    path: list[str] = []
    for position, part in enumerate(loc):
        is_last = position == len(loc) - 1
        if isinstance(data, Mapping) and (part in data or (is_last and data.get("kind") != part)):
            path.append(str(part))
            data = data.get(part)
        elif isinstance(data, list | tuple) and isinstance(part, int) and part < len(data):
            path.append(str(part))
            data = data[part]
    return path


def _suggestion(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    allowed = _fields_at(loc[:-1], model)
    if not allowed:
        return ""
    close = get_close_matches(str(loc[-1]), allowed, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(sorted(allowed))})"


def _fields_at(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The fields of the document at `loc`; list positions and names of alternatives are stepped over."""
    candidates = [model]
    for part in loc:
        holders = [m for m in candidates if part in m.model_fields]
        if holders:
            candidates = documents_in(holders[0].model_fields[str(part)].annotation)
        elif isinstance(part, str):
            candidates = [m for m in candidates if tag_of(m) == part] or candidates
    return list(candidates[0].model_fields) if len(candidates) == 1 else []


def documents_in(annotation: Any) -> list[type[BaseModel]]:
    """Every document type that occurs in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in get_args(annotation) for found in documents_in(inner)]


def tag_of(model: type[BaseModel]) -> object:
    """The `kind` by which a document is told from its alternatives; None where it has none."""
    kind = model.model_fields.get("kind")
    return kind.default if kind is not None else None


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
