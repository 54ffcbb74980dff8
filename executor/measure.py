"""Runs of a measurement: every planned combination over the same prompts, its records on disk with what made them.

The entry point `measure` of the group `ssdsim.verbs`, called by the command line and by validation. A run is written
beside its place and moved there when it is complete, so one that is killed loses only itself.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from executor.config import EngineConfig, Output, Request
from executor.engine import Generation
from executor.folder_lock import only_writer
from executor.machine import describe_load, describe_machine, public_name, software_versions
from executor.models import vocab_size_of
from executor.pair_source import NamedPair, resolve_pair
from executor.prompts_input import TokenPrompt, byte_tokens, gather_prompts, prompts_digest, tokenise
from executor.resolution import drafting_by
from executor.run_scenario import scenario_of
from executor.session import Arrangement, Session, open_engine
from executor.synthetic import law_of
from ssdsim.errors import InputError, RunError
from ssdsim.measurement import MeasurementPlan, PlannedRun, Reporter, RunSetting, Texts, check_same_measurement
from ssdsim.rank_trace import rank_trace_of
from ssdsim.records import Records
from ssdsim.scenario import Drafting, FallbackKind, Mode

_WARMUP_TOKENS = 8


def measure(plan: MeasurementPlan, reporter: Reporter) -> None:
    """Make every run of `plan` that is not on disk yet.

    Raises InputError for models, prompts or combinations that cannot be used, before anything is run where that can
    be known; RunError where a run fails: the runs before it are kept.
    """
    pair = resolve_pair(plan.models)
    draftings = _draftings(plan, pair)
    prompts = read_token_prompts(plan.texts, pair)
    with only_writer(plan.out):
        _make_runs(plan, pair, prompts, draftings, reporter)


def _make_runs(
    plan: MeasurementPlan,
    pair: NamedPair,
    prompts: list[TokenPrompt],
    draftings: Mapping[str, Drafting],
    reporter: Reporter,
) -> None:
    common = _common(plan, pair, prompts)
    check_same_measurement(plan.out, common, resume=plan.resume)
    unfinished = plan.unfinished()
    tokens_per_run = len(prompts) * plan.texts.max_tokens
    reporter.start(len(plan.runs) * tokens_per_run, (len(plan.runs) - len(unfinished)) * tokens_per_run)
    for remark in _remarks(plan, prompts):
        reporter.remark(remark)
    for run in unfinished:
        drafting = draftings[run.setting.name]
        _store(plan.folder(run), _measure_run(run, drafting, plan, pair, prompts, common))
        reporter.advance(tokens_per_run)


def read_token_prompts(texts: Texts, pair: NamedPair) -> list[TokenPrompt]:
    """The prompts as token ids of the pair's vocabulary."""
    prompts = gather_prompts(texts)
    if pair.is_dummy:
        return byte_tokens(prompts, vocab_size_of(pair.models.target))
    return tokenise(prompts, pair.tokenizer(), raw=texts.raw_prompts)


def requests_of(
    prompts: Sequence[TokenPrompt], texts: Texts, temperature: float, stop_tokens: frozenset[int]
) -> list[Request]:
    """One request per prompt; its seed depends on its place only, so that combinations share their randomness."""
    kinds = prompt_kinds(prompts)
    return [
        Request(
            prompt=prompt.tokens,
            max_tokens=texts.max_tokens,
            temperature=temperature,
            seed=texts.seed + index,
            stop_tokens=stop_tokens,
            ignore_eos=texts.ignore_eos,
            prompt_kind=kinds.index(prompt.kind),
        )
        for index, prompt in enumerate(prompts)
    ]


def prompt_kinds(prompts: Sequence[TokenPrompt]) -> list[str]:
    """The kinds that `prompt_kind` in the records counts through."""
    return sorted({prompt.kind for prompt in prompts})


def _draftings(plan: MeasurementPlan, pair: NamedPair) -> dict[str, Drafting]:
    """What every setting drafts with, by its name; InputError where it cannot be run."""
    settings = [run.setting for run in plan.runs]
    if pair.models.draft is None and any(setting.mode is not Mode.AR for setting in settings):
        raise InputError("draft: modes sd and ssd need one; give --draft SOURCE")
    profile = plan.profile
    if profile is not None:
        return {setting.name: drafting_by(profile, setting) for setting in settings}
    for setting in settings:
        fallback = setting.drafting.fallback
        if fallback.kind is FallbackKind.AUTO:
            raise InputError("fallback: 'auto' weighs latencies that a profile holds; give one with --profile")
        if fallback.kind is FallbackKind.THRESHOLD and fallback.threshold is None:
            raise InputError(
                "fallback: 'threshold' needs its number of misses, for instance threshold:2, or a --profile"
            )
    return {setting.name: setting.drafting for setting in settings}


def _remarks(plan: MeasurementPlan, prompts: Sequence[TokenPrompt]) -> list[str]:
    if len(prompts) < plan.texts.num_prompts:
        few = [f"{plan.texts.num_prompts} prompts were asked for, there are {len(prompts)}"]
    else:
        few = []
    largest = max(run.setting.batch_size for run in plan.runs)
    if largest > 1 and len(prompts) < 2 * largest:
        few.append(f"{len(prompts)} prompts fill a batch of {largest} for a small part of a run only; give more")
    return few


