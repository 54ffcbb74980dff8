"""Train the pair `tiny` from scratch: `python -m executor.pairs.train_tiny --work DIR --out DIR`.

Who uses it: whoever wants to reproduce or replace the committed pair. Five stages, each skipped where `--work`
already holds its product and each resuming from its own checkpoint: a byte-level tokenizer; the target, on the
standard library's text; the target's view of text that it reads and text that it writes; the draft, first on the
text and then distilled from that view; and a report of losses, acceptance and step times. `--out` gets the bf16
weights that the project commits. All measurements are of those rounded weights.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from executor.pairs.corpus import Corpus, standard_library
from executor.pairs.distillation import distillation_loss
from executor.pairs.recipes import parse_recipe
from executor.pairs.teacher import GREEDY, SAMPLED, TeacherLog, continuation, read_text, write_text
from executor.pairs.tokenizer import encode_all, load_tokenizer, train_tokenizer
from executor.pairs.training import TrainingPlan, fit, scheduled


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the weights; every field is a flag of the command line."""

    seed: int = 0
    vocab_size: int = 2048
    max_documents: int = 1_000_000
    target_hidden: int = 384
    target_intermediate: int = 768
    target_layers: int = 10
    target_heads: int = 8
    target_kv_heads: int = 4
    target_steps: int = 660
    target_lr: float = 1.5e-3
    target_rows: int = 2
    draft_hidden: int = 192
    draft_intermediate: int = 512
    draft_layers: int = 2
    draft_heads: int = 3
    draft_kv_heads: int = 3
    draft_steps: int = 200
    draft_lr: float = 4e-3
    draft_rows: int = 4
    distil_steps: int = 450
    distil_lr: float = 3e-3
    overlap_weight: float = 1.0
    row_tokens: int = 512
    rows_per_file: int = 64
    read_files: int = 4
    written_files: int = 1
    prompt_tokens: int = 48
    top_k: int = 64


def build_model(recipe: Recipe, role: str) -> nn.Module:
    """A fresh Llama of the recipe's shape for `role` ("target" or "draft"), seeded."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def shape(name: str) -> int:
        return int(getattr(recipe, f"{role}_{name}"))

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=recipe.vocab_size,
        hidden_size=shape("hidden"),
        intermediate_size=shape("intermediate"),
        num_hidden_layers=shape("layers"),
        num_attention_heads=shape("heads"),
        num_key_value_heads=shape("kv_heads"),
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model


class TextBatches:
    """The training text as one stream cut into rows, visited in a seeded order, one permutation per pass."""

    def __init__(self, stream: Tensor, row_tokens: int, rows_per_step: int, seed: int) -> None:
        self.rows = stream[: len(stream) // row_tokens * row_tokens].view(-1, row_tokens)
        self._rows_per_step = rows_per_step
        self._seed = seed

    def __call__(self, step: int) -> Tensor:
        """The rows [rows_per_step, row_tokens] of `step`."""
        return self.rows[scheduled(step, self._rows_per_step, len(self.rows), self._seed)].long()


def text_loss(batches: TextBatches) -> Callable[[nn.Module, int], Tensor]:
    """Mean cross-entropy (nats per token) of the next token over the rows of a step."""

    def loss(model: nn.Module, step: int) -> Tensor:
        rows = batches(step)
        logits = model(rows, use_cache=False).logits[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    return loss


def teacher_loss(log: TeacherLog, recipe: Recipe) -> Callable[[nn.Module, int], Tensor]:
    """Distillation from the logged target over the rows of a step."""

    def loss(model: nn.Module, step: int) -> Tensor:
        pick = scheduled(step, recipe.draft_rows, len(log), recipe.seed)
        logits = model(log.tokens[pick].long(), use_cache=False).logits
        return distillation_loss(logits, log.top_ids[pick], log.top_probs[pick], recipe.overlap_weight)

    return loss


def train_target(recipe: Recipe, stream: Tensor, work: Path, *, until: int | None = None) -> nn.Module:
    """The target, trained on the text; `until` stops early, at that step, leaving the checkpoint."""
    model = build_model(recipe, "target")
    batches = TextBatches(stream, recipe.row_tokens, recipe.target_rows, recipe.seed)
    plan = TrainingPlan(steps=recipe.target_steps, peak_lr=recipe.target_lr)
    fit(model, text_loss(batches), plan, work / "target.pt", until=until)
    return model


def log_target(recipe: Recipe, target: nn.Module, stream: Tensor, work: Path) -> TeacherLog:
    """The target's view of text that it reads, and of text that it writes: half greedily, half at temperature 1."""
    rows = TextBatches(stream, recipe.row_tokens, 1, recipe.seed).rows
    size = recipe.rows_per_file
    files = []
    for number in range(recipe.read_files):
        pick = scheduled(number, size, len(rows), recipe.seed + 1)
        files.append(work / f"read-{number:03d}.safetensors")
        if not files[-1].is_file():
            read_text(target, rows[pick], recipe.top_k).save(files[-1])
    for number in range(recipe.written_files):
        pick = scheduled(number, size, len(rows), recipe.seed + 2)
        files.append(work / f"written-{number:03d}.safetensors")
        if not files[-1].is_file():
            _write(recipe, target, rows[pick], recipe.seed + number).save(files[-1])
    return TeacherLog.load(files)


