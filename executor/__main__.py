"""Generate with a real pair: on this machine, or over the ranks of a torchrun.

    python -m executor --mode ssd --prompt "def fibonacci(n):"
    torchrun --nproc-per-node 5 -m executor --target DIR --draft DIR --prompts prompts.jsonl

`--set` takes the fields of a scenario's `drafting`. One JSON document on stdout; messages on stderr. Exit code
0 done, 2 bad input, 70 a run that broke, 130 interrupted: those of `ssdsim`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from executor.launch import PATIENCE_S
from executor.transport import Transport
from ssdsim.errors import InputError, SsdsimError

if TYPE_CHECKING:
    from executor.config import EngineConfig, Request
    from executor.roles import ModelPair
    from executor.session import Arrangement, Session
    from ssdsim.scenario import Drafting

EXIT_BAD_INPUT, EXIT_BROKEN, EXIT_INTERRUPTED = 2, 70, 130


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the command line asks for."""

    pair: ModelPair
    config: EngineConfig
    arrangement: Arrangement
    requests: list[Request]
    decode: Callable[[Sequence[int]], str] | None
    """From tokens to text; None where the model has no tokenizer."""
    records: Path | None
    about: dict[str, Any]
    """What was asked of which machine, for the records."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; every failure is one message and an exit code."""
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        return _dispatch(_parser().parse_args(argv))
    except InputError as error:
        return _complain(error, EXIT_BAD_INPUT)
    except SsdsimError as error:
        return _complain(error, EXIT_BROKEN)
    except KeyboardInterrupt:
        # Under torchrun every rank is interrupted; one message says so.
        return _complain("interrupted", EXIT_INTERRUPTED) if os.environ.get("RANK", "0") == "0" else EXIT_INTERRUPTED


def _complain(error: object, code: int) -> int:
    sys.stderr.write(f"error: {error}\n")
    return code


def _dispatch(arguments: argparse.Namespace) -> int:
    from executor import torchrun

    if torchrun.under_torchrun():
        return _run_rank(arguments)
    from executor.session import open_engine

    job = _job(arguments)
    with open_engine(job.config, job.pair, job.arrangement) as session:
        _generate(job, session)
    return 0


def _run_rank(arguments: argparse.Namespace) -> int:
    from executor import torchrun

    with torchrun.join() as ranks:
        try:
            job = ranks.agree(lambda: _job(arguments))
            num_threads = job.arrangement.num_threads
            torchrun.serve(ranks, job.config, job.pair, lambda s: _generate(job, s), num_threads)
        except torchrun.FailedElsewhere as failure:
            return EXIT_BAD_INPUT if failure.bad_input else EXIT_BROKEN
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m executor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--mode", choices=["ar", "sd", "ssd"], default="ssd", help="how to decode (default ssd)")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of drafting; may be repeated")
    add("--pair", help="a built-in pair (default: tiny)")
    add("--target", help="directory, hub id or .gguf file of the target, instead of a built-in pair")
    add("--draft", help="the draft that goes with --target")
    add("--dtype", default="float32", help="float32 (exact), bfloat16 or float16")
    add("--device", default="cpu", help="of both roles; under torchrun each rank has its own")
    add("--prompt", action="append", default=[], help="a text to continue; may be repeated")
    add("--prompt-ids", action="append", default=[], metavar="1,2,3", help="a prompt as token ids, instead")
    add("--raw", action="store_true", help="leave the tokenizer's chat template out")
    add("--prompts", type=Path, help="a JSON-lines file with a field `prompt`")
    add("--max-tokens", type=int, default=64, help="tokens to generate per prompt (default 64)")
    add("--batch-size", type=int, default=1, help="sequences decoded together (default 1)")
    add("--temperature", type=float, default=0.0, help="0 (the default) is greedy")
    add("--seed", type=int, default=0, help="of the first prompt; each has its own")
    add("--context", type=int, help="longest prompt and output together (default: what is needed)")
    add("--ignore-eos", action="store_true", help="go on behind the end-of-text token")
    add("--transport", choices=[str(t) for t in Transport if t is not Transport.DISTRIBUTED])
    add("--threads", type=int, default=1, help="threads of each role (default 1)")
    add("--no-pin", action="store_true", help="leave the roles' cores to the scheduler")
    add(
        "--patience",
        type=_seconds,
        default=PATIENCE_S,
        metavar="SECONDS",
        help="give up a silent speculator after so long",
    )
    add("--replace-lost", action="store_true", help="start a new speculator if one is lost")
    add("--records", type=Path, metavar="DIR", help="write the records of the run there")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds above 0")
    return value


