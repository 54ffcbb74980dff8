"""A device's own numbers, for a pair whose weights cannot be had.

Random weights in the shapes of Llama-3.1-8B and Llama-3.2-1B (or any --target dummy:CONFIG --draft dummy:CONFIG, or a
built-in --pair): how long a forward of either takes over batch, width and context, its dense part and its attention
apart; then AR, SD and SSD, target and draft as two processes on one device. Where weights are random, outcomes are
drawn from a typical law.

    python -m experiments.device --out DIR --device cuda:0 --dtype bfloat16 --cuda-graphs
    python -m experiments.device --out DIR --widths 1,5 --contexts 64,256 --target dummy:A.json --draft dummy:B.json
    python -m experiments.device --out DIR --contexts 64,256 --pair tiny

about.json says on what it was measured, forwards.csv has every forward, each written as soon as it was timed, and
summary.json their parts and the rates; `ssdsim calibrate DIR/runs/runs/*` makes a profile of the runs. The same call
again completes what an earlier one left. What does not fit into memory is left out, with a word on stderr.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.common import (
    Row,
    Study,
    aligned,
    observed,
    per_position,
    setting,
    start,
    study_of,
    study_parser,
)
from experiments.forwards import ROLES, ForwardsFile, Shape, left_out, split, time_missing
from ssdsim.errors import InputError, RunError
from ssdsim.measurement import FinishedRun, RunSetting
from ssdsim.scenario import Mode

if TYPE_CHECKING:
    from executor.pair_source import NamedPair
    from executor.roles import ModelPair

SHAPES = Path(__file__).parent / "shapes"
TARGET, DRAFT = f"dummy:{SHAPES / 'llama-3.1-8b.json'}", f"dummy:{SHAPES / 'llama-3.2-1b.json'}"
"""Published shapes: layers, widths, heads, vocabulary, rotary scaling."""
LOOKAHEAD, FAN_OUT = 4, 3
_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def checked_pair(study: Study, contexts: Sequence[int], widths: Sequence[int]) -> NamedPair:
    """The pair to time; InputError for whatever would fail later and can be known now."""
    from executor.measure import read_token_prompts
    from executor.models import DTYPES
    from executor.pair_source import resolve_pair

    if len(set(contexts)) < 2:
        raise InputError("contexts: give two or more, so that attention can be told from the rest")
    if study.models.dtype not in DTYPES:
        raise InputError(f"dtype: one of {', '.join(DTYPES)}; got {study.models.dtype!r}")
    pair = resolve_pair(study.models)
    if pair.models.draft is None:
        raise InputError("draft: give the --draft that goes with --target")
    limit = min(int(config.max_position_embeddings) for config in _configs(pair.models).values())
    room = limit - max(widths)
    if max(contexts) > room:
        raise InputError(
            f"contexts: {max(contexts)} and {max(widths)} new tokens are more than the {limit} positions of the "
            f"models; give contexts of at most {room}"
        )
    room = limit - max(len(prompt.tokens) for prompt in read_token_prompts(study.texts, pair))
    if study.texts.max_tokens > room:
        raise InputError(
            f"max_tokens: {study.texts.max_tokens} behind the longest prompt are more than the {limit} positions of "
            f"the models; give at most {room}"
        )
    return pair


def _configs(models: ModelPair) -> dict[str, Any]:
    """Both configurations, by role."""
    from executor.checkpoints import read_config

    sources = zip(ROLES, (models.target, models.draft), strict=True)
    return {role: read_config(source) for role, source in sources if source is not None}


def provenance(study: Study, pair: NamedPair) -> dict[str, Any]:
    """On what the forwards and the runs of a folder are measured: rows of two such things do not mix."""
    from executor.machine import software_versions

    texts = study.texts
    configs = _configs(pair.models)
    return {
        "device": study.models.target_device,
        "device_name": _device_name(study.models.target_device),
        "cuda_graphs": study.models.cuda_graphs,
        "models": pair.describe(),
        "sizes": {role: {name: getattr(config, name) for name in _SIZES} for role, config in configs.items()},
        "texts": {"num_prompts": texts.num_prompts, "max_tokens": texts.max_tokens, "seed": texts.seed},
        "versions": software_versions(),
    }


def _device_name(device: str) -> str:
    import torch

    from executor.machine import describe_machine

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return str(describe_machine()["cpu"])


def claim(out: Path, about: Mapping[str, Any]) -> None:
    """Write about.json; InputError where the folder has forwards of something else."""
    file = out / "about.json"
    if not (out / "forwards.csv").is_file():
        date = datetime.now(UTC).isoformat(timespec="seconds")
        file.write_text(json.dumps({**about, "date": date}, indent=1) + "\n")
        return
    try:
        found = json.loads(file.read_text())
        different = sorted(name for name in about if found.get(name) != about[name])
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"out: {out} has a forwards.csv without its about.json; choose another folder") from error
    if different:
        raise InputError(f"out: {out} has forwards with other {', '.join(different)}; choose another folder")


def generate(study: Study, batches: Sequence[int], findings: dict[str, Any]) -> list[Row]:
    """AR, SD and SSD at every batch size, the summary written after each; RunError at the end where any failed."""
    rows: list[Row] = []
    wanted = [
        setting(mode, lookahead=LOOKAHEAD, fan_out=per_position(FAN_OUT), batch_size=batch)
        for batch in batches
        for mode in Mode
    ]
    failed: list[str] = []
    for one in wanted:
        rows += _generated(study, one, failed)
        study.keep(rows, {**findings, "failed_runs": failed})
    for line in aligned(rows):
        print(line)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(wanted)} runs failed (see above); the others are kept, the same call tries again"
        )
    return rows


def _generated(study: Study, wanted: RunSetting, failed: list[str]) -> list[Row]:
    """The row of one run; none, and a line in `failed`, where it could not be completed."""
    try:
        return [_row(run) for run in study.run([wanted])]
    except RunError as error:
        failed.append(left_out(wanted.name, error))
        return []


def _row(run: FinishedRun) -> Row:
    seen = observed(run)
    names = {"tokens/s": "tokens_per_s", "round (ms)": "round_s", "hit rate": "cache_hit_rate"}
    values = {head: seen[name].value if name in seen else None for head, name in names.items()}
    if values["round (ms)"] is not None:
        values["round (ms)"] *= 1e3
    return {"batch": run.setting.batch_size, "mode": str(run.setting.mode), **values}


def main() -> None:
    """Run the study."""
    given = _parsed()
    study = study_of("device", given)
    pair = checked_pair(study, given.contexts, given.widths)
    about = provenance(study, pair)
    claim(given.out, about)
    file = ForwardsFile(given.out / "forwards.csv")
    wanted = [
        Shape(role, batch, width, context)
        for role in ROLES
        for batch in given.batches
        for width in given.widths
        for context in given.contexts
    ]
    skipped = time_missing(study, pair.models, wanted, file)
    parts = split(file.found.values())
    for part in parts:
        print(
            f"{part.role:6} batch {part.batch:3} width {part.width:3}: dense {1e3 * part.dense_s:8.3f} ms, "
            f"attention {1e6 * part.attention_s_per_token:8.4f} us per cached token"
        )
    findings = {**about, "split": [part._asdict() for part in parts], "left_out": skipped}
    study.keep([], findings)
    generate(study, _fitting(given.batches, file), findings)


def _parsed() -> argparse.Namespace:
    default = "the shapes of Llama-3.1-8B and Llama-3.2-1B"
    parser = study_parser("device", __doc__ or "", default_pair=default)
    for name, numbers in (("batches", "1,8"), ("widths", "1,2,5,9,16"), ("contexts", "128,1024,4096")):
        parser.add_argument(f"--{name}", type=_numbers, default=_numbers(numbers), metavar="N,..")
    given = parser.parse_args()
    if given.pair is None and given.target is None:
        given.target, given.draft = TARGET, given.draft or DRAFT
    return given


def _fitting(batches: Sequence[int], file: ForwardsFile) -> list[int]:
    """The batch sizes of which any forward of both models fits into memory."""
    timed = {(shape.role, shape.batch) for shape in file.found}
    return [batch for batch in batches if all((role, batch) in timed for role in ROLES)]


def _numbers(text: str) -> tuple[int, ...]:
    """Each number once, smallest first."""
    values = sorted({int(part) for part in text.split(",")})
    if values[0] < 1:
        raise argparse.ArgumentTypeError("positive integers, separated by commas")
    return tuple(values)


if __name__ == "__main__":
    start(main)
