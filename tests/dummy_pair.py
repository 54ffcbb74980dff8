"""A pair of which only the shapes exist: sources of random weights for targets and drafts of tests."""

from __future__ import annotations

import json
from pathlib import Path

SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def write_dummy_pair(folder: Path) -> tuple[str, str]:
    """Sources of a target and a smaller draft, their configurations in `folder`."""
    sources = []
    for name, layers, hidden in (("target", 3, 64), ("draft", 1, 32)):
        model = folder / name
        model.mkdir()
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 2 * hidden}
        (model / "config.json").write_text(json.dumps(SHAPE | sizes))
        sources.append(f"dummy:{model}")
    return sources[0], sources[1]
