"""What the studies share: options, runs made once and kept, a calibrated profile, and a summary on disk.

    python -m experiments.NAME --out DIR                    the pair `tiny`, with the executor
    python -m experiments.NAME --out DIR --simulate PAIR    the same study of a profile, by simulation

A study that is called again with the same folder does not repeat the runs that lie there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssdsim.calibration.profile_from_records import calibrate
from ssdsim.calibration.runs import Run
from ssdsim.catalog import load_profile
from ssdsim.errors import InputError, SsdsimError
from ssdsim.evaluate import Method, evaluate
from ssdsim.extensions import load_extension
from ssdsim.interrupts import insistent_interrupts
from ssdsim.measurement import (
    FinishedRun,
    MeasurementPlan,
    ModelSource,
    RunSetting,
    Texts,
    grid,
    read_run,
    schedule,
)
from ssdsim.metrics import summarise
from ssdsim.profile import PairProfile
from ssdsim.quantities import Quantity
from ssdsim.scenario import Drafting, FallbackChoice, FallbackKind, FanOut, Mode
from ssdsim.schema import validate
from ssdsim.uncertainty import with_uncertainty
from ssdsim.validation.predictions import scenario_of
from ssdsim.validation.simulated import Execute, simulated_measurement

Row = dict[str, Any]

BAD_INPUT, BROKEN, INTERRUPTED = 2, 70, 130
"""Exit codes, the command line's own."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Where a study runs and what it runs on."""

    name: str
    out: Path
    models: ModelSource
    texts: Texts
    execute: Execute

    def run(self, settings: Sequence[RunSetting], part: str = "runs") -> list[FinishedRun]:
        """The finished runs of `settings`, in their order; those that lie in the folder already are only read."""
        folder = self.out / part
        runs = schedule(tuple({setting.name: setting for setting in settings}.values()))
        resume = (folder / "measurement.json").is_file()
        plan = MeasurementPlan(models=self.models, texts=self.texts, runs=runs, out=folder, resume=resume)
        self.execute(plan, _Progress())
        return [read_run(plan.folder(run)) for run in runs]

    def save(self, rows: Sequence[Row], **findings: Any) -> None:
        """Print the rows and what was found, and keep both in summary.json."""
        for line in aligned(rows):
            print(line)
        for name, finding in findings.items():
            print(f"{name.replace('_', ' ')}: {finding}")
        self.keep(rows, findings)

    def keep(self, rows: Sequence[Row], findings: Mapping[str, Any]) -> None:
        """Write summary.json beside its place and move it there."""
        summary = {"study": self.name, "rows": list(rows), "findings": findings}
        partial = self.out / "summary.json.partial"
        partial.write_text(json.dumps(summary, indent=1, default=str) + "\n")
        partial.replace(self.out / "summary.json")


class _Progress:
    """One line per run."""

    _done, _total = 0, 0

    def start(self, total: int, finished: int) -> None:
        self._done, self._total = finished, total

    def advance(self, count: int) -> None:
        self._done += count
        print(f"... {self._done:,} of {self._total:,}", flush=True)

    def remark(self, text: str) -> None:
        print(f"note: {text}")


def study_from_arguments(name: str, about: str, *, num_prompts: int = 12, max_tokens: int = 64) -> Study:
    """The study that the command line asks for."""
    parser = study_parser(name, about, num_prompts=num_prompts, max_tokens=max_tokens)
    return study_of(name, parser.parse_args())


