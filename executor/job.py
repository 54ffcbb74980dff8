"""What the command line of `python -m executor` asks for, checked; and doing it with an engine.

Used by `executor.__main__`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from executor.config import EngineConfig, Request
from executor.launch import PATIENCE_S
from executor.machine import describe_machine, software_versions
from executor.measure import count_from_zero, prompt_kinds, requests_of, warm_up
from executor.models import vocab_size_of
from executor.pair_source import NamedPair, resolve_pair
from executor.pairs.prompts import PROMPTS_FILE, Prompt, checked_text, read_prompts
from executor.prompts_input import TokenPrompt, prompts_digest, tokenise
from executor.run_scenario import scenario_of
from executor.session import Arrangement, Session
from executor.transport import Transport
from ssdsim.errors import InputError
from ssdsim.measurement import ModelSource, RunSetting, Texts
from ssdsim.records import Records
from ssdsim.scenario import Drafting, Mode
from ssdsim.scenario_files import parse_override
from ssdsim.schema import validate


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the command line asks for."""

    pair: NamedPair
    config: EngineConfig
    arrangement: Arrangement
    prompts: list[TokenPrompt]
    requests: list[Request]
    """One per prompt; the models' own stop tokens are added once they are loaded."""
    decode: Callable[[Sequence[int]], str] | None
    """From tokens to text; None where the model has no tokenizer."""
    records: Path | None
    about: dict[str, Any]
    """What was asked of which machine, for the records."""

    @property
    def setting(self) -> RunSetting:
        """The job as one combination of a measurement."""
        config = self.config
        return RunSetting(
            mode=config.mode,
            drafting=config.drafting,
            batch_size=config.batch_size,
            temperature=self.requests[0].temperature,
        )


def job_of(arguments: argparse.Namespace, device: str) -> Job:
    """The job, its models on `device`. Raises InputError where it cannot be done."""
    _check_sources(arguments)
    source = ModelSource(
        pair=None if arguments.target else arguments.pair or "tiny",
        target=arguments.target,
        draft=arguments.draft,
        dtype=arguments.dtype,
        target_device=device,
        draft_device=device,
        cuda_graphs=arguments.cuda_graphs,
    )
    pair = resolve_pair(source)
    if pair.is_dummy and not arguments.prompt_ids:
        raise InputError("prompts: a dummy model has no tokenizer; give token ids with --prompt-ids 1,2,3")
    tokenizer = None if arguments.prompt_ids else pair.tokenizer()
    prompts = _prompts(arguments, tokenizer)
    requests = _requests(arguments, prompts)
    needed = max(len(request.prompt) + request.max_tokens for request in requests)
    config = EngineConfig(
        mode=Mode(arguments.mode),
        batch_size=arguments.batch_size,
        max_context_tokens=needed if arguments.context is None else arguments.context,
        vocab_size=vocab_size_of(pair.models.target),
        drafting=_drafting(arguments.set),
        sampled=arguments.temperature > 0,
        synthetic=pair.is_dummy,
    )
    arrangement = Arrangement(
        transport=None if arguments.transport is None else Transport(arguments.transport),
        num_threads=arguments.threads,
        pin=not arguments.no_pin,
        patience_s=arguments.patience or PATIENCE_S,
        replace_lost=arguments.replace_lost,
    )
    return Job(
        pair=pair,
        config=config,
        arrangement=arrangement,
        prompts=prompts,
        requests=requests,
        decode=None if tokenizer is None else tokenizer.decode,
        records=arguments.records,
        about={"target": pair.target_name, "draft": pair.draft_name, **_about(config, arguments)},
    )


