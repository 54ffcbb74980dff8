"""What is asked of an executor, and where its runs lie on disk: plans, combinations, folders.

`ssdsim measure` and validation build a `MeasurementPlan`; the executor (entry point `ssdsim.verbs`) turns every
planned run into a folder of records. Nothing here needs models or torch, so a plan is made and its runs are read on
any machine.

    DIR/measurement.json     what all runs have in common (pair, prompts, seed, versions)
    DIR/runs/NAME/           one finished run: three tables, about.json, rank_trace.json where it is known
    DIR/runs/NAME.partial/   a run that was interrupted; the next attempt replaces it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ssdsim.errors import DomainError, InputError
from ssdsim.profile import Behaviour, PairProfile
from ssdsim.records import Records
from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode, drafting_problems

BUILT_IN_PROMPTS = "built-in"
_NO_DRAFTING = Drafting(num_speculative_tokens=0)
_OPTIONS = ("fan_out_on_miss", "first_round", "on_late", "padded_verify", "redraft_hits")
"""Fields of a drafting that a run's name mentions where they are not the default."""


@dataclass(frozen=True, kw_only=True)
class RunSetting:
    """One combination of the grid."""

    mode: Mode
    drafting: Drafting
    batch_size: int
    temperature: float

    @property
    def name(self) -> str:
        """A readable name, unique among combinations and fit for a folder."""
        return "-".join((self.mode.value, *_drafting_labels(self.mode, self.drafting), *self._load_labels()))

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        drafting = self.drafting.model_dump(mode="json")
        return {**asdict(self), "mode": self.mode.value, "drafting": drafting}

    def _load_labels(self) -> tuple[str, str]:
        return f"b{self.batch_size}", f"T{self.temperature:g}"


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a combination."""

    setting: RunSetting
    repeat: int
    is_anchor: bool = False
    """Repeated to make the machine's drift visible."""

    @property
    def name(self) -> str:
        """The run's folder."""
        return f"{self.setting.name}.{'anchor' if self.is_anchor else 'r'}{self.repeat}"


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Which models: a built-in pair by name, or a source of weights for each role (see `executor.models`)."""

    pair: str | None = None
    target: str | None = None
    draft: str | None = None
    dtype: str = "float32"
    target_device: str = "cpu"
    draft_device: str = "cpu"
    cuda_graphs: bool = False
    """Capture the narrow steps of both models into CUDA graphs."""

    def __post_init__(self) -> None:
        if (self.pair is None) == (self.target is None):
            raise InputError("pair: give either --pair NAME or --target SOURCE with --draft SOURCE")
        if self.pair is not None and self.draft is not None:
            raise InputError("draft: --draft goes with --target; a built-in pair brings its own")
        devices = (self.target_device, self.draft_device)
        if self.cuda_graphs and not all(device.startswith("cuda") for device in devices):
            raise InputError(
                f"cuda_graphs: both models must be on CUDA devices, and these are on {' and '.join(devices)}; "
                "give --device cuda:0, or leave --cuda-graphs out"
            )


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is generated: from which prompts, how long, with which seed."""

    prompts: str = BUILT_IN_PROMPTS
    """`built-in` or the path of a JSON-lines file."""
    dataset: str | None = None
    """Instead of `prompts`: NAME[@CONFIG][:SPLIT[:FIELD]] of Hugging Face datasets."""
    num_prompts: int = 20
    max_tokens: int = 128
    ignore_eos: bool = False
    raw_prompts: bool = False
    """Leave the tokenizer's chat template out."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_prompts", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DomainError(name, "an integer of at least 1", value)
        if self.dataset is not None and self.prompts != BUILT_IN_PROMPTS:
            raise InputError("dataset: give either --prompts or --dataset")


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """All runs of one measurement, in the order in which they are made."""

    models: ModelSource
    texts: Texts
    runs: tuple[PlannedRun, ...]
    out: Path
    num_threads: int = 1
    resume: bool = False
    synthetic: Behaviour | None = None
    """Draw acceptance and hits from this law, whatever the models say: everything else is real. None: only with
    random weights, from a typical law."""

    profile: PairProfile | None = None
    """Decides `geometric` and `optimal` fan-out, `auto` and `threshold` fallback; None: a typical draft's, and no
    `auto`."""

    @property
    def law(self) -> dict[str, Any] | None:
        """`synthetic` in plain data, as the measurement's own file keeps it."""
        return None if self.synthetic is None else self.synthetic.model_dump(mode="json", exclude_none=True)

    def folder(self, run: PlannedRun) -> Path:
        """Where the run's records go."""
        return self.out / "runs" / run.name

    def unfinished(self) -> tuple[PlannedRun, ...]:
        """Runs without a folder yet."""
        return tuple(run for run in self.runs if not self.folder(run).is_dir())


