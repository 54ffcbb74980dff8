"""Greedy decoding in every mode, shape and fallback writes what transformers' `generate` writes, token for token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_pairs import (
    Pair,
    count_near_ties,
    engine_config,
    greedy_references,
    prompts,
    run,
    small_pair,
    with_reduced_head,
)

from executor.config import Request
from executor.engine import Engine, Generation
from executor.launch import SpeculatorProcess
from executor.models import load_model, load_tokenizer
from executor.pairs import pair_paths
from executor.pairs.prompts import read_prompts
from executor.speculator import SpeculatorTask
from executor.transport import Transport
from ssdsim.scenario import Drafting, FallbackChoice, FanOut

NUM_PROMPTS, NUM_TOKENS = 8, 64

K = 4
FACTORS: dict[str, list[Any]] = {
    "fan_out": [
        {"policy": "uniform", "per_position": 3},
        {"policy": "geometric", "budget": 12},
        {"policy": "optimal", "budget": 9},
        {"policy": "explicit", "values": [4, 0, 2, 1, 3]},
        {"policy": "explicit", "values": [0, 0, 0, 0, 1]},
    ],
    "fallback": ["jit", "none", "random", "ngram", "threshold", "auto"],
    "fan_out_on_miss": [None, {"policy": "uniform", "budget": 5}],
    "batch_size": [1, 3, 8],
    "transport": ["local", "pipe", "shm"],
    "on_late": ["wait", "abort", "truncate"],
}


def pairwise(factors: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Cases in which every pair of levels of every two factors occurs: greedily, best of 30 random candidates.

    A process costs seconds to start, so one is used only where a pair with it is still open.
    """
    names = list(factors)
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    rng = np.random.default_rng(0)
    while open_pairs:
        a, i, b, j = min(open_pairs)
        candidates = [{n: int(rng.integers(len(factors[n]))) for n in names} | {a: i, b: j} for _ in range(30)]
        covered = [{(x, c[x], y, c[y]) for x, y in itertools.combinations(names, 2)} & open_pairs for c in candidates]
        best = max(range(30), key=lambda index: len(covered[index]) - 2 * (candidates[index]["transport"] > 0))
        open_pairs -= covered[best]
        yield {name: factors[name][candidates[best][name]] for name in names}


CASES = list(pairwise(FACTORS))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


def greedy_requests(pair: Pair) -> list[Request]:
    return [Request(prompt=p, max_tokens=NUM_TOKENS) for p in prompts(NUM_PROMPTS, pair.target.vocab_size)]


def drafting_of(case: dict[str, Any]) -> Drafting:
    kind = case["fallback"]
    return Drafting(
        num_speculative_tokens=K,
        fan_out=FanOut.model_validate(case["fan_out"]),
        fan_out_on_miss=_on_miss(case),
        fallback=FallbackChoice(kind=kind, threshold=2 if kind == "threshold" else None),
        on_late=case["on_late"],
    )


def _on_miss(case: dict[str, Any]) -> FanOut | None:
    return None if case["fan_out_on_miss"] is None else FanOut.model_validate(case["fan_out_on_miss"])


def run_apart(
    pair: Pair, requests: list[Request], drafting: Drafting, batch_size: int, transport: Transport, **settings: Any
) -> Generation:
    """SSD with the speculator in a process of its own."""
    config = engine_config(pair, "ssd", requests, drafting, batch_size, **settings)
    process = SpeculatorProcess(
        entry="executor.speculator:prepare",
        payload=SpeculatorTask(config=config, draft=pair.draft_dir),
        layout=config.layout,
        transport=transport,
    )
    with process:
        process.wait_until_ready()
        engine = Engine(config, pair.target, process)
        generation = engine.generate(requests)
        engine.close()
    return generation


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_plain_and_speculative_decoding_write_what_transformers_writes(
    pair: Pair, mode: str, batch_size: int
) -> None:
    requests = greedy_requests(pair)
    generation = run(pair, mode, requests, batch_size=batch_size)
    references = greedy_references(pair, NUM_PROMPTS, NUM_TOKENS)
    assert count_near_ties(pair, requests, generation.outputs, references) <= 1


