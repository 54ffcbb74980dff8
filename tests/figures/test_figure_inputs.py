"""What `--from` finds: runs, profiles and reports, whose origin is never mistaken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from results_folder import PRODUCER, write_report, write_run

from figures.inputs import Results
from figures.marks import Origin
from ssdsim.errors import InputError
from ssdsim.scenario import Mode

POINT = {
    "name": "ssd-b1",
    "measured": {"tokens_per_s": 100.0, "round_s": 0.02},
    "predicted": {"exact": {"tokens_per_s": 98.0, "cache_hit_rate": 0.9}, "paper": {}},
}


def test_runs_profile_and_batches_are_found_below_the_folder(measured: Results) -> None:
    assert {(run.mode, run.workload.batch_size) for run in measured.runs} == {(m, b) for m in Mode for b in (1, 4)}
    assert {run.origin for run in measured.runs} == {Origin.MEASURED}
    assert [profile.name for profile in measured.profiles] == ["toy"]


def test_a_run_of_the_simulator_is_no_measurement(tmp_path: Path) -> None:
    write_run(tmp_path, Mode.SD, 1, measured=False)
    assert [run.origin for run in Results.read(tmp_path).runs] == [Origin.SIM]


def test_measured_runs_go_before_simulated_ones_and_small_batches_first(tmp_path: Path) -> None:
    for batch_size, measured in ((4, True), (1, False), (2, True)):
        write_run(tmp_path, Mode.SD, batch_size, measured=measured)
    order = [(run.origin, run.workload.batch_size) for run in Results.read(tmp_path).runs_of(Mode.SD)]
    assert order == [(Origin.MEASURED, 2), (Origin.MEASURED, 4), (Origin.SIM, 1)]


def test_an_interrupted_run_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, Mode.SD, 1, measured=True)
    (tmp_path / "runs" / "sd-b1").rename(tmp_path / "runs" / "sd-b1.partial")
    with pytest.raises(InputError, match="holds no run folder"):
        Results.read(tmp_path)


def test_a_report_gives_the_quantities_that_were_both_measured_and_predicted(tmp_path: Path) -> None:
    write_report(tmp_path, [POINT])
    (only,) = Results.read(tmp_path).predictions
    assert (only.quantity, only.method, only.setting) == ("tokens_per_s", "exact", "ssd-b1")
    assert (only.predicted, only.measured, only.origin) == (98.0, 100.0, Origin.MEASURED)


@pytest.mark.parametrize(("producer", "origin"), [("ssdsim.sim", Origin.SIM), (PRODUCER, Origin.MEASURED)])
def test_a_report_says_whether_a_simulator_stood_in(tmp_path: Path, producer: str, origin: Origin) -> None:
    write_report(tmp_path, [POINT], producer)
    assert Results.read(tmp_path).predictions[0].origin is origin


def test_a_broken_report_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"verb": "validate", "about": {}, "points": [{"name": "x"}]}))
    with pytest.raises(InputError, match=r"report\.json.*write it anew"):
        Results.read(tmp_path)


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        Results.read(tmp_path / "nowhere")
