"""Every study runs by itself, small, and leaves its runs and a summary; here by simulation of a known truth."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from ssdsim.calibration.profile_from_records import profile_text
from ssdsim.profile import PairProfile

TRUTH = {
    "name": "truth",
    "target": "target",
    "draft": "draft",
    "hardware": {"target_device": "unit", "draft_device": "unit"},
    "behaviours": [
        {
            "acceptance": {"per_position": 0.75},
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


@pytest.mark.parametrize("name", ["hit_curves", "fan_out", "saguaro", "fallback", "lookahead", "closed_loop"])
def test_a_study_leaves_its_runs_and_a_summary(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(profile_text(PairProfile.model_validate(TRUTH)))
    out = tmp_path / "study"
    few = ["--num-prompts", "10", "--max-tokens", "24"]
    monkeypatch.setattr(sys, "argv", [name, "--out", str(out), "--simulate", str(truth), *few])
    importlib.import_module(f"experiments.{name}").main()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["study"] == name
    assert summary["rows"]
    assert summary["findings"]
    assert list(out.glob("**/runs/*/about.json"))
    assert next(iter(summary["rows"][0])) in capsys.readouterr().out


def test_bad_input_ends_a_study_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments import lookahead
    from experiments.common import start

    monkeypatch.setattr(sys, "argv", ["lookahead", "--out", str(tmp_path), "--simulate", "nobody"])
    with pytest.raises(SystemExit) as ended:
        start(lookahead.main)
    assert ended.value.code == 2
    assert "nobody" in capsys.readouterr().err
