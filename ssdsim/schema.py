"""What every validated document shares: strict frozen models, and errors that name the field and the remedy.

Scenario, profile, costs and distributions are built from `Document`. Nothing here knows what they mean.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ssdsim.errors import ScenarioError

PositiveInt = Annotated[int, Field(strict=True, ge=1)]
NonNegativeInt = Annotated[int, Field(strict=True, ge=0)]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


class Document(BaseModel):
    """A frozen part of a document; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


Model = TypeVar("Model", bound="Document")


def validate(model: type[Model], data: Any, *, source: str | None = None) -> Model:
    """Build `model` from plain data, or raise one `ScenarioError` that lists every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ScenarioError(describe_problems(error, model), source=source) from None


def describe_problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per problem: `path.to.field: what is allowed; got ...`."""
    return [_describe(item, model) for item in error.errors(include_url=False)]


def _describe(item: Any, model: type[BaseModel]) -> str:
    path = _readable_path(item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{path}: unknown field{_suggestion(item['loc'], model)}"
    if item["type"] == "missing":
        return f"{path}: this field is required"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if item["type"] in {"value_error", "assertion_error"}:
        return f"{path}: {message}" if path else message
    return f"{path}: {message}; got {_short(item['input'])}"


def _readable_path(loc: tuple[int | str, ...]) -> str:
    """Drop the tags that pydantic adds for tagged unions, which are no part of the user's document."""
    return ".".join(str(part) for part in loc if not (isinstance(part, str) and part.startswith("as-")))


def _suggestion(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    allowed = _fields_at(loc[:-1], model)
    if not allowed:
        return ""
    close = get_close_matches(str(loc[-1]), allowed, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"{hint} (allowed: {', '.join(sorted(allowed))})"


def _fields_at(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    current: Any = model
    for part in loc:
        fields = getattr(current, "model_fields", None)
        if fields is None or part not in fields:
            return []
        current = fields[str(part)].annotation
    return list(getattr(current, "model_fields", {}))


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
