"""Model files into a `LlamaModel`; which sources there are is told in `executor.checkpoints`.

Both roles load here, each in its own process. A draft may leave out what it shares with its target: a checkpoint
without `embed_tokens` takes the embedding of the model given as `embedding_source`; one with a tensor
`head_token_ids` (int32 [H]) has a head over these H tokens only (tied: the rows of the embedding), and proposes no
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from executor.checkpoints import has_tokenizer, is_dummy, is_gguf, model_folder, read_config, read_eos, read_tensors
from executor.graphs import GraphedModel
from executor.llama import Layer, LlamaModel, LlamaShape
from executor.matrix import Matrix
from ssdsim.errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SPARE_POSITIONS = 512
"""Rotary positions beyond the model's context, for tokens proposed near its end that can never be kept."""

Share = Callable[[Any, dict[str, Tensor]], tuple[Any, dict[str, Tensor]]]
"""From a checkpoint (its configuration, its tensors by name) to the part that this process keeps."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model ready to run and what the engine must know of it."""

    name: str
    model: LlamaModel
    vocab_size: int
    head_token_ids: Tensor | None
    """int64 [H], ascending: the tokens of a reduced head's columns; None: the head covers the vocabulary."""
    eos_token_ids: tuple[int, ...]
    dummy: bool


def load_model(
    source: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    embedding_source: str | None = None,
    seed: int = 0,
    share: Share | None = None,
    cuda_graphs: bool = False,
) -> LoadedModel:
    """Load `source` (see the module). `seed` draws dummy weights; `share` keeps one rank's part of a model
    that several hold together; `cuda_graphs` captures narrow steps. Raises InputError naming the file and the
    remedy."""
    if dtype not in DTYPES:
        raise InputError(f"dtype: one of {', '.join(DTYPES)}; got {dtype!r}")
    if cuda_graphs and not device.startswith("cuda"):
        raise InputError(f"cuda_graphs: only on a CUDA device, and this model runs on {device!r}; leave them out")
    config, tensors = read_config(source), read_tensors(source, seed, DTYPES[dtype], device)
    if "embed_tokens.weight" not in tensors:
        tensors["embed_tokens.weight"] = _shared_embedding(source, embedding_source)
    head_token_ids = _reduced_head(source, config, tensors)
    vocab_size, eos_token_ids = int(config.vocab_size), read_eos(source, config)
    if share is not None:
        config, tensors = share(config, tensors)
    weights = _Weights(source, {name: t.to(device, DTYPES[dtype]) for name, t in tensors.items()})
    head_size = config.vocab_size if head_token_ids is None else len(head_token_ids)
    model = _assemble(config, weights, head_size)
    return LoadedModel(
        name=source,
        model=GraphedModel(model) if cuda_graphs else model,
        vocab_size=vocab_size,
        head_token_ids=None if head_token_ids is None else head_token_ids.to(device),
        eos_token_ids=eos_token_ids,
        dummy=is_dummy(source),
    )


def check_same_vocabulary(target: str, draft: str) -> None:
    """Refuse a pair whose token ids mean different things, saying how; dummy models and bare weights have
    only a size."""
    sizes = {source: vocab_size_of(source) for source in (target, draft)}
    if sizes[target] != sizes[draft]:
        raise InputError(
            f"draft: its vocabulary has {sizes[draft]} entries, the target's {sizes[target]}; "
            "speculative decoding needs one vocabulary, choose a draft of the target's family"
        )
    ours, theirs = _tokens(target), _tokens(draft)
    if ours is None or theirs is None:
        return
    different = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
    if different:
        token = different[0]
        raise InputError(
            f"draft: {len(different)} tokens differ from the target's, the first is {token!r} "
            f"(target id {ours.get(token)}, draft id {theirs.get(token)}); its tokenizer must be the target's"
        )


def vocab_size_of(source: str) -> int:
    """Entries of a model's vocabulary, from its configuration alone."""
    return int(read_config(source).vocab_size)


