"""What a source of weights holds: its checked configuration and its tensors by name.

A source is one of
- a directory with `config.json` and `*.safetensors` (one file, or shards with an index),
- a hub id such as `HuggingFaceTB/SmolLM2-135M`, fetched once into the Hugging Face cache,
- a `.gguf` file of a Llama, dequantised at load (extra `smollm2`),
- `dummy:PATH` with a `config.json` or a directory that has one: random weights of the right shapes, for timelines of
  models whose weights cannot be had.

Weights come from safetensors only; nothing is unpickled. Tensor names are transformers' own without the leading
`model.`. Used by `executor.models`.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from executor.gguf_files import read_header
from executor.gguf_files import read_tensors as gguf_tensors
from ssdsim.errors import InputError

SUPPORTED = ("llama", "qwen2", "qwen3")
"""`model_type` of the architectures that the lean forward computes; SmolLM2 and TinyLlama are `llama`."""
_DUMMY = "dummy:"
_NEEDED = {
    *("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "tie_word_embeddings"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("hidden_act", "rms_norm_eps", "rope_parameters"),
}
"""Fields of a `config.json` that the lean forward depends on."""
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"),
    *("num_hidden_layers", "num_attention_heads"),
)
"""Fields that hold a positive integer."""
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
"""Fields that hold a positive integer or null: they follow from the others then."""
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_COPY_CONFIG = "correct it, or copy the file again from the model's source"


def is_dummy(source: str) -> bool:
    """Whether the source has random weights."""
    return source.startswith(_DUMMY)


def is_gguf(source: str) -> bool:
    """Whether the source is a GGUF file."""
    return source.endswith(".gguf") and not is_dummy(source)


def read_config(source: str) -> Any:
    """The configuration, its fields as attributes; refused where the lean forward does not compute it."""
    file = _config_file(source)
    if not is_gguf(source):
        return _config(file)
    return _checked(copy.deepcopy(read_header(file).config), source)


def read_tensors(source: str, seed: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """The tensors, as they are stored; `seed`, `dtype` and `device` are those of dummy weights."""
    if is_dummy(source):
        return _dummy_tensors(read_config(source), seed, dtype, device)
    if not is_gguf(source):
        return _safetensors(model_folder(source))
    return {name.removeprefix("model."): tensor for name, tensor in gguf_tensors(Path(source)).items()}


def read_eos(source: str, config: Any) -> tuple[int, ...]:
    """The tokens that end a text: those of generation_config.json where it names any, as in transformers'
    `generate`, else the configuration's."""
    where, eos = _config_file(source), getattr(config, "eos_token_id", None)
    file = where.with_name("generation_config.json")
    if not is_gguf(source) and file.is_file():
        preferred = _json(file).get("eos_token_id")
        where, eos = (where, eos) if preferred is None else (file, preferred)
    tokens = tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,)
    if any(type(token) is not int for token in tokens):
        raise InputError(f"{where}: eos_token_id: is a token id or a list of them, got {eos!r}; {_COPY_CONFIG}")
    return tokens


def has_tokenizer(source: str) -> bool:
    """Whether a tokenizer, usable or not, lies beside the weights."""
    if is_dummy(source):
        return False
    if is_gguf(source):
        return read_header(Path(source)).has_tokenizer
    return any((model_folder(source) / name).is_file() for name in _TOKENIZER_FILES)


def _config_file(source: str) -> Path:
    """The file that holds the configuration."""
    if is_gguf(source):
        return Path(source)
    path = Path(source.removeprefix(_DUMMY)) if is_dummy(source) else model_folder(source)
    return path if path.suffix == ".json" else path / "config.json"