def _job(arguments: argparse.Namespace) -> Job:
    from executor.config import EngineConfig
    from executor.models import vocab_size_of
    from executor.pair_source import resolve_pair
    from executor.session import Arrangement
    from ssdsim.measurement import ModelSource
    from ssdsim.scenario import Mode

    _check_sources(arguments)
    source = ModelSource(
        pair=None if arguments.target else arguments.pair or "tiny",
        target=arguments.target,
        draft=arguments.draft,
        dtype=arguments.dtype,
        target_device=arguments.device,
        draft_device=arguments.device,
    )
    pair = resolve_pair(source)
    if pair.is_dummy and not arguments.prompt_ids:
        raise InputError("prompts: a dummy model has no tokenizer; give token ids with --prompt-ids 1,2,3")
    tokenizer = None if arguments.prompt_ids else pair.tokenizer()
    requests = _requests(arguments, tokenizer)
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
        patience_s=arguments.patience,
        replace_lost=arguments.replace_lost,
    )
    return Job(
        pair=pair.models,
        config=config,
        arrangement=arrangement,
        requests=requests,
        decode=None if tokenizer is None else tokenizer.decode,
        records=arguments.records,
        about=_about(config, requests),
    )


def _check_sources(arguments: argparse.Namespace) -> None:
    """Refuse what would be ignored, and a place for the records that cannot be written, before anything is loaded."""
    given = [name for name in ("prompt", "prompt_ids", "prompts") if getattr(arguments, name)]
    if len(given) > 1:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"prompts: {options} exclude each other; give one of them")
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
    from ssdsim.scenario import Drafting
    from ssdsim.scenario_files import parse_override
    from ssdsim.schema import validate

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


def _requests(arguments: argparse.Namespace, tokenizer: Any) -> list[Request]:
    from executor.config import Request

    prompts = [_token_ids(text) for text in arguments.prompt_ids] or _tokenised(arguments, tokenizer)
    return [
        Request(
            prompt=prompt,
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
            seed=arguments.seed + index,
            ignore_eos=arguments.ignore_eos,
        )
        for index, prompt in enumerate(prompts)
    ]


def _tokenised(arguments: argparse.Namespace, tokenizer: Any) -> list[tuple[int, ...]]:
    """The texts of the command line, else of the file, else the project's own prompts."""
    from executor.pairs.prompts import PROMPTS_FILE, Prompt, checked_text, read_prompts
    from executor.prompts_input import tokenise

    texts = [Prompt(str(i), "text", checked_text("--prompt", text)) for i, text in enumerate(arguments.prompt)]
    texts = texts or read_prompts(arguments.prompts or PROMPTS_FILE)
    return [prompt.tokens for prompt in tokenise(texts, tokenizer, raw=arguments.raw)]


def _token_ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--prompt-ids {text}: write token ids with commas, such as 1,2,3") from error


def _generate(job: Job, session: Session) -> None:
    """Run the requests; print outputs and speed, write the records."""
    from dataclasses import replace

    stops = frozenset(session.target.eos_token_ids)
    requests = [replace(request, stop_tokens=stops) for request in job.requests]
    about = session.about | job.about
    began = perf_counter()
    generation = session.engine.generate(requests, about)
    elapsed_s = perf_counter() - began
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
        "lost_speculator": session.engine.has_lost_speculator,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    if job.records is not None:
        generation.records.write(job.records)


def _about(config: EngineConfig, requests: Sequence[Request]) -> dict[str, Any]:
    """The machine is described before a role is bound to a part of it."""
    from executor.machine import describe_machine, software_versions

    return {
        "producer": "executor",
        "mode": config.mode.value,
        "batch_size": config.batch_size,
        "drafting": config.drafting.model_dump(mode="json"),
        "temperatures": [request.temperature for request in requests],
        "seeds": [request.seed for request in requests],
        "machine": describe_machine(),
        "versions": software_versions(),
    }


if __name__ == "__main__":
    sys.exit(main())