def load_tokenizer(source: str) -> Any:
    """The tokenizer that lies beside the weights. Raises InputError where there is none that can be used."""
    from transformers import AutoTokenizer

    try:
        if is_gguf(source):
            path = Path(source)
            return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        return AutoTokenizer.from_pretrained(str(model_folder(source)))
    except InputError:
        raise
    except Exception as error:  # transformers and tokenizers raise errors of every kind over a file they cannot use
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"tokenizer: none usable in {source} ({reason}); copy its tokenizer files again from the model's source"
        ) from error


class _Weights:
    """Tensors by name; a missing or misshapen one is the file's fault and says so."""

    def __init__(self, source: str, tensors: Mapping[str, Tensor]) -> None:
        self.source, self._tensors = source, tensors

    def get(self, name: str, *shape: int) -> Tensor:
        tensor = self.find(name, *shape)
        if tensor is None:
            raise InputError(f"{self.source}: has no tensor {name!r}; is the checkpoint complete?")
        return tensor

    def find(self, name: str, *shape: int) -> Tensor | None:
        tensor = self._tensors.get(name)
        if tensor is not None and tuple(tensor.shape) != shape:
            found = tuple(tensor.shape)
            raise InputError(f"{self.source}: tensor {name!r} is {found}, its config.json says {shape}")
        return tensor

    def fuse(self, names: list[str], rows: list[int], *rest: int) -> Tensor:
        """The named tensors stacked along their first axis."""
        return torch.cat([self.get(name, count, *rest) for name, count in zip(names, rows, strict=True)])

    def fuse_where(self, wanted: bool, names: list[str], rows: list[int]) -> Tensor | None:
        """The named vectors in one where the architecture has them; where not, the file must not have them either."""
        if wanted:
            return self.fuse(names, rows)
        if surplus := [name for name in names if name in self._tensors]:
            raise InputError(
                f"{self.source}: has a tensor {surplus[0]!r}, which the architecture that its config.json describes "
                "does not use; take configuration and weights of one model"
            )
        return None


class _Parts(NamedTuple):
    """Which of the tensors that not every architecture has this one has."""

    head_norms: bool
    qkv_bias: bool
    out_bias: bool


def _parts(config: Any) -> _Parts:
    qwen2, bias = config.model_type == "qwen2", bool(getattr(config, "attention_bias", False))
    return _Parts(
        head_norms=config.model_type == "qwen3",
        qkv_bias=qwen2 or bias,
        out_bias=bias and not qwen2,
    )


def _assemble(config: Any, weights: _Weights, head_size: int) -> LlamaModel:
    hidden = int(config.hidden_size)
    head_dim = int(getattr(config, "head_dim", None) or hidden // config.num_attention_heads)
    shape = LlamaShape(
        num_layers=int(config.num_hidden_layers),
        num_heads=int(config.num_attention_heads),
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads),
        head_dim=head_dim,
        vocab_size=head_size,
        max_context_tokens=int(config.max_position_embeddings),
        norm_eps=float(config.rms_norm_eps),
    )
    embedding = weights.get("embed_tokens.weight", int(config.vocab_size), hidden)
    head = weights.find("lm_head.weight", head_size, hidden)
    if head is None:
        if not config.tie_word_embeddings:
            weights.get("lm_head.weight", head_size, hidden)
        head = embedding
    width = int(config.intermediate_size)
    parts = _parts(config)
    layers = [_layer(weights, f"layers.{i}.", shape, parts, hidden, width) for i in range(shape.num_layers)]
    rotary = _rotary(weights.source, config, shape.max_context_tokens + SPARE_POSITIONS).to(embedding)
    norm = _norm_weight(weights.get("norm.weight", hidden)).to(embedding.dtype)
    return LlamaModel(shape, layers, embedding, norm, Matrix(head), rotary)


