"""Distil a draft for SmolLM2-135M-Instruct: `python -m executor.pairs.train_smollm2 --work DIR --out DIR`.

Who uses it: whoever wants to reproduce the draft of the pair `smollm2` or carry it further. Three stages: the
target talks to itself in large batches while its top 32 are logged, one file per batch, `--batches` of them from
number `--first-batch` on; the draft (2 layers, the target's embedding, a head over its most frequent tokens) learns
from the log, from its checkpoint on; then it is stored and measured on the target's answers to the project's own
prompts, which training never saw. A second run with more batches or steps carries on where the first ended. On two
cores one process may write (`--stage log`) while another writes other numbers, or learns (`--stage draft`): every 200
steps it takes in what was added.
"""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from executor.pairs.distillation import agreement, distillation_loss
from executor.pairs.prompts import read_prompts, select_prompts
from executor.pairs.recipes import parse_recipe
from executor.pairs.reduced_head import build_reduced, load_reduced, save_reduced
from executor.pairs.self_chat import SelfChat
from executor.pairs.smollm2 import target_dir, target_embedding
from executor.pairs.teacher import GREEDY, SAMPLED, Model, TeacherLog, continuation, write_text
from executor.pairs.training import TrainingPlan, fit, scheduled

_RELOAD_STEPS = 200
"""Steps between two looks at how far the log has grown."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the draft; every field is a flag of the command line.

    `stage` is `log`, `draft` (which takes the log as it finds it) or `all`. `dtype` is that of the products while
    logging and training (weights being trained stay fp32): bfloat16 is faster where the processor multiplies it.
    `start` is the folder of a stored draft to carry on from, whose head stays as it is; a fresh one where empty.
    `plain_share` of the rows are text without chat marks. `threads` is how many cores a process uses.
    """

    stage: str = "all"
    threads: int = 1
    start: str = ""
    seed: int = 0
    first_batch: int = 0
    batches: int = 8
    rows_per_batch: int = 192
    row_tokens: int = 256
    plain_share: float = 0.25
    top_k: int = 32
    dtype: str = "bfloat16"
    layers: int = 2
    head_tokens: int = 8192
    steps: int = 1500
    rows_per_step: int = 8
    lr: float = 3e-3
    overlap_weight: float = 1.0
    measured_prompts: int = 32
    answer_tokens: int = 128


def load_target() -> tuple[Model, Any]:
    """(target in fp32, tokenizer)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = target_dir()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(directory)


def log_files(work: Path) -> list[Path]:
    """The finished batches of the log, in order."""
    return sorted(work.glob("chat-*.safetensors"))


def log_target(recipe: Recipe, target: Model, tokenizer: Any, work: Path) -> None:
    """Let the target write the batches that `work` lacks, one file each."""
    chat = SelfChat(tokenizer, recipe.plain_share)
    target.to(getattr(torch, recipe.dtype))
    for number in range(recipe.first_batch, recipe.first_batch + recipe.batches):
        file = work / f"chat-{number:03d}.safetensors"
        if file.is_file():
            continue
        rng = random.Random(recipe.seed * 10_000 + number)
        scripts = [chat.script(rng) for _ in range(recipe.rows_per_batch)]
        generator = torch.Generator().manual_seed(recipe.seed * 10_000 + number)
        write_text(target, scripts, recipe.row_tokens, generator, recipe.top_k).save(file)
        print(f"logged {file.name}", flush=True)
    target.float()


def head_tokens(log: TeacherLog, count: int, vocab_size: int, file: Path) -> Tensor:
    """The `count` ids [count] (ascending) to which the target gives the most probability over the whole log.

    Chosen once and kept in `file`: a head may not change under a draft that has begun to learn.
    """
    if not file.is_file():
        mass = torch.zeros(vocab_size).index_add(0, log.top_ids.flatten(), log.top_probs.flatten().float())
        torch.save(mass.topk(count).indices.sort().values, file)
    ids: Tensor = torch.load(file, weights_only=True)
    return ids


def onto_head(log: TeacherLog, token_ids: Tensor, vocab_size: int) -> TeacherLog:
    """The log as the reduced head sees it: ids are head positions, probabilities are given that the token has one."""
    position = torch.full((vocab_size,), -1).index_put((token_ids,), torch.arange(len(token_ids)))
    ids = position[log.top_ids.long()]
    probs = torch.where(ids >= 0, log.top_probs.float(), 0.0)
    probs = probs / probs.sum(-1, keepdim=True).clamp(min=1e-6)
    return TeacherLog(log.tokens, ids.clamp(min=0).int(), probs.half())


def new_draft(recipe: Recipe, token_ids: Tensor) -> Any:
    """A draft of the target's width with `recipe.layers` fresh layers over its frozen embedding."""
    from transformers import AutoConfig

    torch.manual_seed(recipe.seed)
    config = AutoConfig.from_pretrained(target_dir())
    config.num_hidden_layers = recipe.layers
    return build_reduced(config, target_embedding().float(), token_ids)


