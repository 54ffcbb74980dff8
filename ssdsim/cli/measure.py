"""`ssdsim measure`: run a real pair in any set of modes and settings, records on disk, and say what came of it.

The work is the executor's, which this package does not import: it is found behind the entry points `ssdsim.verbs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssdsim.cli.grid_options import GridOptions
from ssdsim.cli.options import AsJson, Quiet, Seed
from ssdsim.cli.output import remark
from ssdsim.cli.progress import Progress

if TYPE_CHECKING:
    from ssdsim.measurement import MeasurementPlan, PlannedRun
    from ssdsim.observation import ObservationPlan
    from ssdsim.profile import Behaviour, PairProfile

EXAMPLE = (
    "Example: ssdsim measure --mode ar,sd,ssd -K 4 --fan-out 3 --batch 1,4 --temperature 0 --out runs/first; "
    "before deploying a draft: ssdsim measure --teacher-forced --target DIR --draft DIR --out observed"
)
DEFAULT_PAIR = "tiny"
_OF_RUNS = (
    "mode",
    "fan_out_on_miss",
    "fallback",
    "batch",
    "sets",
    "synthetic",
    "profile",
    "repeat",
    "interleave",
    "anchor_every",
)
"""Parameters of `measure` that mean nothing without an engine."""
_OF_TEACHER_FORCED = ("max_fan_out",)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("measure", epilog=EXAMPLE)(measure)


def measure(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Records go here, one folder per run.")],
    pair: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"A built-in pair: tiny, smollm2 (default: {DEFAULT_PAIR}).")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Instead: a directory, a hub id, a .gguf file or dummy:CONFIG."),
    ] = None,
    draft: Annotated[str | None, typer.Option(metavar="SOURCE", help="The draft that goes with --target.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="Of the target: cpu or cuda:0.")] = "cpu",
    draft_device: Annotated[str | None, typer.Option(help="Of the draft (default: the target's).")] = None,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Capture narrow steps into CUDA graphs (both models on GPUs).")
    ] = False,
    mode: Annotated[list[str] | None, typer.Option(metavar="ar,sd,ssd", help="Modes (default: all three).")] = None,
    lookahead: Annotated[
        list[str] | None, typer.Option("-K", "--num-speculative-tokens", metavar="N,..", help="Lookaheads.")
    ] = None,
    fan_out: Annotated[
        list[str] | None,
        typer.Option(metavar="F,..", help="3, geometric:3, optimal:3 (per position) or an explicit 4+3+3+2."),
    ] = None,
    fan_out_on_miss: Annotated[
        str | None, typer.Option(metavar="F", help="After a miss (default: the same policy and budget).")
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND,..", help="jit, none, random, ngram[:N], threshold:N; auto with --profile."),
    ] = None,
    downweight: Annotated[list[str] | None, typer.Option(metavar="C,..", help="Saguaro constants.")] = None,
    batch: Annotated[list[str] | None, typer.Option(metavar="N,..", help="Batch sizes.")] = None,
    temperature: Annotated[list[str] | None, typer.Option(metavar="T,..", help="Temperatures.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="drafting.FIELD=VALUE", help="Any other field of the drafting."),
    ] = None,
    prompts: Annotated[str, typer.Option(metavar="FILE|built-in", help="JSON lines with `prompt`.")] = "built-in",
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME[@CONFIG][:SPLIT[:FIELD]]", help="Prompts from Hugging Face datasets.")
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts of every run; the kinds take turns.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of a request, at most.")] = 128,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Run every request to --max-tokens.")] = False,
    raw_prompts: Annotated[bool, typer.Option("--raw-prompts", help="Without the model's chat template.")] = False,
    synthetic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Draw acceptance and hits from this profile's greedy behaviour instead of asking the models: for "
            "dummy weights, and for times alone.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="The pair's profile: it decides geometric and optimal fan-out (else those of a typical draft), auto "
            "and threshold.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Of each of the two roles.")] = 1,
    repeat: Annotated[int, typer.Option(help="Runs of every combination, pass after pass.")] = 1,
    interleave: Annotated[bool, typer.Option("--interleave", help="Shuffle the order of every pass.")] = False,
    anchor_every: Annotated[
        int, typer.Option(help="Repeat the first combination every so many runs, to see the machine drift.")
    ] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Complete what an earlier attempt left.")] = False,
    teacher_forced: Annotated[
        bool,
        typer.Option("--teacher-forced", help="No engine: acceptance and hit curves from two forward passes."),
    ] = False,
    max_fan_out: Annotated[int, typer.Option(help="Of the hit curves of --teacher-forced.")] = 32,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure AR, SD and SSD with real models: rates, acceptance, hit rates, and where the time of a round goes."""
    from ssdsim.measurement import MeasurementPlan, ModelSource, Texts
    from ssdsim.observation import ObservationPlan

    if teacher_forced:
        _refuse_given(ctx, _OF_RUNS, "not used with --teacher-forced, which makes no runs")
    else:
        _refuse_given(ctx, _OF_TEACHER_FORCED, "used with --teacher-forced only")
    _check_least("--seed", seed or 0, 0)
    _check_least("--threads", threads, 1)
    models = ModelSource(
        pair=pair if pair is not None or target is not None else DEFAULT_PAIR,
        target=target,
        draft=draft,
        dtype=dtype,
        target_device=device,
        draft_device=draft_device or device,
        cuda_graphs=cuda_graphs,
    )
    texts = Texts(
        prompts=prompts,
        dataset=dataset,
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        raw_prompts=raw_prompts,
        seed=seed or 0,
    )
    options = GridOptions(
        modes=mode,
        lookaheads=lookahead,
        fan_outs=fan_out,
        fan_out_on_miss=fan_out_on_miss,
        fallbacks=fallback,
        downweights=downweight,
        batch_sizes=batch,
        temperatures=temperature,
        sets=sets,
    )
    if teacher_forced:
        observations = ObservationPlan(
            models=models,
            texts=texts,
            out=out,
            temperatures=tuple(options.parsed_temperatures() or [0.0, 1.0]),
            downweights=tuple(options.parsed_downweights()),
            fan_out=options.uniform_fan_out(max_fan_out),
            max_fan_out=max_fan_out,
            num_threads=threads,
            resume=resume,
        )
        _observe(observations, options.parsed_lookaheads(), as_json=as_json, quiet=quiet)
    else:
        runs = _schedule(options, repeat, anchor_every, texts.seed, interleave=interleave)
        plan = MeasurementPlan(
            models=models,
            texts=texts,
            runs=runs,
            out=out,
            num_threads=threads,
            resume=resume,
            synthetic=_law(synthetic),
            profile=_profile(profile),
        )
        _measure(plan, as_json=as_json, quiet=quiet)


