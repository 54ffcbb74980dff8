"""`ssdsim catalog`: the embedded profiles, and where each of their numbers comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ssdsim.cli.options import AsJson, Quiet
from ssdsim.cli.output import print_json, print_line, print_table

EXAMPLE = "Example: ssdsim catalog show llama-3.1-70b"


def register(app: typer.Typer) -> None:
    """Add the verb with its two parts."""
    verbs = typer.Typer(help="The embedded profiles, and where their numbers come from.", no_args_is_help=True)
    verbs.command("list", epilog="Example: ssdsim catalog list --json")(list_profiles)
    verbs.command("show", epilog=EXAMPLE)(show_profile)
    app.add_typer(verbs, name="catalog", epilog=EXAMPLE)


def list_profiles(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the embedded profiles."""
    from ssdsim.catalog import DEFAULT_PROFILE, profile_names

    profiles = {name: _profile(name) for name in profile_names()}
    if as_json:
        print_json(
            {"verb": "catalog list", "default": DEFAULT_PROFILE, "profiles": [_entry(p) for p in profiles.values()]}
        )
        return
    rows = [
        [f"{name} (default)" if name == DEFAULT_PROFILE else name, p.target, p.draft, p.summary]
        for name, p in profiles.items()
    ]
    print_table("embedded profiles", ["name", "target", "draft", "what it is"], rows, words=4)


def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="An embedded profile or a profile file.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show a profile: every number with its origin and the range in which it may lie."""
    profile = _profile(name)
    if as_json:
        print_json({"verb": "catalog show", "profile": profile.model_dump(mode="json")})
        return
    hardware = profile.hardware
    print_line(profile.summary)
    print_line(
        f"target {profile.target} on {hardware.target_tp} {hardware.target_device}, "
        f"draft {profile.draft} on {hardware.draft_tp} {hardware.draft_device}"
    )
    limits = {name: value for name, value in profile.limits.model_dump().items() if value is not None}
    print_line(f"calibrated range: {', '.join(f'{k} {v}' for k, v in limits.items()) or 'not stated'}")
    data = profile.model_dump(mode="json")
    rows = []
    for path, origin in sorted(profile.provenance.items()):
        bounds = profile.ranges.get(path)
        between = f"{bounds.low:g} .. {bounds.high:g}" if bounds is not None else ""
        rows.append([path, _shown(data, path), between, origin.kind, origin.source])
    print_table("where the numbers come from", ["field", "value", "range", "kind", "source"], rows, words=5)


def _profile(name: str) -> Any:
    from ssdsim.catalog import load_profile
    from ssdsim.profile import PairProfile
    from ssdsim.schema import validate

    return validate(PairProfile, load_profile(name), source=name)


def _entry(profile: Any) -> dict[str, Any]:
    return profile.model_dump(mode="json", include={"name", "summary", "target", "draft", "hardware", "limits"})  # type: ignore[no-any-return]


def _shown(data: Any, path: str) -> str:
    """The value at a path where it is a number or a few; how much there is where it is a whole part."""
    from ssdsim.scenario_files import value_at

    try:
        value = value_at(data, tuple(path.split(".")))
    except (KeyError, IndexError, ValueError, TypeError):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        return ", ".join(f"{item:.3g}" for item in value[:8]) + (", ..." if len(value) > 8 else "")
    if isinstance(value, dict | list):
        return f"({len(value)} fields)" if isinstance(value, dict) else f"({len(value)} entries)"
    return str(value)
