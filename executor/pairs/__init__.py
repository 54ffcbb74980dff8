"""The model pairs that come with the project, and the scripts that made them.

Who uses it: the executor's model loader (`pair_paths` turns a pair's name into directories that transformers can
load), `ssdsim measure` (`executor.pairs.prompts`) and the tests. Importing this package imports neither torch nor
transformers.

    corpus           the training text of `tiny`: the running interpreter's standard library
    training         one optimiser loop for every model trained here: checkpoints, exact resume, loss curve
    teacher          what a target says about text (its top-k probabilities), logged while it writes that text
    distillation     losses and agreement measures between a draft and a logged target
    train_tiny       trains, exports and measures the pair `tiny`
    smollm2          finds, dequantises and caches SmolLM2-135M-Instruct; loads the pair `smollm2`
    reduced_head     a draft that shares its target's embedding and predicts only frequent tokens
    train_smollm2    logs the target's text, distils and measures the draft of `smollm2`
    prompts          the project's own prompts in four kinds
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ssdsim.errors import InputError

PAIRS_DIR = Path(__file__).resolve().parent


class PairPaths(NamedTuple):
    """Where one pair lies on disk; each path is a directory."""

    target: Path
    draft: Path
    tokenizer: Path


BUILT_IN = {
    "tiny": "14.1 M / 1.3 M parameters, trained here from the Python standard library; needs nothing else",
    "smollm2": "SmolLM2-135M-Instruct; its draft is distilled by train_smollm2; needs the extra `smollm2`",
}
"""Every built-in pair and what it is, one line each."""


def pair_paths(name: str) -> PairPaths:
    """The directories of the built-in pair `name`; for `smollm2` the target is dequantised into a cache first.

    Raises InputError for an unknown name, for files missing from the installation, and, for `smollm2`, where the
    package that carries its weights is not installed or its draft has not been distilled.
    """
    if name not in BUILT_IN:
        raise InputError(f"pair: {name!r} is not built in; choose one of {', '.join(sorted(BUILT_IN))}")
    if name == "smollm2":
        from executor.pairs.smollm2 import smollm2_paths

        return smollm2_paths()
    root = PAIRS_DIR / name
    paths = PairPaths(target=root / "target", draft=root / "draft", tokenizer=root)
    for directory in (paths.target, paths.draft):
        if not (directory / "model.safetensors").is_file():
            raise InputError(f"pair {name!r}: {directory / 'model.safetensors'} is missing; reinstall ssdsim")
    return paths
