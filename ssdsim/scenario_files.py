"""From a file, a profile and overrides to a validated Scenario.

A scenario file is YAML, TOML or JSON (by suffix). An override is `path.to.field=value`, the value written as in
YAML; the path may be any unambiguous ending of the full one (`batch_size=8` for `workload.batch_size=8`), where a
field of the scenario goes before one of its pair; list items are addressed by number
(`pair.behaviours.0.acceptance.spread=0.1`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel

from ssdsim.catalog import DEFAULT_PROFILE, load_profile
from ssdsim.errors import InputError, ScenarioError
from ssdsim.profile import PairProfile
from ssdsim.scenario import Scenario
from ssdsim.schema import documents_in, tag_of, validate

FieldPath = tuple[str, ...]

_FAN_OUT_SIZES = frozenset({"budget", "per_position", "values"})


def load_scenario(path: Path | None = None, *, pair: str | None = None, overrides: Sequence[str] = ()) -> Scenario:
    """The scenario of a file (or the default one), with another profile and overrides applied."""
    data = read_document(path) if path is not None else {}
    if pair is not None:
        data["pair"] = pair
    return scenario_from(data, [parse_override(text) for text in overrides], source=str(path) if path else None)


def scenario_from(
    data: Mapping[str, Any], overrides: Sequence[tuple[str, Any]] = (), *, source: str | None = None
) -> Scenario:
    """Merge `overrides` (dotted path, value) into the plain data of a scenario and validate the result.

    Raises `ScenarioError` with every problem at once.
    """
    if not overrides:
        return validate(Scenario, {**data, "pair": _spelled_out(data.get("pair"))}, source=source)
    whole, problems = overridden(complete(data), overrides)
    try:
        scenario = validate(Scenario, whole, source=source)
    except ScenarioError as error:
        problems.extend(error.problems)
    if problems:
        raise ScenarioError(problems, source=source)
    return scenario


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario's plain data with all defaults filled in and the profile spelled out: what overrides address.

    The data may be invalid where an override mends it; what is wrong stays as it is, for validation to judge.
    """
    return _with_defaults(Scenario, {**data, "pair": _spelled_out(data.get("pair"))})


def overridden(whole: Mapping[str, Any], overrides: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The complete plain data `whole` with `overrides` (dotted path, value) applied, and what cannot be."""
    problems: list[str] = []
    settings: list[tuple[FieldPath, Any]] = []
    reached = dict(whole)
    for dotted, value in overrides:
        try:
            settings.append((resolve_path(reached, dotted), value))
            reached = assign(reached, settings[-1:])
        except InputError as error:
            problems.append(str(error))
    return assign(reached, settings), problems


def assign(whole: Mapping[str, Any], settings: Sequence[tuple[FieldPath, Any]]) -> dict[str, Any]:
    """A copy of the complete plain data in which every path holds its value; later settings win.

    The name of a profile stands for the profile. A fan-out has one size: setting it in one way takes back the
    other ways, unless they are set as well.
    """
    result: Any = whole
    given = {path for path, _ in settings}
    for path, value in settings:
        result = with_value(result, path, _profile_data(value) if path == ("pair",) else value)
        if path[-1] in _FAN_OUT_SIZES and path[-2:-1] in {("fan_out",), ("fan_out_on_miss",)}:
            for other in _FAN_OUT_SIZES - {path[-1]}:
                if (*path[:-1], other) not in given:
                    result = with_value(result, (*path[:-1], other), None)
    return dict(result)


def parse_override(text: str) -> tuple[str, Any]:
    """`path=value` with the value read as YAML (numbers, lists, true/false, null, text)."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {text}: write path.to.field=value, for instance workload.batch_size=8")
    return path.strip(), parse_value(value, where=f"--set {path.strip()}")


def parse_value(text: str, *, where: str) -> Any:
    """One YAML value; `1e-3` is a number here, as everywhere outside YAML 1.1."""
    import yaml

    try:
        return float(text) if _is_exponent(text) else yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{where}: cannot read the value {text!r}; quote text, write lists as [1, 2]") from None


