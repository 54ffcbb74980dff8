"""How fast the executor decodes, against transformers and against itself, on the built-in pair.

    python benchmarks/engine.py [--pair tiny] [--dtype float32] [--turns 5] [-K 4] [--fan-out 3] [--json FILE]
    python benchmarks/engine.py --pair smollm2 --dtype bfloat16 -K 3 --fan-out 8 --check

Batch 1, greedy, one thread per process: AR, SD and SSD of the executor, transformers' `generate` with and
without the same draft as `assistant_model` (same K, constant schedule). Every contender is a process that stays open;
they share the same cores and take turns prompt by prompt, there and back, so that a machine which is slower for a
second or a minute is slower for all. A turn is every prompt once; the ratios are those of the turns, their median is
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from executor.config import EngineConfig, Request
from executor.models import vocab_size_of
from executor.pair_source import resolve_pair
from executor.pairs.prompts import read_prompts, select_prompts
from executor.pairs.smollm2 import DRAFT_DIR, load_draft
from executor.placement import CoreReservation
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
class RoundTimes:
    """Of SSD's rounds, in seconds, prefill apart."""

    taken_s: float
    needed_s: float
    """What verification and the misses' drafting take: a round cannot be shorter."""
    longer_side_s: float
    """The longer of window and build, and the fallback: what is left is the handshake and the host."""


@dataclass(frozen=True)
class Play:
    """One prompt, continued by one contender."""

    elapsed_s: float
    tokens: tuple[int, ...]
    rounds: RoundTimes | None = None


Player = Callable[[tuple[int, ...], int], Play]
"""From a prompt and the number of tokens to continue it by."""


@dataclass(frozen=True)
class Task:
    """The same prompts for everybody."""

    pair: ModelPair
    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int
    drafting: Drafting
    cores: tuple[int, ...]
    """Shared by all contenders, who take turns; empty: the kernel's scheduler decides."""

    @contextmanager
    def engine(self, mode: Mode, num_threads: int = 1) -> Iterator[Player]:
        config = EngineConfig(
            mode=mode,
            batch_size=1,
            max_context_tokens=max(map(len, self.prompts)) + self.max_tokens,
            vocab_size=vocab_size_of(self.pair.target),
            drafting=self.drafting,
        )
        arrangement = Arrangement(num_threads=num_threads, pin=bool(self.cores), cores=self.cores)
        with open_engine(config, self.pair, arrangement) as session:

            def play(prompt: tuple[int, ...], max_tokens: int) -> Play:
                generation = session.engine.generate([Request(prompt=prompt, max_tokens=max_tokens, ignore_eos=True)])
                rounds = round_times(generation.records) if mode is Mode.SSD else None
                # Until the last token is out: a build that nobody asks for any more is not waited for.
                elapsed_s = float(generation.records.requests.columns()["finish_s"][0])
                return Play(elapsed_s, generation.outputs[0].tokens, rounds)

            yield play

    @contextmanager
    def transformers(self, *, assisted: bool) -> Iterator[Player]:
        from transformers import AutoModelForCausalLM, GenerationConfig

        torch.set_num_threads(1)
        dtype = getattr(torch, self.pair.dtype)
        target = AutoModelForCausalLM.from_pretrained(self.pair.target, dtype=dtype).eval()
        options: dict[str, Any] = {}
        if assisted:
            draft = self._assistant(dtype)
            draft.generation_config.num_assistant_tokens = self.drafting.num_speculative_tokens
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
            options["assistant_model"] = draft

        def play(prompt: tuple[int, ...], max_tokens: int) -> Play:
            ids = torch.tensor([prompt])
            settings = GenerationConfig(
                max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False, pad_token_id=0
            )
            start = time.perf_counter()
            out = target.generate(ids, generation_config=settings, attention_mask=torch.ones_like(ids), **options)
            return Play(time.perf_counter() - start, tuple(out[0, len(prompt) :].tolist()))

        yield play

    def _assistant(self, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        if self.pair.draft == str(DRAFT_DIR):  # has a reduced head, which transformers does not know
            return load_draft(dtype)
        return AutoModelForCausalLM.from_pretrained(self.pair.draft, dtype=dtype).eval()


CONTENDERS: dict[str, Callable[[Task], AbstractContextManager[Player]]] = {
    "ar": lambda task: task.engine(Mode.AR),
    "sd": lambda task: task.engine(Mode.SD),
    "ssd": lambda task: task.engine(Mode.SSD),
    "generate": lambda task: task.transformers(assisted=False),
    "assisted": lambda task: task.transformers(assisted=True),
    "ar, 2 threads": lambda task: task.engine(Mode.AR, 2),
    "sd, 2 threads": lambda task: task.engine(Mode.SD, 2),
}


class Contender:
    """A contender in a process of its own, ready to continue a prompt."""

    def __init__(self, name: str, task: Task) -> None:
        spawn = get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(name, task, theirs))
        self._process.start()
        theirs.close()
        self._ours.recv()

    def play(self, index: int) -> Play:
        """Continue prompt number `index`. Raises EOFError where the process has failed: it says why itself."""
        self._ours.send(index)
        return self._ours.recv()

    def close(self) -> None:
        self._ours.close()
        self._process.join()


