"""A pair with random weights in a folder, for tests that must not depend on trained ones.

The draft is the target with noise on its weights, so that they agree often but not always.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCAB_SIZE = 96
NOISE = 0.4
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def write_random_pair(root: Path, *, vocab_size: int = VOCAB_SIZE, noise: float = NOISE) -> tuple[Path, Path]:
    """(target, draft) directories below `root`, each with weights, configuration and tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = {**_CONFIG, "vocab_size": vocab_size}
    target = LlamaForCausalLM(LlamaConfig(**config))
    with torch.no_grad():
        target.lm_head.weight.mul_(12)  # random logits are nearly flat otherwise
    draft = LlamaForCausalLM(LlamaConfig(**config))
    draft.load_state_dict(target.state_dict())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(noise * parameter.std() * torch.randn_like(parameter))
    for name, model in (("target", target), ("draft", draft)):
        model.save_pretrained(root / name)
        _write_tokenizer(root / name, vocab_size)
    return root / "target", root / "draft"


def _write_tokenizer(directory: Path, vocab_size: int) -> None:
    """One token per printable character; the others are unknown (id 1)."""
    characters = ["<eos>", "<unk>", *map(chr, range(32, 32 + vocab_size - 2))]
    vocabulary = {character: index for index, character in enumerate(characters)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>"},
        "added_tokens": [],
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
