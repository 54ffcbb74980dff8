"""What a source of weights holds: its checked configuration and its tensors by name.

A source is one of
- a directory with `config.json` and `*.safetensors` (one file, or shards with an index),
- a hub id such as `HuggingFaceTB/SmolLM2-135M`, fetched once into the Hugging Face cache,
- a `.gguf` file, dequantised at load (extra `smollm2`),
- `dummy:PATH` with a `config.json` or a directory that has one: random weights of the right shapes, for timelines of
  models whose weights cannot be had.

Weights come from safetensors only; nothing is unpickled. Tensor names are transformers' own without the leading
`model.`. Used by `executor.models`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

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


def is_dummy(source: str) -> bool:
    """Whether the source has random weights."""
    return source.startswith(_DUMMY)


def read_config(source: str) -> Any:
    """The configuration, its fields as attributes; refused where the lean forward does not compute it."""
    if is_dummy(source):
        return _config(Path(source.removeprefix(_DUMMY)))
    return _gguf_config(Path(source)) if source.endswith(".gguf") else _config(model_folder(source))


def read_tensors(source: str, seed: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """The tensors, as they are stored; `seed`, `dtype` and `device` are those of dummy weights."""
    if is_dummy(source):
        return _dummy_tensors(read_config(source), seed, dtype, device)
    return _gguf_tensors(Path(source)) if source.endswith(".gguf") else _safetensors(model_folder(source))


def _config(path: Path) -> Any:
    """The checked `config.json` at `path` (the file or its directory)."""
    file = path if path.suffix == ".json" else path / "config.json"
    try:
        raw = json.loads(file.read_text())
        model_type = raw.get("model_type")
        if model_type in SUPPORTED:
            return _checked(_spelled_out(raw), str(file))
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file; a model directory has a config.json") from error
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: is not a usable model configuration ({error})") from error
    raise InputError(f"{file}: model_type {model_type!r} is not one of {', '.join(SUPPORTED)}")


def _spelled_out(raw: dict[str, Any]) -> Any:
    """`raw` with its fields as attributes. transformers, which takes seconds to import, is asked only where
    the file relies on its defaults or on a spelling from before version 5."""
    if raw.keys() >= _NEEDED and raw["rope_parameters"].get("rope_type") == "default":
        return SimpleNamespace(**raw)
    from transformers import AutoConfig

    return AutoConfig.for_model(**raw)


def transformers_config(config: Any) -> Any:
    """transformers' own object of a configuration that was read here, for what only transformers can make."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**vars(config)) if isinstance(config, SimpleNamespace) else config


def _checked(config: Any, where: str) -> Any:
    rope = getattr(config, "rope_parameters", None) or {}
    refused = {
        "quantization_config": getattr(config, "quantization_config", None) is not None,
        "hidden_act": config.hidden_act != "silu",
        "use_sliding_window": bool(getattr(config, "use_sliding_window", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "rope_parameters": rope.get("rope_type", "default") in {"dynamic", "longrope"},
    }
    problems = [name for name, refuse in refused.items() if refuse]
    if problems:
        raise InputError(f"{where}: {', '.join(problems)}: this variant is not supported by the executor")
    return config


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


def _gguf_tensors(path: Path) -> dict[str, Tensor]:
    from transformers import AutoModelForCausalLM

    _gguf_config(path)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, use_safetensors=True
        )
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{path}: not readable as GGUF ({error}); the extra `smollm2` brings gguf") from error
    return {name.removeprefix("model."): tensor.detach() for name, tensor in module.state_dict().items()}


def _gguf_config(path: Path) -> Any:
    from transformers import AutoConfig

    if not path.is_file():
        raise InputError(f"model: {path}: no such file")
    try:
        config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{path}: not readable as GGUF ({error}); the extra `smollm2` brings gguf") from error
    if config.model_type not in SUPPORTED:
        raise InputError(f"{path}: model_type {config.model_type!r} is not one of {', '.join(SUPPORTED)}")
    return config


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
