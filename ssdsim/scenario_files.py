"""From a file, a profile and overrides to a validated Scenario.

A scenario file is YAML, TOML or JSON (by suffix). An override is `path.to.field=value`, the value written as in YAML;
the path may be any unambiguous ending of the full one (`batch_size=8` for `workload.batch_size=8`), list items are
addressed by number (`pair.behaviours.0.acceptance.spread=0.1`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ssdsim.catalog import DEFAULT_PROFILE, load_profile
from ssdsim.errors import InputError, ScenarioError
from ssdsim.scenario import Scenario
from ssdsim.schema import validate

FieldPath = tuple[str, ...]


def load_scenario(
    path: Path | None = None, *, pair: str | None = None, overrides: Sequence[str] = ()
) -> Scenario:
    """The scenario of a file (or the default one), with another profile and overrides applied, validated at once."""
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
        return validate(Scenario, dict(data), source=source)
    whole = complete(data, source=source)
    problems = []
    for dotted, value in overrides:
        try:
            whole = with_value(whole, resolve_path(whole, dotted), value)
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise ScenarioError(problems, source=source)
    return validate(Scenario, whole, source=source)


def complete(data: Mapping[str, Any], *, source: str | None = None) -> dict[str, Any]:
    """The scenario's plain data with every default filled in and the profile spelled out: what overrides address.

    The file itself may be invalid where an override mends it, so defaults come from below the file's own values.
    """
    base = Scenario.model_construct()
    defaults = {name: _plain(getattr(base, name)) for name in Scenario.model_fields if name != "pair"}
    reference = data.get("pair", DEFAULT_PROFILE)
    pair = load_profile(reference) if isinstance(reference, str) else reference
    merged = _merge(defaults, {name: value for name, value in data.items() if name != "pair"})
    return {**merged, "pair": pair}


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
    """The full path that `dotted` names: itself, or the only known path that ends with it."""
    wanted = tuple(dotted.split("."))
    known = list(known_paths(data))
    if wanted in known:
        return wanted
    endings = [path for path in known if path[-len(wanted) :] == wanted]
    if len(endings) == 1:
        return endings[0]
    if endings:
        choices = ", ".join(".".join(path) for path in endings[:6])
        raise InputError(f"{dotted}: ambiguous, it may mean {choices}; write the full path")
    if (parent := wanted[:-1]) in known and isinstance(value_at(data, parent), dict):
        return wanted  # a field that is absent so far, such as one of another kind of curve; validation judges it
    close = get_close_matches(dotted, {".".join(path) for path in known}, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise InputError(f"{dotted}: no such field{hint}")


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
    """A copy of the plain data in which `path` holds `value`; what is not on the path is shared, not copied."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(data, list | tuple):
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


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings are merged, everything else replaced; a tagged mapping of another kind replaces the whole."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        same_kind = nested and value.get("kind", below.get("kind")) == below.get("kind")
        merged[key] = _merge(below, value) if nested and same_kind else value
    return merged