class Reporter(Protocol):
    """Hears how a measurement proceeds."""

    def start(self, total: int, finished: int) -> None:
        """`total` output tokens are to be generated at most, `finished` of them were in an earlier attempt."""

    def advance(self, count: int) -> None:
        """`count` more are finished."""

    def remark(self, text: str) -> None:
        """Something that the reader of the results should know."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """A run as it lies on disk."""

    name: str
    setting: RunSetting
    repeat: int
    is_anchor: bool
    records: Records


def grid(
    base: Drafting,
    *,
    modes: Iterable[Mode],
    lookaheads: Iterable[int],
    fan_outs: Iterable[FanOut],
    fallbacks: Iterable[FallbackChoice],
    downweights: Iterable[float],
    batch_sizes: Iterable[int],
    temperatures: Iterable[float],
) -> tuple[RunSetting, ...]:
    """Every combination once: AR has no drafting, SD no cache, and at temperature 0 Saguaro's constant does nothing.

    `base` gives the fields that do not vary. Raises InputError for a combination that does not fit together.
    """
    settings: dict[str, RunSetting] = {}
    chosen = product(modes, lookaheads, fan_outs, fallbacks, downweights, batch_sizes, temperatures)
    for mode, lookahead, fan_out, fallback, downweight, batch_size, temperature in chosen:
        varied = {
            "num_speculative_tokens": lookahead,
            "fan_out": fan_out,
            "fallback": fallback,
            "saguaro_downweight": downweight if temperature > 0 else 1.0,
        }
        drafting = _relevant(mode, base.model_copy(update=varied))
        problems = drafting_problems(drafting) if mode is not Mode.AR else []
        if problems:
            raise InputError("; ".join(problems))
        setting = RunSetting(mode=mode, drafting=drafting, batch_size=batch_size, temperature=temperature)
        settings.setdefault(setting.name, setting)
    return tuple(settings.values())


def schedule(
    settings: Sequence[RunSetting],
    *,
    repeats: int = 1,
    interleave: bool = False,
    anchor_every: int = 0,
    seed: int = 0,
) -> tuple[PlannedRun, ...]:
    """The order of the runs: `repeats` passes over the combinations, so that a slow change of the machine meets all.

    `interleave` shuffles every pass. Every `anchor_every` runs (0: never) the first combination is run once more, as
    an anchor.
    """
    order = np.random.default_rng(seed)
    runs: list[PlannedRun] = []
    for repeat in range(repeats):
        indices = order.permutation(len(settings)) if interleave else range(len(settings))
        runs += [PlannedRun(setting=settings[i], repeat=repeat) for i in indices]
    if not anchor_every:
        return tuple(runs)
    anchored: list[PlannedRun] = []
    for number, start in enumerate(range(0, len(runs), anchor_every)):
        anchored.append(PlannedRun(setting=settings[0], repeat=number, is_anchor=True))
        anchored += runs[start : start + anchor_every]
    return tuple(anchored)


def read_run(folder: Path) -> FinishedRun:
    """The run in `folder`; InputError where it is not one of `ssdsim measure`."""
    records = Records.read(folder)
    about = records.about
    try:
        plain, run = about["setting"], about["run"]
        setting = RunSetting(
            mode=Mode(plain["mode"]),
            drafting=Drafting.model_validate(plain["drafting"]),
            batch_size=plain["batch_size"],
            temperature=plain["temperature"],
        )
        repeat, is_anchor = run["repeat"], run["is_anchor"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: its about.json is not that of a run of `ssdsim measure` ({error})") from error
    return FinishedRun(name=folder.name, setting=setting, repeat=repeat, is_anchor=is_anchor, records=records)


def read_runs(out: Path) -> list[FinishedRun]:
    """Every finished run of a measurement, by name; InputError where there is none."""
    folders = sorted(path for path in (out / "runs").glob("*") if path.is_dir() and path.suffix != ".partial")
    if not folders:
        raise InputError(f"{out}: no runs here; a measurement is a folder that `ssdsim measure --out` wrote")
    return [read_run(folder) for folder in folders]


def check_same_measurement(out: Path, common: dict[str, Any], *, resume: bool) -> None:
    """Claim `out` for runs that share `common`; InputError where it holds something else or is not to be resumed.

    A claim under which no run was stored, left by a start that failed, holds nothing.
    """
    file = out / "measurement.json"
    if not file.is_file() or not any(path.suffix != ".partial" for path in (out / "runs").glob("*")):
        _claim(file, common)
        return
    if not resume:
        raise InputError(
            f"out: {out} holds a measurement already; add --resume to complete it or choose another folder"
        )
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise InputError(f"out: {file} is no JSON ({error}); choose another folder") from error
    different = sorted(key for key in common.keys() | found.keys() if common.get(key) != found.get(key))
    if different:
        raise InputError(f"out: {out} holds a measurement with other {', '.join(different)}; choose another folder")


def _claim(file: Path, common: dict[str, Any]) -> None:
    """Write `common` at once or not at all."""
    partial = file.with_suffix(".partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(common, indent=1, sort_keys=True) + "\n")
        partial.replace(file)
    except OSError as error:
        raise InputError(f"out: cannot write {file} ({error.strerror}); choose another folder") from error


def _relevant(mode: Mode, drafting: Drafting) -> Drafting:
    """The drafting without what the mode does not use, so that equal runs have equal settings."""
    if mode is Mode.AR:
        return _NO_DRAFTING
    if mode is Mode.SD:
        return Drafting(
            num_speculative_tokens=drafting.num_speculative_tokens,
            sd_extra_step=drafting.sd_extra_step,
            drafter=drafting.drafter,
        )
    return drafting.model_copy(update={"sd_extra_step": False})


def _drafting_labels(mode: Mode, drafting: Drafting) -> list[str]:
    if mode is Mode.AR:
        return []
    labels = [f"K{drafting.num_speculative_tokens}"]
    if mode is Mode.SD:
        return [*labels, *(["extra_step"] if drafting.sd_extra_step else [])]
    labels += [f"F{_fan_out_label(drafting.fan_out)}", _fallback_label(drafting.fallback)]
    if drafting.saguaro_downweight != 1.0:
        labels.append(f"C{drafting.saguaro_downweight:g}")
    for name in _OPTIONS:
        value = getattr(drafting, name)
        if value != Drafting.model_fields[name].default:
            labels.append(f"{name}_{_fan_out_label(value) if isinstance(value, FanOut) else value}")
    return labels


def _fan_out_label(fan_out: FanOut) -> str:
    if fan_out.values is not None:
        return "+".join(map(str, fan_out.values))
    size = f"B{fan_out.budget}" if fan_out.budget is not None else str(fan_out.per_position)
    return size if fan_out.policy == "uniform" else f"{fan_out.policy}{size}"


def _fallback_label(fallback: FallbackChoice) -> str:
    size = fallback.num_tokens or fallback.threshold
    return f"{fallback.kind.value}{size or ''}"
