"""What the forms of a weight matrix gain: `executor.matrix.Matrix` against `torch.nn.functional.linear`.

    python benchmarks/matrix.py [--json FILE] [--check]

One thread, the weights of the built-in pairs, each in so many copies that they do not stay in a core's cache.
Contenders take turns; ratios are those of the medians (below 1: faster). With --check: exits 1 where the geometric
mean over the widths of a type is above 1.05 (where nothing is packed the two are the same, and scatter).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from executor.matrix import Matrix

SHAPES = {
    "tiny": ((768, 384), (384, 384), (2048, 384), (384, 1024)),
    "smollm2": ((960, 576), (3072, 576), (576, 1536)),
}
ROWS = (1, 2, 5, 15, 32)
COPIED_WEIGHTS = 12_000_000
TURNS = 9
MOST = 1.05


def ratio(shape: tuple[int, int], dtype: torch.dtype, rows: int) -> float:
    """Time of our form over that of the library's, for one shape and number of rows."""
    weights = [torch.randn(shape).to(dtype) for _ in range(max(1, COPIED_WEIGHTS // (shape[0] * shape[1])))]
    matrices = [Matrix(weight) for weight in weights]
    x = torch.randn(rows, shape[1]).to(dtype)
    ours = lambda: [matrix(x) for matrix in matrices]  # noqa: E731
    library = lambda: [F.linear(x, weight) for weight in weights]  # noqa: E731
    times: dict[str, list[float]] = {"ours": [], "library": []}
    for turn in range(TURNS + 1):
        for name, play in (("ours", ours), ("library", library)):
            seconds = _seconds(play)
            if turn:  # the first one touches memory
                times[name].append(seconds)
    return statistics.median(times["ours"]) / statistics.median(times["library"])


def _seconds(play: Callable[[], object]) -> float:
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description="Packed and transposed weights against the library's product.")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--check", action="store_true", help="exit 1 where our forms are slower on average")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, float] = {}
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for rows in ROWS:
                found = [ratio(shape, dtype, rows) for shapes in SHAPES.values() for shape in shapes]
                result[f"{dtype} {rows}".removeprefix("torch.")] = statistics.geometric_mean(found)
                print(f"{str(dtype).removeprefix('torch.'):9} {rows:3} rows: {min(found):.2f} .. {max(found):.2f}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    slow = [name for name in ("float32", "bfloat16") if _mean_of(result, name) > MOST]
    for name in slow:
        print(f"missed: {name}: {_mean_of(result, name):.2f} of the library's time, at most {MOST}")
    return 1 if options.check and slow else 0


def _mean_of(result: dict[str, float], name: str) -> float:
    return statistics.geometric_mean(value for key, value in result.items() if key.startswith(name))


if __name__ == "__main__":
    sys.exit(main())
