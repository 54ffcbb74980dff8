"""How long the command line takes to answer: `ssdsim --help` and the default `ssdsim evaluate`.

    python benchmarks/startup.py [--runs 7] [--check]

Wall time of whole processes, the best of several, in turn with the baseline: an interpreter that imports what the
command cannot do without (Typer with its help renderer; NumPy and pydantic).

With --check: exits 1 unless help takes at most 0.4 s and evaluate at most 1.5 s.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import NamedTuple


class Command(NamedTuple):
    name: str
    code: str
    baseline: str
    target_s: float


MAIN = "from ssdsim.cli import main; main()"
COMMANDS = (
    Command("ssdsim --help", MAIN, "import typer, typer.rich_utils", 0.4),
    Command("ssdsim evaluate", MAIN, "import typer, numpy, pydantic", 1.5),
)


def wall_s(code: str, *args: str) -> float:
    """Seconds of one interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *args], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description="Start-up times of the command line.")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    met = True
    for command in COMMANDS:
        args = command.name.split()[1:]
        times = [(wall_s(command.code, *args), wall_s(command.baseline)) for _ in range(options.runs)]
        best, baseline = (min(column) for column in zip(*times, strict=True))
        print(f"{command.name:16} {best:.3f} s (at most {command.target_s} s); its imports alone {baseline:.3f} s")
        met &= best <= command.target_s
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
