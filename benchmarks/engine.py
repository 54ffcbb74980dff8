"""How fast the executor decodes, against transformers and against itself, on the built-in pair.

    python benchmarks/engine.py [--pair tiny] [--dtype float32] [--turns 5] [-K 4] [--fan-out 3] [--json FILE]
    python benchmarks/engine.py --pair smollm2 --dtype bfloat16 -K 3 --fan-out 8 --check

Batch 1, greedy, one thread per process: AR, SD and SSD of the executor, transformers' `generate` with and
without the same draft as `assistant_model` (same K, constant schedule). Contenders take turns within one run, there
and back, so that a steady drift of the machine favours none; the ratios are those of the turns, their median is
quoted with the smallest and largest. SSD uses two cores, so AR and SD with two threads are the equal-hardware rows.
`--contenders ar sd ssd` leaves the others out: more turns in the same time. With --check: exits 1 where a target is
missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from executor.config import EngineConfig, Request
from executor.models import vocab_size_of
from executor.pair_source import resolve_pair
from executor.pairs.prompts import read_prompts, select_prompts
from executor.pairs.smollm2 import DRAFT_DIR, load_draft
from executor.prompts_input import tokenise
from executor.roles import ModelPair
from executor.session import Arrangement, open_engine
from ssdsim.measurement import ModelSource
from ssdsim.records import Records
from ssdsim.scenario import Drafting, FanOut, Mode

TARGETS = {
    "tiny": {("ssd", "sd"): 1.25, ("ssd", "ar"): 1.6, ("sd", "assisted"): 1.5, ("ar", "generate"): 1.2},
    "smollm2": {("ssd", "sd"): 1.10, ("ssd", "ar"): 1.4},
}
SHOWN = tuple(TARGETS["tiny"])
MIN_SHARE_OF_BOUND = 0.9


@dataclass(frozen=True)
class Run:
    """One contender's turn."""

    tokens_per_s: float
    tokens: tuple[tuple[int, ...], ...]
    records: Records | None = None