@pytest.mark.serial
@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c['fallback']}-{c['transport']}" for i, c in enumerate(CASES)])
def test_every_arrangement_of_ssd_writes_what_transformers_writes(pair: Pair, case: dict[str, Any]) -> None:
    requests = greedy_requests(pair)
    drafting, settings = drafting_of(case), {"critical_batch_size": 2.5}
    if case["transport"] == "local":
        generation = run(pair, "ssd", requests, drafting, case["batch_size"], **settings)
    else:
        transport = Transport(case["transport"])
        generation = run_apart(pair, requests, drafting, case["batch_size"], transport, **settings)
    references = greedy_references(pair, NUM_PROMPTS, NUM_TOKENS)
    assert count_near_ties(pair, requests, generation.outputs, references) <= 1


@pytest.mark.parametrize("num_speculative_tokens", [1, 2, 7])
def test_any_lookahead_writes_the_same(pair: Pair, num_speculative_tokens: int) -> None:
    requests = greedy_requests(pair)
    drafting = Drafting(num_speculative_tokens=num_speculative_tokens)
    generation = run(pair, "ssd", requests, drafting, batch_size=4)
    references = greedy_references(pair, NUM_PROMPTS, NUM_TOKENS)
    assert count_near_ties(pair, requests, generation.outputs, references) <= 1


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_draft_that_knows_half_of_the_vocabulary_changes_nothing(pair: Pair, mode: str) -> None:
    half = with_reduced_head(pair, list(range(0, pair.target.vocab_size, 2)))
    requests = greedy_requests(pair)
    generation = run(half, mode, requests, batch_size=3)
    references = greedy_references(pair, NUM_PROMPTS, NUM_TOKENS)
    assert count_near_ties(pair, requests, generation.outputs, references) <= 1
    accepted = [accepted for output in generation.outputs for accepted in output.accepted_lengths]
    assert 0 < np.mean(accepted) < K / 2


@pytest.mark.serial
@pytest.mark.parametrize("transport", [Transport.PIPE, Transport.SHM])
def test_another_process_s_drafts_are_sampled_from_as_this_one_s(pair: Pair, transport: Transport) -> None:
    """The draft's probabilities travel; a position's draws are its own, so the same tokens come out."""
    requests = [
        Request(prompt=p, max_tokens=NUM_TOKENS, temperature=0.8, seed=i)
        for i, p in enumerate(prompts(NUM_PROMPTS, pair.target.vocab_size))
    ]
    drafting = Drafting(num_speculative_tokens=K, saguaro_downweight=0.5)
    here = run(pair, "ssd", requests, drafting, batch_size=3)
    there = run_apart(pair, requests, drafting, batch_size=3, transport=transport)
    assert [o.tokens for o in there.outputs] == [o.tokens for o in here.outputs]
    assert [o.accepted_lengths for o in there.outputs] == [o.accepted_lengths for o in here.outputs]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_ssd_that_drafts_its_misses_walks_through_exactly_the_rounds_of_sd(pair: Pair, temperature: float) -> None:
    """At a temperature too, since a position's draw does not depend on who drafts it."""
    requests = [
        Request(prompt=p, max_tokens=NUM_TOKENS, temperature=temperature, seed=i)
        for i, p in enumerate(prompts(NUM_PROMPTS, pair.target.vocab_size))
    ]
    ssd = run(pair, "ssd", requests, batch_size=2)
    sd = run(pair, "sd", requests, batch_size=3)
    assert [o.accepted_lengths for o in ssd.outputs] == [o.accepted_lengths for o in sd.outputs]
    assert [o.tokens for o in ssd.outputs] == [o.tokens for o in sd.outputs]
    num_hits = ssd.records.rounds.columns()["num_hits"].sum()
    assert num_hits > 0.1 * sum(len(o.accepted_lengths) for o in ssd.outputs), "the cache answered hardly anything"


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_a_request_does_not_depend_on_what_shares_its_batch(pair: Pair, mode: str) -> None:
    requests = [
        Request(prompt=p, max_tokens=10 + 7 * i, temperature=0.0 if i % 2 else 1.0, seed=1000 + i)
        for i, p in enumerate(prompts(NUM_PROMPTS, pair.target.vocab_size))
    ]
    together = run(pair, mode, requests, batch_size=4)
    alone = [run(pair, mode, [request]).outputs[0] for request in requests]
    assert [o.tokens for o in together.outputs] == [o.tokens for o in alone]


