"""The method `real` of `ssdsim.evaluate`: a scenario answered by running its pair.

The entry point `real` of the group `ssdsim.methods`. Policies are those of the scenario, resolved as the exact model
and the simulator resolve them; prompts are the project's own, cut or joined to the scenario's lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from executor.config import EngineConfig, Request
from executor.measure import check_speculator, count_from_zero, read_token_prompts, warm_up
from executor.models import vocab_size_of
from executor.pair_source import NamedPair, resolve_pair
from executor.pairs import BUILT_IN
from executor.prompts_input import TokenPrompt
from executor.resolution import resolved_drafting
from executor.session import Session, open_engine
from executor.synthetic import law_of
from ssdsim.design_point import behaviour_of, resolve
from ssdsim.distributions import Constant, sample_lengths
from ssdsim.errors import InputError
from ssdsim.measurement import ModelSource, Texts
from ssdsim.metrics import summarise
from ssdsim.profile import PairProfile
from ssdsim.quantities import Quantity
from ssdsim.records import Records
from ssdsim.scenario import Mode, Scenario

_ALL_PROMPTS = 10_000
_LONG_REQUEST = 512
"""Output tokens of a request that stands for an endless one."""


def real(scenario: Scenario, mode: Mode) -> tuple[dict[str, Quantity], tuple[str, ...]]:
    """(quantities by name, what a reader should know of them).

    Raises InputError where the scenario's pair is no pair that can be loaded here, or does not fit the models.
    """
    pair = resolve_pair(model_source(scenario.pair))
    prompts = _prompts(scenario, pair)
    requests = requests_for(scenario, prompts)
    config = config_for(scenario, mode, requests, vocab_size_of(pair.models.target))
    if pair.is_dummy:
        law = law_of(behaviour_of(scenario), scenario.drafting.num_speculative_tokens)
        config = replace(config, synthetic=True, behaviour=law)
    with open_engine(config, pair.models) as session:
        warm_up(session, requests[: config.batch_size])
        records = _run(session, scenario, requests)
    records.about.update({"mode": mode.value, "scenario": scenario.model_dump(mode="json")})
    quantities = summarise(records)
    return quantities, tuple(_notes(scenario, quantities))


def model_source(profile: PairProfile) -> ModelSource:
    """The models behind a profile: a built-in pair by its name, else `target` and `draft` as sources of weights."""
    if profile.name in BUILT_IN:
        return ModelSource(pair=profile.name)
    prefix, _, role = profile.target.partition("/")
    if prefix in BUILT_IN and role == "target":
        return ModelSource(pair=prefix)
    return ModelSource(target=profile.target, draft=profile.draft)


def config_for(scenario: Scenario, mode: Mode, requests: Sequence[Request], vocab_size: int) -> EngineConfig:
    """The engine's configuration, with the scenario's policies resolved to vectors and actions."""
    return EngineConfig(
        mode=mode,
        batch_size=scenario.workload.batch_size,
        max_context_tokens=max(len(request.prompt) + request.max_tokens for request in requests),
        vocab_size=vocab_size,
        drafting=resolved_drafting(resolve(scenario)),
        sampled=scenario.workload.temperature > 0,
    )


def requests_for(scenario: Scenario, prompts: Sequence[TokenPrompt]) -> list[Request]:
    """The scenario's requests, lengths drawn from its distributions."""
    workload, run = scenario.workload, scenario.run
    output = workload.output_tokens or Constant(value=_LONG_REQUEST)
    count = workload.num_requests if workload.output_tokens is not None else _num_long_requests(scenario)
    draws = np.random.default_rng(run.seed).random((2, count))
    prompt_lengths = sample_lengths(workload.prompt_tokens, draws[0])
    output_lengths = sample_lengths(output, draws[1])
    return [
        Request(
            prompt=_prompt_of_length(prompts, index, int(prompt_lengths[index])),
            max_tokens=int(output_lengths[index]),
            temperature=workload.temperature,
            seed=run.seed + index,
            ignore_eos=True,
        )
        for index in range(count)
    ]


def _num_long_requests(scenario: Scenario) -> int:
    """So many requests that about the scenario's rounds are run, at two tokens a round."""
    batch_size, run = scenario.workload.batch_size, scenario.run
    return batch_size * -(-2 * (run.num_rounds + run.warmup_rounds) // _LONG_REQUEST)


def _prompt_of_length(prompts: Sequence[TokenPrompt], index: int, length: int) -> tuple[int, ...]:
    """Prompt number `index`, cut, or joined with those after it."""
    tokens: tuple[int, ...] = ()
    while len(tokens) < length:
        tokens += prompts[index % len(prompts)].tokens
        index += 1
    return tokens[:length]


def _prompts(scenario: Scenario, pair: NamedPair) -> list[TokenPrompt]:
    prompts = read_token_prompts(Texts(num_prompts=_ALL_PROMPTS, raw_prompts=True), pair)
    kind = scenario.workload.prompt_kind
    chosen = [prompt for prompt in prompts if kind is None or prompt.kind == kind]
    if not chosen:
        known = ", ".join(sorted({prompt.kind for prompt in prompts}))
        raise InputError(f"workload.prompt_kind: no built-in prompt is of kind {kind!r}; they are of: {known}")
    return chosen


def _run(session: Session, scenario: Scenario, requests: Sequence[Request]) -> Records:
    """All requests in one closed loop, or batch after batch."""
    if scenario.workload.arrivals == "closed":
        records = session.engine.generate(requests).records
        check_speculator(session)
        count_from_zero(records)
        return records
    records, began_s = Records(), perf_counter()
    for batch in _batches(requests, scenario.workload.batch_size):
        start_s = perf_counter() - began_s
        _append(records, session.engine.generate(batch).records, start_s)
    check_speculator(session)
    count_from_zero(records)
    return records


def _batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), size):
        yield requests[start : start + size]


def _append(records: Records, batch: Records, start_s: float) -> None:
    """Add a static batch that started at `start_s`; its requests were admitted together."""
    rounds, outcomes, requests = (dict(t.columns()) for t in (batch.rounds, batch.outcomes, batch.requests))
    rounds["start_s"] = rounds["start_s"] + start_s
    admitted = {"arrival_s": np.full(len(requests["request_id"]), start_s)}
    admitted["admitted_s"] = admitted["arrival_s"]
    instants = {name: requests[name] + start_s for name in ("first_token_s", "finish_s")}
    tables: list[tuple[Any, dict[str, Any]]] = [
        (records.rounds, rounds),
        (records.outcomes, outcomes),
        (records.requests, {**requests, **admitted, **instants}),
    ]
    for table, columns in tables:
        table.extend(len(next(iter(columns.values()))), **columns)


def _notes(scenario: Scenario, quantities: dict[str, Quantity]) -> Iterator[str]:
    share = quantities["prefill_s"].value / quantities["round_s"].value
    if share >= 0.01:
        yield f"reading prompts took {share:.1%} of the time"
    if scenario.workload.output_tokens is None:
        yield f"endless requests were run as requests of {_LONG_REQUEST} tokens"