@dataclass(frozen=True)
class Task:
    """The same prompts for everybody."""

    pair: ModelPair
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    drafting: Drafting

    def engine(self, mode: Mode, num_threads: int = 1) -> Run:
        longest = max(map(len, self.prompts))
        config = EngineConfig(
            mode=mode,
            batch_size=1,
            max_context_tokens=longest + self.max_tokens,
            vocab_size=vocab_size_of(self.pair.target),
            drafting=self.drafting,
        )
        requests = [Request(prompt=p, max_tokens=self.max_tokens, ignore_eos=True) for p in self.prompts]
        with open_engine(config, self.pair, Arrangement(num_threads=num_threads)) as session:
            session.engine.generate([Request(prompt=self.prompts[0], max_tokens=16, ignore_eos=True)])
            start = time.perf_counter()
            generation = session.engine.generate(requests)
            elapsed = time.perf_counter() - start
        outputs = tuple(output.tokens for output in generation.outputs)
        return Run(sum(map(len, outputs)) / elapsed, outputs, generation.records)

    def transformers(self, *, assisted: bool) -> Run:
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, self.pair.dtype)
        target = AutoModelForCausalLM.from_pretrained(self.pair.target, dtype=dtype).eval()
        options: dict[str, Any] = {}
        if assisted:
            draft = self._assistant(dtype)
            draft.generation_config.num_assistant_tokens = self.drafting.num_speculative_tokens
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
            options["assistant_model"] = draft

        def generate(prompt: Sequence[int], max_tokens: int) -> tuple[int, ...]:
            ids = torch.tensor([prompt])
            out = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
                **options,
            )
            return tuple(out[0, len(prompt) :].tolist())

        torch.set_num_threads(1)
        generate(self.prompts[0], 16)
        start = time.perf_counter()
        outputs = tuple(generate(prompt, self.max_tokens) for prompt in self.prompts)
        return Run(sum(map(len, outputs)) / (time.perf_counter() - start), outputs)

    def _assistant(self, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        if self.pair.draft == str(DRAFT_DIR):  # has a reduced head, which transformers does not know
            return load_draft(dtype)
        return AutoModelForCausalLM.from_pretrained(self.pair.draft, dtype=dtype).eval()


def contenders(task: Task) -> dict[str, Callable[[], Run]]:
    return {
        "ar": lambda: task.engine(Mode.AR),
        "sd": lambda: task.engine(Mode.SD),
        "ssd": lambda: task.engine(Mode.SSD),
        "generate": lambda: task.transformers(assisted=False),
        "assisted": lambda: task.transformers(assisted=True),
        "ar, 2 threads": lambda: task.engine(Mode.AR, 2),
        "sd, 2 threads": lambda: task.engine(Mode.SD, 2),
    }


def share_of_bound(records: Records) -> float:
    """SSD's rate over what its own misses and verification allow: time of both over the time of the rounds."""
    rounds = records.rounds.columns()
    needed = sum(float(rounds[term].sum()) for term in ("verify_s", "accept_s", "fallback_s"))
    return needed / float((rounds["round_s"] - rounds["prefill_s"]).sum())


def round_over_longer_side(records: Records) -> float:
    """Mean round over the mean of max(window, build) and the fallback: what the handshake and the host add."""
    rounds = records.rounds.columns()
    window = rounds["verify_s"] + rounds["accept_s"]
    build = rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"]
    longer = (build.clip(min=window) + rounds["fallback_s"]).sum()
    return float((rounds["round_s"] - rounds["prefill_s"]).sum() / longer)


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    rates = {name: [run.tokens_per_s for run in turns] for name, turns in runs.items()}
    ratios = {
        f"{a} / {b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)]
        for a, b in SHOWN
        if a in rates and b in rates
    }
    ssd = [run.records for run in runs.get("ssd", ()) if run.records is not None]
    rounds = {"ssd_share_of_bound": share_of_bound, "ssd_round_over_longer_side": round_over_longer_side}
    return {
        "tokens_per_s": {name: _spread(values) for name, values in rates.items()},
        "ratios": {name: _spread(values) for name, values in ratios.items()},
        "ssd_rounds": {name: _spread(list(map(share, ssd))) for name, share in rounds.items() if ssd},
        "same_tokens": len({run.tokens for turns in runs.values() for run in turns}) == 1,
        "load_average": os.getloadavg()[0],
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def missed(result: dict[str, Any], pair: str) -> list[str]:
    """What falls short of its target, or was not played: a target that nobody looked at is not met."""
    least = {f"{a} / {b}": target for (a, b), target in TARGETS.get(pair, {}).items()}
    least["ssd_share_of_bound"] = MIN_SHARE_OF_BOUND
    seen = {**result["ratios"], **result["ssd_rounds"]}
    unseen = [f"{name}: not played, at least {target}" for name, target in least.items() if name not in seen]
    return unseen + [
        f"{name}: {seen[name]['median']:.2f}, at least {target}"
        for name, target in least.items()
        if name in seen and seen[name]["median"] < target
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="The executor against transformers and against itself.")
    parser.add_argument("--pair", default="tiny")
    parser.add_argument("--dtype", default="float32", help="same tokens everywhere are promised in float32 only")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("-K", type=int, default=4, dest="lookahead")
    parser.add_argument("--fan-out", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="play these only (default: all)")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    playing = contenders(make_task(options))
    if unknown := set(options.contenders or ()) - set(playing):
        parser.error(f"--contenders: {', '.join(sorted(unknown))}: not one of {', '.join(playing)}")
    order = list(options.contenders or playing)
    runs: dict[str, list[Run]] = {}
    for turn in range(options.turns):
        for name in (order, order[::-1])[turn % 2]:
            runs.setdefault(name, []).append(playing[name]())
    result = summary(runs)
    for part in ("tokens_per_s", "ratios"):
        for name, spread in result[part].items():
            print(f"{name:18} {spread['median']:8.2f}   {spread['min']:.2f} .. {spread['max']:.2f}")
    for name, spread in result["ssd_rounds"].items():
        print(f"{name:28} {spread['median']:.3f}")
    print(f"same tokens everywhere: {result['same_tokens']}; load {result['load_average']:.1f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    problems = missed(result, options.pair)
    for problem in problems:
        print(f"missed: {problem}")
    return 1 if options.check and problems else 0


def make_task(options: argparse.Namespace) -> Task:
    named = resolve_pair(ModelSource(pair=options.pair, dtype=options.dtype))
    chosen = tokenise(select_prompts(read_prompts(), options.prompts), named.tokenizer(), raw=False)
    return Task(
        pair=named.models,
        prompts=tuple(tuple(prompt.tokens) for prompt in chosen),
        max_tokens=options.max_tokens,
        drafting=Drafting(
            num_speculative_tokens=options.lookahead,
            fan_out=FanOut(policy="uniform", per_position=options.fan_out),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
