"""The closed loop: `ssdsim validate` on its small grid, as a study like the others.

Measured, calibrated on a part, the rest predicted; report.json, report.md and report.svg lie beside the runs.
"""

from __future__ import annotations

import shlex
import sys

from experiments.common import Row, start, study_from_arguments
from ssdsim.evaluate import Method
from ssdsim.validation.errors import errors_by_metric, mean_causes
from ssdsim.validation.grid import GridName, validation_grid
from ssdsim.validation.predictions import METHODS
from ssdsim.validation.report import save
from ssdsim.validation.study import plan_of, run_study


class _Silent:
    def start(self, total: int, finished: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def remark(self, text: str) -> None:
        print(f"note: {text}")


def main() -> None:
    """Run the study."""
    study = study_from_arguments("closed_loop", __doc__ or "", num_prompts=16)
    grid = validation_grid(GridName.SMALL)
    found = run_study(grid, plan_of(grid, study.models, study.texts, study.out), study.execute, _Silent())
    save(found, study.out, shlex.join(["python", "-m", "experiments.closed_loop", *sys.argv[1:]]))
    rows: list[Row] = [
        {"method": str(method), "metric": metric, "mean error": error.mean, "worst": error.worst}
        for method in METHODS
        for metric, error in errors_by_metric(found.points, method).items()
    ]
    study.save(
        rows,
        run_to_run_noise=None if found.drift is None else found.drift.noise["tokens_per_s"],
        causes={name: round(size, 4) for name, size in mean_causes(found.points).items()},
        sim_tokens_per_s=errors_by_metric(found.points, Method.SIM)["tokens_per_s"].mean,
    )


if __name__ == "__main__":
    start(main)