def given_options(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Those of `names` that are on the command line, as they are written there."""
    return ["--" + name.replace("_", "-") for name in names if getattr(arguments, name)]


def _check_sources(arguments: argparse.Namespace) -> None:
    """Refuse what would be ignored, and a place for the records that cannot be written, before anything is loaded."""
    given = given_options(arguments, ("prompt", "prompt_ids", "prompts"))
    if len(given) > 1:
        raise InputError(f"prompts: {', '.join(given)} exclude each other; give one of them")
    if arguments.pair and arguments.target:
        raise InputError("pair: --pair and --target exclude each other; give one of them")
    if arguments.records is None:
        return
    try:
        arguments.records.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"records: cannot make {arguments.records} ({error.strerror}); choose another") from error
    if any(arguments.records.iterdir()):
        raise InputError(f"records: {arguments.records} is not empty; choose another folder")


def _drafting(settings: Sequence[str]) -> Drafting:
    """`drafting` with the fields that are set; a field within another one is written with a dot."""
    fields: dict[str, Any] = {}
    for path, value in map(parse_override, settings):
        *outer, name = path.removeprefix("drafting.").split(".")
        inside = fields
        for part in outer:
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                raise InputError(f"--set {path}: {part} has a value of its own already")
        inside[name] = value
    return validate(Drafting, fields, prefix="drafting")


def _prompts(arguments: argparse.Namespace, tokenizer: Any) -> list[TokenPrompt]:
    """The ids or texts of the command line, else the texts of the file, else the project's own prompts."""
    if arguments.prompt_ids:
        return [TokenPrompt(str(i), "ids", _token_ids("--prompt-ids", t)) for i, t in enumerate(arguments.prompt_ids)]
    texts = [Prompt(str(i), "text", checked_text("--prompt", text)) for i, text in enumerate(arguments.prompt)]
    return tokenise(texts or read_prompts(arguments.prompts or PROMPTS_FILE), tokenizer, raw=arguments.raw)


def _requests(arguments: argparse.Namespace, prompts: list[TokenPrompt]) -> list[Request]:
    stops = _token_ids("--stop-ids", arguments.stop_ids) if arguments.stop_ids else ()
    texts = Texts(max_tokens=arguments.max_tokens, ignore_eos=arguments.ignore_eos, seed=arguments.seed)
    return requests_of(prompts, texts, arguments.temperature, frozenset(stops))


def _token_ids(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{option} {text}: write token ids with commas, such as 1,2,3") from error


def _about(config: EngineConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """The machine is described before a role is bound to a part of it."""
    return {
        "producer": "executor",
        "mode": config.mode.value,
        "batch_size": config.batch_size,
        "drafting": config.drafting.model_dump(mode="json"),
        "temperature": arguments.temperature,
        "max_tokens": arguments.max_tokens,
        "ignore_eos": arguments.ignore_eos,
        "seed": arguments.seed,
        "num_threads": arguments.threads,
        "machine": describe_machine(),
        "versions": software_versions(),
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_job(job: Job, session: Session) -> None:
    """Run the requests; print outputs and speed, write the records. Where there are records, a short generation comes
    first, in which memory is touched and kernels are chosen."""
    eos = frozenset(session.target.eos_token_ids)
    requests = [replace(request, stop_tokens=request.stop_tokens | eos) for request in job.requests]
    about = session.about | job.about
    if job.records is not None:
        warm_up(session, requests[: job.config.batch_size])
    began = perf_counter()
    generation = session.engine.generate(requests, about)
    elapsed_s = perf_counter() - began
    lost_speculator = session.engine.has_lost_speculator
    outputs = [
        {
            "tokens": list(output.tokens),
            "text": None if job.decode is None else job.decode(output.tokens),
            "finish_reason": output.finish_reason.name.lower(),
            "accepted_lengths": list(output.accepted_lengths),
        }
        for output in generation.outputs
    ]
    num_tokens = sum(len(output.tokens) for output in generation.outputs)
    document = {
        "outputs": outputs,
        "about": about,
        "tokens_per_s": num_tokens / elapsed_s,
        "elapsed_s": elapsed_s,
        "lost_speculator": lost_speculator,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    if job.records is not None:
        _write_records(job, job.records, generation.records, lost_speculator=lost_speculator)


def _write_records(job: Job, folder: Path, records: Records, *, lost_speculator: bool) -> None:
    """With what calibration reads; a run that lost its speculator has no scenario that would predict it."""
    count_from_zero(records)
    records.about |= {
        "models": job.pair.describe(),
        "prompts": {"sha256": prompts_digest(job.prompts), "num_prompts": len(job.prompts)},
        "prompt_kinds": prompt_kinds(job.prompts),
        "lost_speculator": lost_speculator,
    }
    if not lost_speculator:
        records.about["scenario"] = scenario_of(job.setting.name, job.setting, records, records.about["seed"])
    records.write(folder)