def study_parser(
    name: str, about: str, *, num_prompts: int = 12, max_tokens: int = 64, default_pair: str = "tiny"
) -> argparse.ArgumentParser:
    """The options that every study has; `default_pair` is what its help says of a call without a pair."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="runs and summary.json go here")
    parser.add_argument("--pair", metavar="NAME", help=f"a built-in pair (default: {default_pair})")
    parser.add_argument("--target", metavar="SOURCE", help="instead of --pair: the target's weights")
    parser.add_argument("--draft", metavar="SOURCE", help="the draft that goes with --target")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16")
    parser.add_argument("--device", default="cpu", help="of both roles: cpu or cuda:0")
    parser.add_argument("--cuda-graphs", action="store_true", help="capture narrow steps (on a GPU only)")
    parser.add_argument("--simulate", metavar="NAME|FILE", help="no executor: simulate this profile")
    parser.add_argument("--num-prompts", type=int, default=num_prompts)
    parser.add_argument("--max-tokens", type=int, default=max_tokens)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def study_of(name: str, given: argparse.Namespace) -> Study:
    """The study that parsed options ask for; its folder is there and can be written to."""
    study = Study(
        name=name,
        out=given.out,
        models=ModelSource(
            pair=given.pair or (None if given.target else "tiny"),
            target=given.target,
            draft=given.draft,
            dtype=given.dtype,
            target_device=given.device,
            draft_device=given.device,
            cuda_graphs=given.cuda_graphs,
        ),
        texts=Texts(num_prompts=given.num_prompts, max_tokens=given.max_tokens, ignore_eos=True, seed=given.seed),
        execute=_executor(given.simulate),
    )
    _claim_folder(given.out)
    return study


def _claim_folder(out: Path) -> None:
    """Make the folder, and refuse one that cannot be written to before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise InputError(f"out: {out} cannot be written to ({error.strerror}); choose another folder") from error


def start(main: Callable[[], None]) -> None:
    """Run a study's `main`; what ends it early becomes one message and the command line's exit codes."""
    try:
        with insistent_interrupts():
            main()
    except InputError as error:
        sys.exit(_told(f"error: {error}", BAD_INPUT))
    except SsdsimError as error:
        sys.exit(_told(f"error: {error}", BROKEN))
    except KeyboardInterrupt:
        sys.exit(_told("interrupted; what was finished is kept, the same call completes it", INTERRUPTED))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        sys.exit(_told(f"error: out of memory ({reason}); what was finished is kept, ask for less", BROKEN))


def _told(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an allocator's refusal is the error or what led to it."""
    from executor.memory import is_out_of_memory

    while error is not None:
        if is_out_of_memory(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _executor(simulate: str | None) -> Execute:
    if simulate is None:
        execute: Execute = load_extension("ssdsim.verbs", "measure")
        return execute
    return simulated_measurement(validate(PairProfile, load_profile(simulate), source=simulate))


def setting(
    mode: Mode,
    *,
    lookahead: int = 4,
    fan_out: FanOut | None = None,
    fallback: FallbackKind = FallbackKind.JIT,
    downweight: float = 1.0,
    batch_size: int = 1,
    temperature: float = 0.0,
) -> RunSetting:
    """One point; rows that propose nothing are padded in a batch, as kernels without ragged rows do."""
    drafting = Drafting(padded_verify=batch_size > 1 and fallback is not FallbackKind.JIT)
    (found,) = grid(
        drafting,
        modes=[mode],
        lookaheads=[lookahead],
        fan_outs=[fan_out or per_position(4)],
        fallbacks=[FallbackChoice(kind=fallback)],
        downweights=[downweight],
        batch_sizes=[batch_size],
        temperatures=[temperature],
    )
    return found


def per_position(size: int) -> FanOut:
    """The same fan-out everywhere."""
    return FanOut(policy="uniform", per_position=size)


def explicit(values: Sequence[int]) -> FanOut:
    """A whole vector."""
    return FanOut(policy="explicit", values=tuple(values))


def calibrated(runs: Sequence[FinishedRun], name: str = "calibrated") -> PairProfile:
    """The profile that `runs` show."""
    return calibrate([Run.of(run.records, run.name) for run in runs], name=name).profile


def observed(run: FinishedRun) -> Mapping[str, Quantity]:
    """Everything that is reported of a run."""
    return summarise(run.records)


def predicted(run: FinishedRun, profile: PairProfile, *, bounded: bool = False) -> Mapping[str, Quantity]:
    """What the exact model says of the run's own scenario under `profile`, with bounds where asked for."""
    answer = evaluate(scenario_of(run.records, profile), Method.EXACT)
    return (with_uncertainty([answer])[0] if bounded else answer).quantities


def aligned(rows: Sequence[Row]) -> list[str]:
    """The rows as lines of a table."""
    if not rows:
        return []
    heads = list(rows[0])
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
