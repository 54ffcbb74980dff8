"""A recipe is a frozen dataclass with defaults; its fields are the flags of a training script.

Who uses it: `train_tiny` and `train_smollm2`, so that no default is typed twice.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

RecipeT = TypeVar("RecipeT")


def parse_recipe(recipe_type: type[RecipeT], description: str, argv: list[str] | None) -> tuple[RecipeT, Path, Path]:
    """(recipe, work directory, output directory) from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--work", type=Path, required=True, help="checkpoints, logs and loss curves")
    parser.add_argument("--out", type=Path, required=True, help="the finished pair")
    fields: Any = dataclasses.fields(recipe_type)  # type: ignore[arg-type]
    for field in fields:
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default)
    flags = vars(parser.parse_args(argv))
    work, out = flags.pop("work"), flags.pop("out")
    out.mkdir(parents=True, exist_ok=True)
    return recipe_type(**flags), work, out
