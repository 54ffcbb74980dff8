"""A device's own numbers, for a pair whose weights cannot be had.

Random weights in the shapes of Llama-3.1-8B and Llama-3.2-1B (or any --target dummy:CONFIG --draft dummy:CONFIG):
how long a forward of either takes over batch, width and context, its dense part and its attention apart; then AR, SD
and SSD with outcomes drawn from a typical law, target and draft as two processes on one device.

    python -m experiments.device --out DIR --device cuda:0 --dtype bfloat16 --cuda-graphs
    python -m experiments.device --out DIR --widths 1,5 --contexts 64,256 --target dummy:A.json --draft dummy:B.json

forwards.csv has every forward; `ssdsim calibrate DIR/runs/runs/*` makes a profile of the runs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

from experiments.common import Row, Study, observed, per_position, setting, start, study_of, study_parser
from ssdsim.errors import InputError
from ssdsim.scenario import Mode

SHAPES = Path(__file__).parent / "shapes"
TARGET, DRAFT = f"dummy:{SHAPES / 'llama-3.1-8b.json'}", f"dummy:{SHAPES / 'llama-3.2-1b.json'}"
"""Published shapes: layers, widths, heads, vocabulary, rotary scaling."""
LOOKAHEAD, FAN_OUT = 4, 3
REPEATS = 12


class Forward(NamedTuple):
    """One timed forward: `batch` rows of `width` new tokens behind `context` cached ones."""

    role: str
    batch: int
    width: int
    context: int
    seconds: float
    """Median over the repeats."""
    slowest_s: float


class Split(NamedTuple):
    """What a forward of one batch and width takes without and with each cached token."""

    role: str
    batch: int
    width: int
    dense_s: float
    attention_s_per_token: float
    """Per cached token of the whole batch."""


def time_forwards(
    role: str, source: str, study: Study, batches: Sequence[int], widths: Sequence[int], contexts: Sequence[int]
) -> Iterator[Forward]:
    """Every combination, smallest first; a cache that does not fit ends it with the allocator's own error."""
    import torch

    from executor.decoder import Decoder
    from executor.models import load_model

    models = study.models
    device = models.target_device
    loaded = load_model(
        source, dtype=models.dtype, device=device, seed=study.texts.seed, cuda_graphs=models.cuda_graphs
    )
    generator = np.random.default_rng(study.texts.seed)
    with torch.inference_mode():
        for batch in batches:
            decoder = Decoder(loaded.model, batch, max(contexts) + max(widths))
            rows = np.arange(batch)
            for width in widths:
                tokens = generator.integers(loaded.vocab_size, size=(batch, width))
                for context in contexts:
                    times = []
                    for _ in range(REPEATS + 2):  # the first two touch memory and choose kernels
                        decoder.lengths[:] = context
                        _wait_for(device)
                        began = perf_counter()
                        decoder.extend(rows, tokens, np.full(batch, width))
                        _wait_for(device)
                        times.append(perf_counter() - began)
                    kept = times[2:]
                    yield Forward(role, batch, width, context, median(kept), max(kept))


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def split(forwards: Iterable[Forward]) -> list[Split]:
    """Dense part and attention by a line over the context, for each role, batch and width."""
    groups: dict[tuple[str, int, int], list[Forward]] = {}
    for forward in forwards:
        groups.setdefault((forward.role, forward.batch, forward.width), []).append(forward)
    found = []
    for (role, batch, width), members in groups.items():
        contexts = np.array([f.context for f in members], float)
        if len(set(contexts)) < 2:
            raise InputError("--contexts: give two or more, so that attention can be told from the rest")
        slope, dense = np.polyfit(contexts * batch, [f.seconds for f in members], 1)
        found.append(Split(role, batch, width, float(dense), float(slope)))
    return found


def generation_rows(study: Study, batches: Sequence[int]) -> list[Row]:
    """AR, SD and SSD at every batch size, outcomes drawn."""
    wanted = [
        setting(mode, lookahead=LOOKAHEAD, fan_out=per_position(FAN_OUT), batch_size=batch)
        for batch in batches
        for mode in Mode
    ]
    rows: list[Row] = []
    for run in study.run(wanted):
        seen = observed(run)
        names = {"tokens/s": "tokens_per_s", "round (ms)": "round_s", "hit rate": "cache_hit_rate"}
        values = {head: seen[name].value if name in seen else None for head, name in names.items()}
        if values["round (ms)"] is not None:
            values["round (ms)"] *= 1e3
        rows.append({"batch": run.setting.batch_size, "mode": str(run.setting.mode), **values})
    return rows


def main() -> None:
    """Run the study."""
    parser = study_parser("device", __doc__ or "")
    parser.set_defaults(target=TARGET, draft=DRAFT)
    for name, default in (("batches", "1,8"), ("widths", "1,2,5,9,16"), ("contexts", "128,1024,4096")):
        parser.add_argument(f"--{name}", type=_numbers, default=_numbers(default), metavar="N,..")
    given = parser.parse_args()
    study = study_of("device", given)
    given.out.mkdir(parents=True, exist_ok=True)
    forwards: list[Forward] = []
    for role, source in (("target", given.target), ("draft", given.draft)):
        forwards += time_forwards(role, source, study, given.batches, given.widths, given.contexts)
    with (given.out / "forwards.csv").open("w", newline="") as file:
        csv.writer(file).writerows([Forward._fields, *forwards])
    for part in split(forwards):
        print(
            f"{part.role:6} batch {part.batch:3} width {part.width:3}: dense {1e3 * part.dense_s:8.3f} ms, "
            f"attention {1e6 * part.attention_s_per_token:8.4f} us per cached token"
        )
    rows = generation_rows(study, given.batches)
    study.save(rows, device=given.device, dtype=given.dtype, cuda_graphs=given.cuda_graphs)


def _numbers(text: str) -> tuple[int, ...]:
    values = tuple(int(part) for part in text.split(","))
    if min(values) < 1:
        raise argparse.ArgumentTypeError("positive integers, separated by commas")
    return values


if __name__ == "__main__":
    start(main)
