"""One optimiser loop for every model trained here: checkpoints, exact resume, and a loss curve on disk.

Who uses it: `train_tiny` and `train_smollm2`. A step's batch and learning rate are functions of the step's number
alone, so a run that was interrupted and resumed from its checkpoint ends with the very same weights as one that
was not (same machine, same number of threads).
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, int], Tensor]
"""(model, step) -> the scalar loss of that step's batch."""

_LOG_EVERY = 20


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """AdamW, or Muon for the matrices, with a linear warm-up and a linear decay to zero.

    Muon (Jordan et al., 2024), its updates scaled to AdamW's size so that one learning rate serves both, takes fewer
    and longer steps: for where text is scarcer than time.
    """

    steps: int
    peak_lr: float
    muon: bool = False
    warmup_steps: int = 40
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    save_every_s: float = 120.0

    def lr(self, step: int) -> float:
        """The learning rate of `step` (0-based)."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        return self.peak_lr * min(warmup, (self.steps - step) / max(1, self.steps - self.warmup_steps))


def fit(model: nn.Module, loss: Loss, plan: TrainingPlan, checkpoint: Path, *, until: int | None = None) -> None:
    """Train `model` in place to the end of the plan, or only to step `until`; resume where `checkpoint` left off.

    Beside the checkpoint, `<stem>.csv` gets one line per 20 steps: step, mean loss, learning rate, seconds so far.
    """
    optimizers = _optimizers(model, plan)
    state = _load(checkpoint, model, optimizers)
    first, spent_s = int(state["step"]), float(state["spent_s"])
    last = plan.steps if until is None else min(until, plan.steps)
    model.train()
    started = saved = time.monotonic()
    recent: list[float] = []
    for step in range(first, last):
        recent.append(_step(model, loss, optimizers, plan, step))
        now = time.monotonic()
        if (step + 1) % _LOG_EVERY == 0 or step + 1 == last:
            _log(checkpoint.with_suffix(".csv"), step + 1, recent, plan.lr(step), spent_s + now - started)
            recent.clear()
        if now - saved > plan.save_every_s or step + 1 == last:
            _save(checkpoint, model, optimizers, step + 1, spent_s + now - started)
            saved = now
    model.eval()


def scheduled(step: int, size: int, total: int, seed: int) -> Tensor:
    """The indices [size] below `total` that `step` visits: each once per pass, every pass in an order of its own."""
    size = min(size, total)
    passes, position = divmod(step, total // size)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed + passes))
    return order[position * size : (position + 1) * size]


def _optimizers(model: nn.Module, plan: TrainingPlan) -> list[torch.optim.Optimizer]:
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices, others = [p for p in trained if p.ndim >= 2], [p for p in trained if p.ndim < 2]
    groups = [{"params": others, "weight_decay": 0.0}]
    if not plan.muon:
        groups.insert(0, {"params": matrices, "weight_decay": plan.weight_decay})
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=plan.peak_lr, betas=(0.9, 0.95), fused=True)
    ]
    if plan.muon:
        optimizers.append(
            torch.optim.Muon(
                matrices, lr=plan.peak_lr, weight_decay=plan.weight_decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    return optimizers


def _step(
    model: nn.Module, loss: Loss, optimizers: list[torch.optim.Optimizer], plan: TrainingPlan, step: int
) -> float:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = plan.lr(step)
    value = loss(model, step)
    if not math.isfinite(value.item()):
        raise FloatingPointError(f"loss is {value.item()} at step {step}: lower the learning rate")
    model.zero_grad(set_to_none=True)
    value.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    for optimizer in optimizers:
        optimizer.step()
    return value.item()


def _load(checkpoint: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, float]:
    if not checkpoint.is_file():
        return {"step": 0, "spent_s": 0.0}
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    print(f"{checkpoint.stem}: resumed at step {state['step']}", flush=True)
    return {"step": state["step"], "spent_s": state["spent_s"]}


def _save(
    checkpoint: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], step: int, spent_s: float
) -> None:
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    partial = checkpoint.with_suffix(".partial")
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
        "spent_s": spent_s,
    }
    torch.save(state, partial)
    os.replace(partial, checkpoint)


def _log(path: Path, step: int, recent: list[float], lr: float, spent_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.is_file()
    mean = sum(recent) / len(recent)
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["step", "loss", "lr", "spent_s"])
        writer.writerow([step, f"{mean:.4f}", f"{lr:.6f}", f"{spent_s:.1f}"])
    print(f"{path.stem}: step {step} loss {mean:.4f} lr {lr:.2e} {spent_s:.0f} s", flush=True)