def first_draft(recipe: Recipe, log: TeacherLog, vocab_size: int, head_file: Path) -> Any:
    """What training begins with: the draft stored in `recipe.start`, or fresh layers under a head chosen now."""
    if recipe.start:
        return load_reduced(Path(recipe.start), target_embedding().float(), torch.float32)
    return new_draft(recipe, head_tokens(log, recipe.head_tokens, vocab_size, head_file))


def head_loss(log: TeacherLog, recipe: Recipe) -> Callable[[nn.Module, int], Tensor]:
    """Distillation over the reduced head, for the rows of a step."""

    def loss(model: Any, step: int) -> Tensor:
        pick = scheduled(step, recipe.rows_per_step, len(log), recipe.seed)
        with torch.autocast("cpu", getattr(torch, recipe.dtype), enabled=recipe.dtype != "float32"):
            hidden = model.model(log.tokens[pick].long(), use_cache=False).last_hidden_state
            logits = model.lm_head.reduced(hidden)
        return distillation_loss(logits, log.top_ids[pick], log.top_probs[pick], recipe.overlap_weight)

    return loss


def measure(recipe: Recipe, target: Model, draft: Model, tokenizer: Any) -> dict[str, Any]:
    """Agreement on the target's own answers to the project's prompts, as chats and as plain text, at T=0 and T=1."""
    facts: dict[str, Any] = {}
    prompts = select_prompts(read_prompts(), recipe.measured_prompts)
    for style in ("chat", "plain"):
        for name, choice in (("t0", GREEDY), ("t1", SAMPLED)):
            rows = [prompt_ids(tokenizer, prompt.prompt, style) for prompt in prompts]
            length = max(map(len, rows)) + recipe.answer_tokens
            generator = torch.Generator().manual_seed(recipe.seed)
            scripts = [continuation(row, choice) for row in rows]
            log = write_text(target, scripts, length, generator, k=1)
            facts[f"{style}_{name}"] = _answers_agreement(recipe, target, draft, log.tokens.long(), rows)
    return facts


def prompt_ids(tokenizer: Any, prompt: str, style: str) -> list[int]:
    """Token ids of a prompt as a chat turn with the default system message, or as it stands."""
    if style == "chat":
        turns = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return ids


def _answers_agreement(
    recipe: Recipe, target: Model, draft: Model, tokens: Tensor, prompts: list[list[int]]
) -> dict[str, float]:
    """Weighted by positions: from a prompt's last token to the answer's end (its first end token, or 128 tokens)."""
    end = target.config.eos_token_id
    parts = []
    for row, prompt in zip(tokens, prompts, strict=True):
        answer = row[len(prompt) : len(prompt) + recipe.answer_tokens]
        ends = (answer == end).nonzero()
        length = int(ends[0]) + 1 if len(ends) else len(answer)
        text = row[None, : len(prompt) + length - 1]
        parts.append(agreement(target, draft, text, first=len(prompt) - 1))
    total = sum(part.num_positions for part in parts)
    return {
        "sampled": sum(part.sampled * part.num_positions for part in parts) / total,
        "greedy": sum(part.greedy * part.num_positions for part in parts) / total,
        "num_positions": total,
    }


def train_draft(recipe: Recipe, work: Path, out: Path) -> None:
    """All stages; the draft lies in `out`, its loss curve and `measured.json` beside it."""
    target, tokenizer = load_target()
    if recipe.stage != "draft":
        log_target(recipe, target, tokenizer, work)
    if recipe.stage == "log":
        return
    log = TeacherLog.load(log_files(work))
    vocab_size = target.config.vocab_size
    draft = first_draft(recipe, log, vocab_size, work / "head.pt")
    token_ids = draft.lm_head.token_ids
    plan = TrainingPlan(steps=recipe.steps, peak_lr=recipe.lr, muon=True)
    for step in range(0, recipe.steps, _RELOAD_STEPS):
        log = TeacherLog.load(log_files(work))
        loss = head_loss(onto_head(log, token_ids, vocab_size), recipe)
        fit(draft, loss, plan, work / "draft.pt", until=step + _RELOAD_STEPS)
    save_reduced(draft, out)
    shutil.copy(work / "draft.csv", out / "curve.csv")
    stored = load_reduced(out, target_embedding(), torch.float32)
    facts = {"recipe": dataclasses.asdict(recipe), "log_tokens": log.tokens.numel()}
    facts |= measure(recipe, target, stored, tokenizer)
    (out / "measured.json").write_text(json.dumps(facts, indent=1) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Parse the recipe from the command line and train."""
    recipe, work, out = parse_recipe(Recipe, "Distil the draft of the pair `smollm2`; a second run resumes.", argv)
    torch.set_num_threads(recipe.threads)
    train_draft(recipe, work, out)


if __name__ == "__main__":
    main()