def _common(plan: MeasurementPlan, pair: NamedPair, prompts: list[TokenPrompt]) -> dict[str, Any]:
    """What all runs of the measurement share; a resumed one must find the same."""
    texts = plan.texts
    return {
        "models": pair.describe(),
        "prompts": {"source": _source_name(texts), "sha256": prompts_digest(prompts), "num_prompts": len(prompts)},
        "max_tokens": texts.max_tokens,
        "ignore_eos": texts.ignore_eos,
        "seed": texts.seed,
        "num_threads": plan.num_threads,
        # Random weights without a law of their own: outcomes are drawn from the executor's typical one.
        "synthetic": pair.is_dummy if plan.law is None else plan.law,
        **({} if plan.profile is None else {"profile": plan.profile.model_dump(mode="json", exclude_none=True)}),
        "machine": describe_machine(),
        "versions": software_versions(),
    }


def _source_name(texts: Texts) -> str:
    if texts.dataset is None:
        return Path(texts.prompts).name
    name, colon, rest = texts.dataset.partition(":")
    return f"{public_name(name)}{colon}{rest}"


def _measure_run(
    run: PlannedRun,
    drafting: Drafting,
    plan: MeasurementPlan,
    pair: NamedPair,
    prompts: list[TokenPrompt],
    common: dict[str, Any],
) -> Records:
    """One run, its records complete with what made them."""
    vocab_size = vocab_size_of(pair.models.target)
    executed = replace(run.setting, drafting=drafting)
    config = config_of(executed, prompts, plan.texts.max_tokens, vocab_size, synthetic=bool(common["synthetic"]))
    if plan.synthetic is not None:
        config = replace(config, behaviour=law_of(plan.synthetic, config.num_speculative_tokens))
    started_at, load_before = datetime.now(UTC), describe_load()
    with open_engine(config, pair.models, Arrangement(num_threads=plan.num_threads)) as session:
        generation = _generate(session, run.setting, prompts, plan.texts)
        arrangement = arrangement_of(session)
    count_from_zero(generation.records)
    generation.records.about.update(
        {
            "producer": "executor.measure",
            **common,
            "prompt_set": f"{common['prompts']['sha256']}-{plan.texts.seed}",
            "mode": run.setting.mode.value,
            "setting": run.setting.plain(),
            "run": {"name": run.name, "repeat": run.repeat, "is_anchor": run.is_anchor},
            "scenario": scenario_of(run.name, executed, generation.records, plan.texts.seed),
            "prompt_kinds": prompt_kinds(prompts),
            "arrangement": arrangement,
            "started_at": started_at.isoformat(timespec="seconds"),
            "load_before": load_before,
            "load_after": describe_load(),
            "outputs_sha256": _outputs_digest(generation.outputs),
        }
    )
    return generation.records


def config_of(
    setting: RunSetting, prompts: Sequence[TokenPrompt], max_tokens: int, vocab_size: int, *, synthetic: bool = False
) -> EngineConfig:
    """The engine's configuration for a combination over `prompts`; see EngineConfig on `synthetic`."""
    return EngineConfig(
        mode=setting.mode,
        batch_size=setting.batch_size,
        max_context_tokens=max(len(prompt.tokens) for prompt in prompts) + max_tokens,
        vocab_size=vocab_size,
        drafting=setting.drafting,
        sampled=setting.temperature > 0,
        synthetic=synthetic,
    )


def arrangement_of(session: Session) -> dict[str, Any]:
    """Where the roles ran and what carried their messages."""
    return {name: session.about[name] for name in ("transport", "verifier_placement", "speculator_placement")}


def _generate(session: Session, setting: RunSetting, prompts: list[TokenPrompt], texts: Texts) -> Generation:
    """The measured generation, behind a short one in which memory is touched and kernels are chosen."""
    stop_tokens = frozenset(session.target.eos_token_ids)
    requests = requests_of(prompts, texts, setting.temperature, stop_tokens)
    warm_up(session, requests[: setting.batch_size])
    generation = session.engine.generate(requests)
    check_speculator(session)
    return generation


def check_speculator(session: Session) -> None:
    """Raises RunError where the speculator was lost on the way: such a run measures plain decoding."""
    if session.engine.has_lost_speculator:
        raise RunError(
            "the speculator was lost (see the warning above), so this run is not kept; mend the cause and resume"
        )


def warm_up(session: Session, requests: Sequence[Request]) -> None:
    """A few tokens of each request, whose records nobody keeps."""
    short = [
        Request(prompt=r.prompt, max_tokens=min(_WARMUP_TOKENS, r.max_tokens), temperature=r.temperature, seed=r.seed)
        for r in requests
    ]
    session.engine.generate(short)


def count_from_zero(records: Records) -> None:
    """Number rounds and requests as if nothing had been warmed up, so that one prompt has one id in all runs."""
    rounds, outcomes, requests = (t.columns() for t in (records.rounds, records.outcomes, records.requests))
    for column, tables in (("round", (rounds, outcomes)), ("request_id", (requests, outcomes))):
        first = tables[0][column].min()
        for table in tables:
            table[column] -= first


def _outputs_digest(outputs: Sequence[Output]) -> str:
    """SHA-256 of all generated tokens: equal for runs that generated the same."""
    lines = "\n".join(" ".join(map(str, output.tokens)) for output in outputs)
    return hashlib.sha256(lines.encode()).hexdigest()


def _store(folder: Path, records: Records) -> None:
    """Write the run beside its place and move it there."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    records.write(partial)
    setting = records.about["setting"]
    if setting["mode"] == Mode.SSD and setting["temperature"] == 0:
        trace = rank_trace_of(records.outcomes.columns())
        if trace is not None:
            (partial / "rank_trace.json").write_text(json.dumps({"requests": trace}) + "\n")
    partial.rename(folder)