def _layer(weights: _Weights, prefix: str, shape: LlamaShape, parts: _Parts, hidden: int, width: int) -> Layer:
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    projections = [f"{attention}{name}_proj" for name in "qkv"]
    gate_up = [f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"]
    input_norm = weights.get(f"{prefix}input_layernorm.weight", hidden)
    mlp_norm = weights.get(f"{prefix}post_attention_layernorm.weight", hidden)
    query_norm = weights.fuse_where(parts.head_norms, [f"{attention}q_norm.weight"], [shape.head_dim])
    key_norm = weights.fuse_where(parts.head_norms, [f"{attention}k_norm.weight"], [shape.head_dim])
    qkv = weights.fuse([f"{p}.weight" for p in projections], [query, key, key], hidden)
    qkv_bias = weights.fuse_where(parts.qkv_bias, [f"{p}.bias" for p in projections], [query, key, key])
    return Layer(
        qkv=Matrix(_normed(qkv, input_norm), qkv_bias),
        query_norm=None if query_norm is None else _norm_weight(query_norm).to(query_norm.dtype),
        key_norm=None if key_norm is None else _norm_weight(key_norm).to(key_norm.dtype),
        out=Matrix(weights.get(f"{attention}o_proj.weight", hidden, query)),
        out_bias=weights.fuse_where(parts.out_bias, [f"{attention}o_proj.bias"], [hidden]),
        gate_up=Matrix(_normed(weights.fuse(gate_up, [width, width], hidden), mlp_norm)),
        down=Matrix(weights.get(f"{mlp}down_proj.weight", hidden, width)),
    )


def _norm_weight(weight: Tensor) -> Tensor:
    """fp32 [width]: a norm's weight times the square root of its width, as `LlamaModel` takes it."""
    scaled: Tensor = weight.float() * len(weight) ** 0.5
    return scaled


def _normed(weight: Tensor, norm: Tensor) -> Tensor:
    """The weight [out, in] of a product with the weight [in] of the norm before it multiplied in, rounded once."""
    return (weight.float() * _norm_weight(norm)).to(weight.dtype)


def _rotary(source: str, config: Any, num_positions: int) -> Tensor:
    """[2, num_positions, head_dim]: cosines and sines, with whatever frequency scaling the config has.

    Scaled frequencies are transformers' own; the module that computes the plain ones takes seconds to import.
    """
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        frequencies, scale = 1.0 / rope["rope_theta"] ** exponents, 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        try:
            frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"{source}: rope_parameters: {rope} is not usable ({error}); copy config.json from the model's source"
            ) from error
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin())) * scale


def _tokens(source: str) -> dict[str, int] | None:
    """Token -> id of the tokenizer beside the weights; None where there is none to compare."""
    return dict(load_tokenizer(source).get_vocab()) if has_tokenizer(source) else None


def _shared_embedding(source: str, embedding_source: str | None) -> Tensor:
    if embedding_source is None:
        raise InputError(f"{source}: has no embedding of its own; it runs beside the target it was made for")
    tensors = read_tensors(embedding_source, 0, torch.float32, "cpu")
    if "embed_tokens.weight" not in tensors:
        raise InputError(f"{embedding_source}: has no embedding to share with {source}")
    return tensors["embed_tokens.weight"]


def _reduced_head(source: str, config: Any, tensors: dict[str, Tensor]) -> Tensor | None:
    """The tokens of a reduced head, taken out of `tensors`; one that is tied becomes rows of the embedding."""
    ids = tensors.pop("head_token_ids", None)
    if ids is None:
        return None
    ids = ids.to(torch.int64)
    if ids.ndim != 1 or not len(ids):
        raise InputError(f"{source}: head_token_ids is {list(ids.shape)}, a list of at least one token id is needed")
    if bool((ids[1:] <= ids[:-1]).any()) or not 0 <= int(ids[0]) <= int(ids[-1]) < config.vocab_size:
        raise InputError(f"{source}: head_token_ids must be a strictly ascending list of token ids")
    if config.tie_word_embeddings and "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = tensors["embed_tokens.weight"][ids]
    return ids
