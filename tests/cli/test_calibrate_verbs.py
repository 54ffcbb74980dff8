"""`ssdsim calibrate` and `ssdsim validate` through the command line, on simulated runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_scenarios import toy
from typer.testing import CliRunner

from ssdsim.calibration.profile_from_records import profile_text
from ssdsim.cli.app import EXIT_BAD_INPUT, app
from ssdsim.profile import PairProfile
from ssdsim.sim import simulate

TRUTH: dict[str, Any] = {
    "name": "truth",
    "target": "target",
    "draft": "draft",
    "hardware": {"target_device": "unit", "draft_device": "unit"},
    "behaviours": [
        {
            "acceptance": {"per_position": 0.75, "spread": 0.05},
            "hit_curves": {
                "after_draft": {"rejection": {"kind": "power", "miss_exponent": 0.5, "miss_prefactor": 0.6}}
            },
        }
    ],
    "costs": {
        "kind": "components",
        "verify": {"kind": "linear", "base_s": 4e-3, "per_query_token_s": 1e-4},
        "draft_step": {"kind": "constant", "seconds": 4e-4},
        "tree_step": {"kind": "linear", "base_s": 3e-4, "per_query_token_s": 1e-5},
        "host": {"kind": "constant", "seconds": 2e-4},
    },
}


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def truth_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("truth") / "truth.json"
    path.write_text(profile_text(PairProfile.model_validate(TRUTH)))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for mode, size in (("sd", 1), ("ssd", 1), ("ssd", 4)):
        settings = {"mode": mode, "fan_out__per_position": size, "workload__output_tokens": 40, "num_requests": 16}
        simulate(toy(TRUTH, fallback__kind="jit", **settings)).records.write(folder / f"{mode}{size}")
    return folder


def test_calibrate_writes_a_profile_that_evaluate_takes_with_its_bounds(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    shown = run("calibrate", str(runs), "--out", str(out))
    assert "acceptance.per_position.0" in shown.stdout
    assert "no AR run" in shown.stderr
    answer = json.loads(
        run(
            "evaluate",
            "--pair",
            str(out),
            "--set",
            "num_speculative_tokens=4",
            "--method",
            "exact",
            "--uncertainty",
            "--json",
        ).stdout
    )
    rate = next(a for a in answer["answers"] if a["mode"] == "ssd")["quantities"]["tokens_per_s"]
    assert rate["low"] < rate["value"] < rate["high"]


def test_calibrate_prints_one_document(runs: Path, tmp_path: Path) -> None:
    shown = json.loads(run("calibrate", str(runs), "--out", str(tmp_path / "mine.json"), "--json", "--quiet").stdout)
    assert shown["verb"] == "calibrate"
    assert shown["num_runs"] == 3
    assert shown["profile"]["name"] == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "absent", "--out", "mine.json"], "no such folder"),
        (["calibrate", ".", "--out", "mine.yaml"], "written as .json"),
        (["validate", "--out", "here", "--grid", "huge"], "small, full"),
    ],
)
def test_bad_input_is_told(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run(*arguments, code=EXIT_BAD_INPUT).stderr


def test_validate_reports_and_gates(truth_file: str, tmp_path: Path) -> None:
    options = ("--simulate", truth_file, "--grid", "small", "--num-prompts", "12", "--max-tokens", "32", "--quiet")
    out = tmp_path / "validation"
    document = json.loads(run("validate", "--out", str(out), *options, "--json").stdout)
    error = document["errors"]["sim"]["tokens_per_s"]["mean"]
    assert (out / "profile.json").is_file()
    assert (out / "report.md").read_text().startswith("# Accuracy")
    assert document["num_held_out"] == len(document["points"])
    again = run("validate", "--out", str(out), *options, "--max-error", f"{error / 2:.6f}", code=1)
    assert "more than" in again.stderr
    assert "held-out points" in again.stdout