def _law(name: str | None) -> Behaviour | None:
    """The greedy behaviour of the profile of that name or file."""
    from ssdsim.validation.latency import known_law

    profile = _profile(name)
    return None if profile is None else known_law(profile)


def _profile(name: str | None) -> PairProfile | None:
    """The profile of that name or file."""
    from ssdsim.catalog import load_profile
    from ssdsim.profile import PairProfile
    from ssdsim.schema import validate

    return None if name is None else validate(PairProfile, load_profile(name), source=name)


def _measure(plan: MeasurementPlan, *, as_json: bool, quiet: bool) -> None:
    """Make the runs that are missing, then report all of them from disk."""
    from ssdsim.cli.measure_report import print_document, show
    from ssdsim.extensions import load_extension
    from ssdsim.measurement import read_run

    execute = load_extension("ssdsim.verbs", "measure")
    execute(plan, TokenProgress(quiet=quiet))
    (print_document if as_json else show)([read_run(plan.folder(run)) for run in plan.runs])


def _observe(plan: ObservationPlan, lookaheads: list[int], *, as_json: bool, quiet: bool) -> None:
    """Two forward passes over text that the target writes, then estimates from what they said."""
    from ssdsim.cli.observation_report import print_document, show
    from ssdsim.extensions import load_extension

    observe = load_extension("ssdsim.verbs", "teacher_forced")
    observe(plan, TokenProgress(quiet=quiet))
    (print_document if as_json else show)(plan.out, lookaheads)


def _refuse_given(ctx: typer.Context, names: tuple[str, ...], why: str) -> None:
    """InputError that names the options among the parameters `names` which the user wrote."""
    from ssdsim.errors import InputError

    written = [p.opts[0] for p in ctx.command.params if p.name in names and _is_given(ctx, p.name)]
    if written:
        raise InputError(f"{', '.join(written)}: {why}; leave {'it' if len(written) == 1 else 'them'} out")


def _is_given(ctx: typer.Context, name: str) -> bool:
    """Whether a parameter was on the command line."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_least(option: str, value: int, least: int) -> None:
    from ssdsim.errors import DomainError

    if value < least:
        raise DomainError(option, f"must be at least {least}", value)


def _schedule(
    options: GridOptions, repeats: int, anchor_every: int, seed: int, *, interleave: bool
) -> tuple[PlannedRun, ...]:
    from ssdsim.measurement import schedule

    _check_least("--repeat", repeats, 1)
    _check_least("--anchor-every", anchor_every, 0)
    return schedule(options.settings(), repeats=repeats, interleave=interleave, anchor_every=anchor_every, seed=seed)


class TokenProgress:
    """The executor's reports as a line on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = Progress(0, "tokens", quiet=quiet)

    def start(self, total: int, finished: int) -> None:
        self._line = Progress(total, "tokens", quiet=self._quiet)
        self._line.take_over(finished)

    def advance(self, count: int) -> None:
        self._line.advance(count)

    def remark(self, text: str) -> None:
        remark(f"note: {text}", quiet=self._quiet)
