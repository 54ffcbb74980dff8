"""What is loaded computes what transformers computes; what cannot be loaded is refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_pairs import Pair, save, small_pair

from executor.decoder import Decoder
from executor.models import check_same_vocabulary, load_model
from ssdsim.errors import InputError

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def build(architecture: str, **changes: Any) -> Any:
    """A random model of an architecture, its norms and biases random too."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{architecture}Config")(**(SIZES | changes))
    model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def logits_of(source: str, ids: torch.Tensor) -> torch.Tensor:
    decoder = Decoder(load_model(source).model, len(ids), ids.shape[1] + 1)
    with torch.inference_mode():
        return decoder.extend(np.arange(len(ids)), ids.numpy(), np.full(len(ids), ids.shape[1]))


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("Llama", {"attention_bias": True, "rope_scaling": LLAMA3_ROPE, "rope_theta": 5e5}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Qwen3", {"head_dim": 16}),
    ],
)
def test_logits_are_those_of_transformers(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    model = build(architecture, **changes)
    save(model, tmp_path)
    ids = torch.randint(0, 90, (2, 80), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(str(tmp_path), ids), model(ids).logits, atol=1e-4, rtol=0)


def test_a_draft_may_leave_out_the_embedding_and_most_of_the_head(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = build("Llama", tie_word_embeddings=True)
    save(model, tmp_path / "target")
    shutil.copytree(tmp_path / "target", tmp_path / "draft")
    kept = [3, 10, 11, 80]
    weights = load_file(tmp_path / "draft" / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    weights["head_token_ids"] = torch.tensor(kept, dtype=torch.int32)
    save_file(weights, tmp_path / "draft" / "model.safetensors")
    whole = load_model(str(tmp_path / "target")).model
    reduced = load_model(str(tmp_path / "draft"), embedding_source=str(tmp_path / "target"))
    assert reduced.head_token_ids is not None
    assert reduced.head_token_ids.tolist() == kept
    hidden = torch.randn(2, 3, 32)
    torch.testing.assert_close(reduced.model.head(hidden), whole.head(hidden)[..., kept])
    with pytest.raises(InputError, match="beside the target"):
        load_model(str(tmp_path / "draft"))


def test_dummy_weights_have_the_shapes_of_the_configuration(tmp_path: Path) -> None:
    model = build("Qwen3", head_dim=16)
    save(model, tmp_path)
    logits = logits_of(str(tmp_path), torch.arange(6)[None])
    (tmp_path / "model.safetensors").unlink()
    ids = torch.arange(6)[None]
    assert load_model(f"dummy:{tmp_path}").dummy
    assert logits_of(f"dummy:{tmp_path}", ids).shape == logits.shape
    assert np.isfinite(logits_of(f"dummy:{tmp_path}", ids).numpy()).all()


def test_shards_are_read_together(tmp_path: Path) -> None:
    model = build("Llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(str(tmp_path), ids), model(ids).logits, atol=1e-4, rtol=0)


class TestRefusals:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        shutil.copytree(small_pair().draft_dir, tmp_path / "model")
        return tmp_path / "model"

    def refused(self, source: Path | str, *, match: str, **options: Any) -> None:
        with pytest.raises(InputError, match=match):
            load_model(str(source), **options)

    def edit(self, folder: Path, **changes: Any) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def test_a_missing_directory(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "nowhere", match="no such directory")

    def test_a_directory_without_configuration(self, tmp_path: Path) -> None:
        self.refused(tmp_path, match=r"config\.json: no such file")

    def test_a_configuration_that_is_not_json(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        self.refused(folder, match="not a usable model configuration")

    def test_no_safetensors(self, folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refused(folder, match=r"has no \*\.safetensors")

    def test_corrupt_safetensors(self, folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:2000])
        self.refused(folder, match="cannot be read as safetensors")

    def test_a_tensor_of_another_shape(self, folder: Path) -> None:
        self.edit(folder, intermediate_size=100)
        self.refused(folder, match=r"mlp\..*its config\.json says")

    def test_a_missing_tensor(self, folder: Path) -> None:
        self.edit(folder, num_hidden_layers=4)
        self.refused(folder, match=r"has no tensor 'layers\.3")

    @pytest.mark.parametrize(
        ("architecture", "changes", "tensor"),
        [
            ("Qwen3", {"head_dim": 16}, "self_attn.q_norm.weight"),
            ("Qwen3", {"head_dim": 16}, "self_attn.k_norm.weight"),
            ("Qwen2", {}, "self_attn.q_proj.bias"),
            ("Llama", {"attention_bias": True}, "self_attn.o_proj.bias"),
        ],
    )
    def test_a_missing_tensor_of_the_architecture_s_own(
        self, tmp_path: Path, architecture: str, changes: dict[str, Any], tensor: str
    ) -> None:
        from safetensors.torch import load_file, save_file

        save(build(architecture, **changes), tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        for layer in (1, 0):  # of one layer first, then of both: that must not look like an architecture without it
            del weights[f"model.layers.{layer}.{tensor}"]
            save_file(weights, tmp_path / "model.safetensors")
            self.refused(tmp_path, match=f"has no tensor 'layers.{layer}.{tensor}'")

    def test_a_tensor_that_the_architecture_does_not_use(self, tmp_path: Path) -> None:
        save(build("Llama", attention_bias=True), tmp_path)
        self.edit(tmp_path, attention_bias=False)
        self.refused(tmp_path, match=r"q_proj\.bias', which the architecture .* does not use")

    @pytest.mark.parametrize("ids", [[], [[1, 2]], [3, 3], [5, 1000]])
    def test_a_reduced_head_over_no_ascending_token_ids(self, folder: Path, ids: list[Any]) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        weights["head_token_ids"] = torch.tensor(ids, dtype=torch.int32)
        save_file(weights, folder / "model.safetensors")
        self.refused(folder, match="model: head_token_ids ")

    def test_another_architecture(self, folder: Path) -> None:
        self.edit(folder, model_type="gpt2")
        self.refused(folder, match="model_type 'gpt2' is not one of llama, qwen2, qwen3")

    def test_a_variant_that_the_lean_forward_does_not_compute(self, folder: Path) -> None:
        self.edit(folder, mlp_bias=True)
        self.refused(folder, match="mlp_bias: this variant is not supported")

    def test_an_unknown_dtype(self, folder: Path) -> None:
        self.refused(folder, match="dtype: one of float32", dtype="int8")

    def test_a_missing_gguf_file(self, tmp_path: Path) -> None:
        self.refused(tmp_path / "model.gguf", match="no such file")


class TestVocabularies:
    def test_equal_sizes_without_tokenizers_pass(self) -> None:
        pair: Pair = small_pair()
        check_same_vocabulary(pair.target_dir, pair.draft_dir)

    def test_different_sizes_are_refused_with_both(self) -> None:
        with pytest.raises(InputError, match="has 8 entries, the target's 96"):
            check_same_vocabulary(small_pair().target_dir, small_pair(vocab_size=8, noise=0.08, seed=5).draft_dir)

    def test_different_tokens_are_counted_and_the_first_is_named(self, tmp_path: Path) -> None:
        for name, words in (("target", ["a", "b", "c"]), ("draft", ["a", "c", "b"])):
            shutil.copytree(small_pair().target_dir, tmp_path / name)
            write_tokenizer(tmp_path / name, words)
        with pytest.raises(InputError, match=r"2 tokens differ.*'b' \(target id 1, draft id 2\)"):
            check_same_vocabulary(str(tmp_path / "target"), str(tmp_path / "draft"))


def write_tokenizer(folder: Path, words: list[str]) -> None:
    """A tokenizer that knows `words`, in this order."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