def _json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model."""
    try:
        raw = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file; a model directory has a config.json") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: is not a usable model configuration ({error}); {_COPY_CONFIG}") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file}: is not a usable model configuration (not an object); {_COPY_CONFIG}")
    return raw


def _config(file: Path) -> Any:
    """The checked configuration in `file`."""
    raw = _json(file)
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED:
        raise InputError(f"{file}: model_type {model_type!r} is not one of {', '.join(SUPPORTED)}")
    try:
        config = _spelled_out(raw)
    except Exception as error:  # transformers raises errors of many kinds over a field it cannot use
        reason = " ".join(str(error).split())
        raise InputError(f"{file}: is not a usable model configuration ({reason}); {_COPY_CONFIG}") from error
    return _checked(config, str(file))


def _spelled_out(raw: dict[str, Any]) -> Any:
    """`raw` with its fields as attributes. transformers, which takes seconds to import, is asked only where
    the file relies on its defaults or on a spelling from before version 5."""
    if raw.keys() >= _NEEDED and _is_plain_rope(raw["rope_parameters"]):
        return SimpleNamespace(**raw)
    from transformers import AutoConfig

    return AutoConfig.for_model(**raw)


def _is_plain_rope(rope: Any) -> bool:
    return isinstance(rope, dict) and rope.get("rope_type") == "default" and "rope_theta" in rope


def transformers_config(config: Any) -> Any:
    """transformers' own object of a configuration that was read here, for what only transformers can make."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**vars(config)) if isinstance(config, SimpleNamespace) else config


def _checked(config: Any, where: str) -> Any:
    refused = {
        "quantization_config": getattr(config, "quantization_config", None) is not None,
        "hidden_act": config.hidden_act != "silu",
        "use_sliding_window": bool(getattr(config, "use_sliding_window", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
    }
    problems = [name for name, refuse in refused.items() if refuse]
    if problems:
        raise InputError(f"{where}: {', '.join(problems)}: this variant is not supported by the executor")
    _check_numbers(config, where)
    _check_rope(config.rope_parameters, where)
    return config


def _check_numbers(config: Any, where: str) -> None:
    for name in _SIZES + _OPTIONAL_SIZES:
        value = getattr(config, name, None)
        if not (_is_size(value) or (value is None and name in _OPTIONAL_SIZES)):
            raise InputError(f"{where}: {name}: is a positive integer, got {value!r}; {_COPY_CONFIG}")
    if not _is_positive(config.rms_norm_eps):
        raise InputError(f"{where}: rms_norm_eps: is a positive number, got {config.rms_norm_eps!r}; {_COPY_CONFIG}")
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    if heads % (kv_heads or heads):
        raise InputError(f"{where}: num_key_value_heads: {kv_heads} does not divide {heads} heads; {_COPY_CONFIG}")


def _check_rope(rope: Any, where: str) -> None:
    if not isinstance(rope, dict):
        raise InputError(f"{where}: rope_parameters: is an object, got {rope!r}; {_COPY_CONFIG}")
    rope_type, theta = rope.get("rope_type"), rope.get("rope_theta")
    if rope_type not in _ROPE_TYPES:
        raise InputError(
            f"{where}: rope_type: {rope_type!r} is not one of {', '.join(_ROPE_TYPES)}; choose another model"
        )
    if not _is_positive(theta):
        raise InputError(f"{where}: rope_theta: is a positive number, got {theta!r}; {_COPY_CONFIG}")


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def model_folder(source: str) -> Path:
    """The directory of a model that is one, or has a hub id."""
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_absolute() or source.startswith((".", "~")) or source.count("/") != 1:
        raise InputError(f"model: {source}: no such directory, and not a hub id of the form owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        fetched = snapshot_download(source, allow_patterns=wanted)
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise InputError(f"model: {source}: no such directory, nor does the hub give it ({error})") from error
    return Path(fetched)


def _safetensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: has no *.safetensors; other weight formats are not loaded")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            loaded = load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: cannot be read as safetensors ({error}); copy it again") from error
        tensors |= {name.removeprefix("model."): tensor for name, tensor in loaded.items()}
    return tensors


def _dummy_tensors(config: Any, seed: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Normal weights of the scale that keeps activations of order one, so that no kernel meets infinities.

    Drawn where and as they will be used: such models may be as large as the device.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(transformers_config(config))
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shaped in module.state_dict().items():
        tensor = torch.zeros(shaped.shape, dtype=dtype, device=device)
        if tensor.ndim > 1:
            tensor.normal_(std=1.0 / math.sqrt(tensor.shape[-1]), generator=generator)
        elif "norm" in name:
            tensor.fill_(1.0)
        tensors[name.removeprefix("model.")] = tensor
    return tensors
