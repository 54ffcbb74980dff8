"""Small random pairs that agree often: a Llama written to disk, and the same with a little noise on its weights."""

from __future__ import annotations

import atexit
import copy
import shutil
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import torch

from executor.config import EngineConfig, Request
from executor.engine import Engine, Generation
from executor.local import LocalSpeculator
from executor.models import LoadedModel, load_model
from ssdsim.scenario import Drafting, Mode

NEAR_TIE = 1e-3
"""fp32: two logits closer than this may be ordered differently by forwards of different widths."""


class Pair(NamedTuple):
    """Directories of target and draft, both loaded, and transformers' own target."""

    target_dir: str
    draft_dir: str
    target: LoadedModel
    draft: LoadedModel
    reference: Any


@lru_cache(maxsize=8)
def small_pair(vocab_size: int = 96, noise: float = 0.015, seed: int = 0, spread: float = 0.25) -> Pair:
    """Three layers of width 48. `noise` 0.015 lets the draft propose the target's token about two times in three."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
    )
    target = LlamaForCausalLM(config).eval()
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    folder = Path(mkdtemp(prefix="ssdsim-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, model in (("target", target), ("draft", draft)):
        save(model, folder / name)
    target_dir, draft_dir = str(folder / "target"), str(folder / "draft")
    return Pair(target_dir, draft_dir, load_model(target_dir), load_model(draft_dir), target)


def with_reduced_head(pair: Pair, kept: list[int]) -> Pair:
    """The pair, its draft proposing the tokens `kept` only."""
    from safetensors.torch import load_file, save_file

    folder = Path(f"{pair.draft_dir}-of-{len(kept)}")
    shutil.copytree(pair.draft_dir, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][kept].clone()
    weights["head_token_ids"] = torch.tensor(kept, dtype=torch.int32)
    save_file(weights, folder / "model.safetensors")
    return pair._replace(draft_dir=str(folder), draft=load_model(str(folder)))


def save(model: Any, folder: Path) -> None:
    """Write a model as transformers does, without its progress bar."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder)


def prompts(count: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of 4 to 23 tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, 4 + int(n)).tolist() for n in rng.integers(0, 20, count)]


def run(
    pair: Pair,
    mode: str,
    requests: list[Request],
    drafting: Drafting | None = None,
    batch_size: int = 1,
    **settings: Any,
) -> Generation:
    """Generate in one process."""
    config = engine_config(pair, mode, requests, drafting, batch_size, **settings)
    engine = Engine(config, pair.target, None if mode == "ar" else LocalSpeculator(config, pair.draft))
    generation = engine.generate(requests)
    engine.close()
    return generation


def engine_config(
    pair: Pair,
    mode: str,
    requests: list[Request],
    drafting: Drafting | None = None,
    batch_size: int = 1,
    **settings: Any,
) -> EngineConfig:
    """The configuration that just fits `requests`."""
    return EngineConfig(
        mode=Mode(mode),
        batch_size=batch_size,
        max_context_tokens=max(len(r.prompt) + r.max_tokens for r in requests),
        vocab_size=pair.target.vocab_size,
        drafting=drafting or Drafting(num_speculative_tokens=4),
        sampled=any(r.temperature > 0 for r in requests),
        **settings,
    )


@lru_cache(maxsize=4)
def _greedy_references(pair: Pair, count: int, num_tokens: int, seed: int) -> tuple[tuple[int, ...], ...]:
    found = []
    with torch.inference_mode():
        for prompt in prompts(count, pair.target.vocab_size, seed):
            ids = torch.tensor([prompt])
            output = pair.reference.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
            )
            found.append(tuple(output[0, len(prompt) :].tolist()))
    return tuple(found)


def greedy_references(pair: Pair, count: int, num_tokens: int, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """transformers' own greedy continuations of `prompts(count, ...)`."""
    return _greedy_references(pair, count, num_tokens, seed)


def count_near_ties(pair: Pair, requests: list[Request], outputs: Any, references: Any) -> int:
    """Outputs that differ from their reference; fails unless the first difference is at a near-tie of the target."""
    num_ties = 0
    for request, output, reference in zip(requests, outputs, references, strict=True):
        assert len(output.tokens) == len(reference)
        pairs = zip(output.tokens, reference, strict=True)
        first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        if first is not None:
            context = torch.tensor([[*request.prompt, *reference[:first]]])
            with torch.inference_mode():
                logits = pair.reference(context).logits[0, -1]
            ours, theirs = logits[output.tokens[first]], logits[reference[first]]
            gap = float(abs(ours - theirs))
            assert gap <= NEAR_TIE, f"token {first}: {gap:.3g} apart in the target's own logits"
            num_ties += 1
    return num_ties