def _serve(name: str, task: Task, theirs: Connection) -> None:
    with CONTENDERS[name](task) as play:
        theirs.send(play(task.prompts[0], min(16, task.max_tokens)))  # warm
        try:
            while True:
                theirs.send(play(task.prompts[theirs.recv()], task.max_tokens))
        except (EOFError, BrokenPipeError):
            return  # Nobody asks any more.


def play_turns(task: Task, names: Sequence[str], num_turns: int) -> dict[str, list[list[Play]]]:
    """The plays of each contender, by turn and prompt."""
    plays: dict[str, list[list[Play]]] = {name: [] for name in names}
    with ExitStack() as stack:
        contenders = {name: stack.enter_context(closing(Contender(name, task))) for name in names}
        for turn in range(num_turns):
            for turns in plays.values():
                turns.append([])
            for index in range(len(task.prompts)):
                for name in (names, names[::-1])[(turn + index) % 2]:
                    plays[name][turn].append(contenders[name].play(index))
            print(f"turn {turn + 1} of {num_turns} played", file=sys.stderr, flush=True)
    return plays


def round_times(records: Records) -> RoundTimes:
    rounds = records.rounds.columns()
    window = rounds["verify_s"] + rounds["accept_s"]
    build = rounds["glue_s"] + rounds["tree_s"] + rounds["store_s"]
    return RoundTimes(
        taken_s=float((rounds["round_s"] - rounds["prefill_s"]).sum()),
        needed_s=float((window + rounds["fallback_s"]).sum()),
        longer_side_s=float((build.clip(min=window) + rounds["fallback_s"]).sum()),
    )


def summary(plays: dict[str, list[list[Play]]]) -> dict[str, Any]:
    rates = {name: [_rate(turn) for turn in turns] for name, turns in plays.items()}
    ratios = {
        f"{a} / {b}": [x / y for x, y in zip(rates[a], rates[b], strict=True)]
        for a, b in SHOWN
        if a in rates and b in rates
    }
    ssd = [[play.rounds for play in turn if play.rounds is not None] for turn in plays.get("ssd", ())]
    rounds = {
        "ssd_share_of_bound": [sum(r.needed_s for r in turn) / sum(r.taken_s for r in turn) for turn in ssd],
        "ssd_round_over_longer_side": [
            sum(r.taken_s for r in turn) / sum(r.longer_side_s for r in turn) for turn in ssd
        ],
    }
    texts = {tuple(play.tokens for play in turn) for turns in plays.values() for turn in turns}
    return {
        "tokens_per_s": {name: _spread(values) for name, values in rates.items()},
        "ratios": {name: _spread(values) for name, values in ratios.items()},
        "ssd_rounds": {name: _spread(values) for name, values in rounds.items() if values},
        "same_tokens": len(texts) == 1,
        "load_average": os.getloadavg()[0],
    }


def _rate(turn: list[Play]) -> float:
    return sum(len(play.tokens) for play in turn) / sum(play.elapsed_s for play in turn)


def _spread(turns: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(turns), "min": min(turns), "max": max(turns), "turns": turns}


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
    if unknown := set(options.contenders or ()) - set(CONTENDERS):
        parser.error(f"--contenders: {', '.join(sorted(unknown))}: not one of {', '.join(CONTENDERS)}")
    cores = CoreReservation([1, 1])
    task = make_task(options, tuple(core for role in cores.placements for core in role.cores))
    result = summary(play_turns(task, options.contenders or list(CONTENDERS), options.turns))
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


def make_task(options: argparse.Namespace, cores: tuple[int, ...]) -> Task:
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
        cores=cores,
    )


if __name__ == "__main__":
    sys.exit(main())
