"""A Llama in a GGUF file: its configuration and its tensors, read with the package `gguf` alone.

Who uses it: `executor.checkpoints` (a `.gguf` file as a model) and `executor.pairs.smollm2` (the pair's target).
Names and shapes come out as transformers has them. What GGUF can say and this reader does not know is refused, not
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ssdsim.errors import InputError

ARCHITECTURE = "llama"
_BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_DAMAGED = "copy the file again"
_OTHER_FORMAT = "take the model's safetensors instead"


class GgufEntry(NamedTuple):
    """One stored tensor: its name in the file, its bytes (mapped, not yet read) and their encoding."""

    name: str
    data: Any
    encoding: Any


class GgufModel(NamedTuple):
    """What the header of a file says; the tensors' bytes are read when asked for."""

    config: Any
    """A transformers LlamaConfig; many readers share it, so none may change it."""
    has_tokenizer: bool
    entries: tuple[GgufEntry, ...]


def read_header(path: Path) -> GgufModel:
    """The header of the file at `path`, read once while the file stays as it is: that takes seconds.

    Raises InputError where the file is missing, damaged or no Llama, or the package `gguf` is not installed.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"model: {path}: no such file; give the path of a .gguf file") from error
    return _read_header(path.absolute(), state.st_mtime_ns, state.st_size)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors by transformers' names, dequantised to fp32. Raises InputError as `read_header` does."""
    model = read_header(path)
    heads = {
        "self_attn.q_proj": model.config.num_attention_heads,
        "self_attn.k_proj": model.config.num_key_value_heads,
    }
    tensors: dict[str, Tensor] = {}
    for entry in model.entries:
        name = _name(entry.name)
        tensor = _dequantised(path, entry)
        num_heads = next((count for part, count in heads.items() if part in name), None)
        tensors[name] = tensor if num_heads is None else _unpermute(path, tensor, num_heads)
    return tensors


@lru_cache(maxsize=4)
def _read_header(path: Path, mtime_ns: int, size: int) -> GgufModel:
    """As `read_header`; the file's time and size only tell one state of it from the next."""
    reader = _open(path)
    entries = tuple(GgufEntry(entry.name, entry.data, entry.tensor_type) for entry in reader.tensors)
    try:
        config = _config(reader.fields, {entry.name: entry for entry in reader.tensors})
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # transformers and gguf raise what a field's type makes of their arithmetic
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: its header is not a usable configuration ({reason}); {_DAMAGED}") from error
    return GgufModel(config, "tokenizer.ggml.tokens" in reader.fields, entries)


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise InputError(f"{path}: the package gguf is not installed; run pip install 'ssdsim[smollm2]'") from error
    try:
        return GGUFReader(path)
    except Exception as error:  # a damaged file raises whatever the reader's arithmetic makes of it
        raise InputError(f"{path}: not readable as GGUF ({type(error).__name__}: {error}); {_DAMAGED}") from error


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig

    def optional(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    def field(name: str) -> Any:
        if name not in fields:
            raise InputError(f"its header has no {name}; {_DAMAGED}")
        return fields[name].contents()

    _check_variant(optional, tensors)
    return LlamaConfig(
        vocab_size=int(tensors["token_embd.weight"].shape[-1]),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=optional("llama.attention.head_count_kv"),
        head_dim=optional("llama.attention.key_length") or optional("llama.rope.dimension_count"),
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_theta=optional("llama.rope.freq_base") or 10_000.0,
        bos_token_id=optional("tokenizer.ggml.bos_token_id"),
        eos_token_id=optional("tokenizer.ggml.eos_token_id"),
        pad_token_id=optional("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
    )


def _check_variant(optional: Any, tensors: Mapping[str, Any]) -> None:
    """Refuse what this reader would have to ignore."""
    if (architecture := optional("general.architecture")) != ARCHITECTURE:
        raise InputError(f"its architecture {architecture!r} is not {ARCHITECTURE!r}; {_OTHER_FORMAT}")
    if "token_embd.weight" not in tensors:
        raise InputError(f"has no tensor 'token_embd.weight'; {_DAMAGED}")
    if unknown := sorted(name for name in tensors if _name(name) == ""):
        raise InputError(f"its tensor {unknown[0]!r} is of no plain Llama; {_OTHER_FORMAT}")
    scaling = optional("llama.rope.scaling.type") or "none"
    if scaling != "none" or optional("llama.rope.scale_linear") not in (None, 1.0):
        raise InputError(f"rope scaling ({scaling}) is not read from GGUF; {_OTHER_FORMAT}")
    head_dim, rotated = optional("llama.attention.key_length"), optional("llama.rope.dimension_count")
    if None not in (head_dim, rotated) and head_dim != rotated:
        raise InputError(f"rotates {rotated} of {head_dim} dimensions of a head; {_OTHER_FORMAT}")


def _name(name: str) -> str:
    """transformers' name of a tensor; empty where a plain Llama has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.weight"
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if block is None or kind not in {"weight", "bias"} or block[2] not in _BLOCK_NAMES:
        return ""
    return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.{kind}"


def _dequantised(path: Path, entry: GgufEntry) -> Tensor:
    from gguf import dequantize

    try:
        values = np.array(dequantize(entry.data, entry.encoding), dtype=np.float32)
    except NotImplementedError as error:
        raise InputError(f"{path}: tensor {entry.name!r}: {error}; {_OTHER_FORMAT}") from error
    return torch.from_numpy(values)


def _unpermute(path: Path, tensor: Tensor, num_heads: int) -> Tensor:
    """Undo GGUF's interleaving of the rotary pairs in a query or key projection: transformers has halves."""
    rows, rest = tensor.shape[0], tensor.shape[1:]
    if rows % (2 * num_heads):
        raise InputError(f"{path}: a projection's {rows} rows are not {num_heads} heads of even width; {_DAMAGED}")
    return tensor.view(num_heads, rows // num_heads // 2, 2, *rest).transpose(1, 2).reshape(tensor.shape)
