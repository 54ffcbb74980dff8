"""A draft that shares its target's embedding and predicts only the target's most frequent tokens.

Who uses it: the pair `smollm2`. In a small draft of a large-vocabulary target, embedding and head would be most of
the weights and of the time. Here both are rows of the target's own (tied, frozen) embedding: the head keeps the few
thousand rows that cover nearly all of what the target writes. So the stored file holds the layers, the final norm and
the list of kept tokens (`head_token_ids`, int32, ascending), and nothing of the embedding: with
`tie_word_embeddings` in its configuration, the form that `executor.models` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_HEAD_TOKEN_IDS = "head_token_ids"


class ReducedHead(nn.Module):
    """Logits over `token_ids` [R] only, spread over the whole vocabulary [V] as callers of a causal LM expect."""

    weight: Tensor  # [R, H], frozen
    token_ids: Tensor  # [R] int64, ascending

    def __init__(self, embedding: Tensor, token_ids: Tensor) -> None:
        super().__init__()
        self.vocab_size = embedding.shape[0]
        self.register_buffer("weight", embedding[token_ids].clone())
        self.register_buffer("token_ids", token_ids.long())

    def reduced(self, hidden: Tensor) -> Tensor:
        """Logits [..., R] of the kept tokens, in the order of `token_ids`, for hidden states [..., H]."""
        return nn.functional.linear(hidden, self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [..., V]; a token without a row gets the type's most negative number, hence probability zero."""
        kept = self.reduced(hidden)
        logits = kept.new_full((*kept.shape[:-1], self.vocab_size), torch.finfo(kept.dtype).min)
        logits[..., self.token_ids] = kept
        return logits


def build_reduced(config: Any, embedding: Tensor, token_ids: Tensor) -> Any:
    """A Llama of `config` with fresh layers, the given embedding [V, H] (frozen), and a head over `token_ids`."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config)
    model.model.embed_tokens.weight = nn.Parameter(embedding, requires_grad=False)
    model.lm_head = ReducedHead(embedding, token_ids)
    return model


def save_reduced(model: Any, directory: Path) -> None:
    """Store the draft's own weights in bf16, its list of kept tokens and its configuration."""
    from safetensors.torch import save_file

    own = {name: value.bfloat16() for name, value in model.model.state_dict(prefix="model.").items()}
    del own["model.embed_tokens.weight"]
    own[_HEAD_TOKEN_IDS] = model.lm_head.token_ids.int()
    directory.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(directory)
    save_file(own, directory / "model.safetensors", metadata={"format": "pt"})


def load_reduced(directory: Path, embedding: Tensor, dtype: torch.dtype) -> Any:
    """The stored draft in evaluation mode, with the target's `embedding` [V, H] put in, all in `dtype`."""
    from safetensors.torch import load_file
    from transformers import LlamaConfig

    own = load_file(directory / "model.safetensors")
    config = LlamaConfig.from_pretrained(directory)
    model = build_reduced(config, embedding.to(dtype), own.pop(_HEAD_TOKEN_IDS).long())
    model.load_state_dict(own, strict=False)
    return model.to(dtype).eval()