def _write(recipe: Recipe, target: nn.Module, rows: Tensor, seed: int) -> TeacherLog:
    prompts = rows[:, : recipe.prompt_tokens].tolist()
    scripts = [continuation(prompt, (GREEDY, SAMPLED)[i % 2]) for i, prompt in enumerate(prompts)]
    generator = torch.Generator().manual_seed(seed)
    return write_text(target, scripts, recipe.row_tokens, generator, recipe.top_k)


def train_draft(recipe: Recipe, target: nn.Module, stream: Tensor, work: Path) -> nn.Module:
    """The draft: first the text itself, then what the target makes of it."""
    model = build_model(recipe, "draft")
    batches = TextBatches(stream, recipe.row_tokens, recipe.draft_rows, recipe.seed)
    plan = TrainingPlan(steps=recipe.draft_steps, peak_lr=recipe.draft_lr)
    fit(model, text_loss(batches), plan, work / "draft.pt")
    log = log_target(recipe, target, stream, work)
    plan = TrainingPlan(steps=recipe.distil_steps, peak_lr=recipe.distil_lr)
    fit(model, teacher_loss(log, recipe), plan, work / "distilled.pt")
    return model


def export(model: Any, directory: Path) -> Any:
    """Store `model` in bf16 with its configuration, and return it as everyone will load it: rounded, in fp32."""
    from transformers import LlamaForCausalLM

    model.to(torch.bfloat16).save_pretrained(directory)
    return LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def encode_corpus(recipe: Recipe, corpus: Corpus, out: Path) -> tuple[Tensor, Tensor]:
    """(training stream, held-out stream) of token ids; trains the tokenizer unless `out` has one."""
    if not (out / "tokenizer.json").is_file():
        train_tokenizer(corpus.train, recipe.vocab_size, out)
    tokenizer = load_tokenizer(out)
    order = torch.randperm(len(corpus.train), generator=torch.Generator().manual_seed(recipe.seed)).tolist()
    return encode_all(tokenizer, [corpus.train[i] for i in order]), encode_all(tokenizer, corpus.held_out)


def train_pair(recipe: Recipe, work: Path, out: Path) -> None:
    """All stages; the pair lies in `out` and the numbers about it in `out`/measured.json."""
    from executor.pairs.measure_tiny import measure_pair

    corpus = standard_library(recipe.max_documents)
    stream, held_out = encode_corpus(recipe, corpus, out)
    print(f"{len(stream)} training tokens, {len(held_out)} held out, corpus {corpus.digest[:12]}", flush=True)
    target = export(train_target(recipe, stream, work), out / "target")
    draft = export(train_draft(recipe, target, stream, work), out / "draft")
    facts = {
        "recipe": dataclasses.asdict(recipe),
        "corpus_sha256": corpus.digest,
        "training_tokens": len(stream),
    }
    facts |= measure_pair(target, draft, held_out)
    for curve in ("target", "draft", "distilled"):
        shutil.copy(work / f"{curve}.csv", out / f"curve_{curve}.csv")
    (out / "measured.json").write_text(json.dumps(facts, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Parse the recipe from the command line and train on one thread."""
    torch.set_num_threads(1)
    train_pair(*parse_recipe(Recipe, "Train the pair `tiny`; a second run resumes the first.", argv))


if __name__ == "__main__":
    main()
