"""Generate with a real pair: on this machine, or over the ranks of a torchrun.

    python -m executor --mode ssd --prompt "def fibonacci(n):"
    torchrun --nproc-per-node 5 -m executor --target DIR --draft DIR --prompts prompts.jsonl --records runs/ssd

`--set` takes the fields of a scenario's `drafting`; `ssdsim calibrate` reads the records. One JSON document on
stdout; messages on stderr. Exit code 0 done, 2 bad input, 70 a run that broke, 130 interrupted: those of `ssdsim`
(torchrun itself ends with 1 where a rank does not end with 0).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.launch import PATIENCE_S
from executor.parent import end_with_parent
from executor.transport import Transport
from ssdsim.errors import InputError, SsdsimError
from ssdsim.interrupts import insistent_interrupts

EXIT_BAD_INPUT, EXIT_BROKEN, EXIT_INTERRUPTED = 2, 70, 130
_OF_ONE_MACHINE = ("device", "transport", "no_pin", "patience", "replace_lost")
"""Options that say what a torchrun decides itself."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; every failure is one message and an exit code."""
    if "RANK" in os.environ:
        end_with_parent()
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        with insistent_interrupts():
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
    from executor.job import job_of, run_job

    if torchrun.under_torchrun():
        return _run_rank(arguments)
    from executor.session import open_engine

    job = job_of(arguments, arguments.device or "cpu")
    with open_engine(job.config, job.pair.models, job.arrangement) as session:
        run_job(job, session)
    return 0


def _run_rank(arguments: argparse.Namespace) -> int:
    from executor import torchrun
    from executor.job import Job, job_of, run_job

    def agreed_job() -> Job:
        _refuse_given(arguments)
        return job_of(arguments, str(ranks.device))

    with torchrun.join() as ranks:
        try:
            job = ranks.agree(agreed_job)
            num_threads = job.arrangement.num_threads
            torchrun.serve(ranks, job.config, job.pair.models, lambda session: run_job(job, session), num_threads)
        except torchrun.FailedElsewhere as failure:
            return EXIT_BAD_INPUT if failure.bad_input else EXIT_BROKEN
    return 0


def _refuse_given(arguments: argparse.Namespace) -> None:
    """Refuse, under torchrun, what it would ignore."""
    from executor.job import given_options

    given = given_options(arguments, _OF_ONE_MACHINE)
    if given:
        raise InputError(f"{', '.join(given)}: not used under torchrun, which gives every rank its device; leave out")


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
    add("--device", help="of both roles (default cpu); under torchrun each rank has its own")
    add(
        "--cuda-graphs",
        action="store_true",
        help="capture narrow steps into CUDA graphs, not those of a shared target",
    )
    add("--prompt", action="append", default=[], help="a text to continue; may be repeated")
    add("--prompt-ids", action="append", default=[], metavar="1,2,3", help="a prompt as token ids, instead")
    add("--raw", action="store_true", help="leave the tokenizer's chat template out")
    add("--prompts", type=Path, help="a JSON-lines file with a field `prompt`")
    add("--max-tokens", type=int, default=64, help="tokens to generate per prompt (default 64)")
    add("--batch-size", type=int, default=1, help="sequences decoded together (default 1)")
    add("--temperature", type=float, default=0.0, help="0 (the default) is greedy")
    add("--seed", type=int, default=0, help="of the first prompt; each has its own")
    add("--context", type=int, help="longest prompt and output together (default: what is needed)")
    add("--stop-ids", default="", metavar="1,2", help="end behind these tokens too, not only at the model's own")
    add("--ignore-eos", action="store_true", help="go on behind the end-of-text token")
    add("--transport", choices=[str(t) for t in Transport if t is not Transport.DISTRIBUTED])
    add("--threads", type=int, default=1, help="threads of each role (default 1)")
    add("--no-pin", action="store_true", help="leave the roles' cores to the scheduler")
    add(
        "--patience",
        type=_seconds,
        metavar="SECONDS",
        help=f"give up a silent speculator after so long (default {PATIENCE_S:g})",
    )
    add("--replace-lost", action="store_true", help="start a new speculator if one is lost")
    add("--records", type=Path, metavar="DIR", help="write the records of the run there")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