def read_document(path: Path) -> dict[str, Any]:
    """The mapping in a YAML, TOML or JSON file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(f"{path}: cannot read this file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file; a scenario is YAML, TOML or JSON") from None
    data = _parse_document(text, path)
    if not isinstance(data, dict):
        raise InputError(f"{path}: must hold a mapping of fields; got {type(data).__name__}")
    return data


def resolve_path(data: Mapping[str, Any], dotted: str) -> FieldPath:
    """The full path that `dotted` names: itself, or the only known path that ends with it.

    A field that is absent so far, below a part that is known, is taken as it stands: validation judges it.
    """
    wanted = tuple(dotted.split("."))
    known = list(known_paths(data))
    full = _completed(wanted, known, dotted)
    if full is not None:
        return full
    parent = _completed(wanted[:-1], known, dotted) if len(wanted) > 1 else None
    if parent is not None and isinstance(value_at(data, parent), dict | None):
        return (*parent, wanted[-1])
    close = get_close_matches(dotted, {".".join(path) for path in known}, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{dotted}: no such field{hint}")


def _completed(wanted: FieldPath, known: Sequence[FieldPath], dotted: str) -> FieldPath | None:
    """`wanted` if known, else the only known path that ends with it; `InputError` where there are several."""
    if wanted in known:
        return wanted
    endings = [path for path in known if path[-len(wanted) :] == wanted]
    endings = [path for path in endings if path[0] != "pair"] or endings
    if len(endings) > 1:
        choices = ", ".join(".".join(path) for path in endings[:6])
        raise InputError(f"{dotted}: ambiguous, it may mean {choices}; write the full path")
    return endings[0] if endings else None


def known_paths(data: Any, prefix: FieldPath = ()) -> Iterator[FieldPath]:
    """Every path in the plain data, inner nodes included."""
    items: Iterator[tuple[str, Any]] = iter(())
    if isinstance(data, Mapping):
        items = iter(data.items())
    elif isinstance(data, list | tuple):
        items = ((str(i), value) for i, value in enumerate(data))
    for key, value in items:
        path = (*prefix, str(key))
        yield path
        yield from known_paths(value, path)


def value_at(data: Any, path: FieldPath) -> Any:
    """The value at a full path."""
    for part in path:
        data = data[int(part)] if isinstance(data, list | tuple) else data[part]
    return data


def with_value(data: Any, path: FieldPath, value: Any) -> Any:
    """A copy of the plain data in which `path` holds `value`; what is not on the path is shared."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, list | tuple):
        if not head.isdigit() or int(head) >= len(data):
            raise InputError(f"{'.'.join(path)}: the list here has items 0 to {len(data) - 1}, none called {head!r}")
        copied = list(data)
        copied[int(head)] = with_value(copied[int(head)], rest, value)
        return copied
    base = data if isinstance(data, Mapping) else {}
    return {**base, head: with_value(base.get(head), rest, value)}


def _parse_document(text: str, path: Path) -> Any:
    import json
    import tomllib

    import yaml

    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix in {".yaml", ".yml"}:
            return yaml.safe_load(text) or {}
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from None
    raise InputError(f"{path}: a scenario file ends in .yaml, .toml or .json")


def _is_exponent(text: str) -> bool:
    mantissa, e, exponent = text.strip().lower().partition("e")
    return bool(e) and mantissa.lstrip("+-").replace(".", "", 1).isdigit() and exponent.lstrip("+-").isdigit()


def _spelled_out(pair: Any) -> Any:
    """The plain data of a profile that is given by name or path, or not at all."""
    reference = DEFAULT_PROFILE if pair is None else pair
    return load_profile(reference) if isinstance(reference, str) else reference


def _profile_data(pair: Any) -> Any:
    return _filled(PairProfile, _spelled_out(pair))


def _with_defaults(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the defaults of `model` for what it leaves out, also within the parts that it gives."""
    filled = dict(data)
    for name, field in model.model_fields.items():
        if name in data:
            filled[name] = _filled(field.annotation, data[name])
        elif not field.is_required() and name != "pair":
            filled[name] = _plain(field.get_default(call_default_factory=True))
    return filled


def _filled(annotation: Any, value: Any) -> Any:
    """`value` of a field, or of the items of a list, with the defaults of the document that it is."""
    choices = documents_in(annotation)
    if not choices or get_origin(annotation) is dict:
        return value
    if isinstance(value, list | tuple):
        return [_filled(annotation, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    fitting = choices if len(choices) == 1 else [c for c in choices if tag_of(c) == value.get("kind")]
    return _with_defaults(fitting[0], value) if len(fitting) == 1 else value


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