def test_output_ends_with_the_first_stop_token_unless_told_to_ignore_it(pair: Pair) -> None:
    prompt = prompts(NUM_PROMPTS, pair.target.vocab_size)[0]
    reference = greedy_references(pair, NUM_PROMPTS, NUM_TOKENS)[0]
    stop = reference[20]
    end = reference.index(stop) + 1
    asked = {"prompt": prompt, "max_tokens": NUM_TOKENS, "stop_tokens": frozenset({stop})}
    for mode in ("ar", "sd", "ssd"):
        stopped, ignored = run(pair, mode, [Request(**asked), Request(**asked, ignore_eos=True)]).outputs
        assert stopped.tokens == reference[:end]
        assert stopped.finish_reason.name == "STOP"
        assert ignored.tokens == reference
        assert ignored.finish_reason.name == "LENGTH"


class TestTheTinyPair:
    """64 prompts, 128 tokens each, once per mode: the project's own pair against transformers' `generate`."""

    NUM_PROMPTS, NUM_PROMPT_TOKENS, NUM_TOKENS = 64, 16, 128

    @pytest.fixture(scope="class")
    def tiny(self) -> Pair:
        from transformers import AutoModelForCausalLM

        paths = pair_paths("tiny")
        target, draft = str(paths.target), str(paths.draft)
        reference = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        return Pair(target, draft, load_model(target), load_model(draft), reference)

    @pytest.fixture(scope="class")
    def requests(self) -> list[Request]:
        """Prompts of one length, so that transformers can continue all of them in one batch without padding."""
        tokenizer = load_tokenizer(str(pair_paths("tiny").tokenizer))
        tokens = [tokenizer(prompt.prompt)["input_ids"] for prompt in read_prompts()]
        long_enough = [t[: self.NUM_PROMPT_TOKENS] for t in tokens if len(t) >= self.NUM_PROMPT_TOKENS]
        chosen = long_enough[: self.NUM_PROMPTS]
        return [Request(prompt=t, max_tokens=self.NUM_TOKENS, ignore_eos=True) for t in chosen]

    @pytest.fixture(scope="class")
    def references(self, tiny: Pair, requests: list[Request]) -> list[tuple[int, ...]]:
        ids = torch.tensor([list(r.prompt) for r in requests])
        with torch.inference_mode():
            written = tiny.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=self.NUM_TOKENS,
                min_new_tokens=self.NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return [tuple(row[self.NUM_PROMPT_TOKENS :].tolist()) for row in written]

    @pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
    def test_64_prompts_are_continued_as_transformers_continues_them(
        self, tiny: Pair, requests: list[Request], references: list[tuple[int, ...]], mode: str
    ) -> None:
        assert len(requests) == self.NUM_PROMPTS
        generation = run(tiny, mode, requests, batch_size=16)
        assert count_near_ties(tiny, requests, generation.outputs, references) <= 3
        if mode != "ar":
            accepted = sum(sum(o.accepted_lengths) for o in generation.outputs)
            assert accepted > 0.5 * self.NUM_PROMPTS * self.NUM_TOKENS, "the draft is not worth its name"
