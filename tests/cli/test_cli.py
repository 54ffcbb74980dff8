"""The command line through its own runner: tables, JSON documents, messages and exit codes."""

from __future__ import annotations

import importlib.abc
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from toy_scenarios import toy_pair
from typer.testing import CliRunner

from ssdsim.cli import main
from ssdsim.cli.app import EXIT_BAD_INPUT, EXIT_BROKEN, EXIT_INTERRUPTED, app
from ssdsim.quantities import LABELS

QUICK_SIM = ("--set", "num_requests=30", "--set", "output_tokens=40")
BOUNDED = {"value", "low", "high"}


@pytest.fixture
def toy_file(tmp_path: Path) -> str:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps({"pair": toy_pair(), "drafting": {"num_speculative_tokens": 5}}))
    return str(path)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result


def document(*args: str) -> dict[str, Any]:
    """The one JSON document on stdout."""
    parsed = json.loads(run(*args, "--json").stdout)
    assert isinstance(parsed, dict)
    return parsed


@pytest.mark.parametrize("verb", [(), ("evaluate",), ("simulate",), ("whatif",), ("sweep",), ("catalog", "show")])
def test_help_explains_every_verb_and_shows_an_example(verb: tuple[str, ...]) -> None:
    text = run(*verb, "--help").stdout
    assert "Usage: ssdsim" in text
    assert not verb or "Example: ssdsim" in text


def test_without_arguments_the_verbs_are_shown() -> None:
    result = CliRunner().invoke(app, [])
    assert "evaluate" in result.output


# evaluate


def test_evaluate_puts_methods_and_modes_side_by_side_with_the_gap() -> None:
    text = run("evaluate").stdout
    for expected in ("paper vs exact", "speed-up over AR (x)", "P(all hit)", "output per device", "assumed: "):
        assert expected in text
    assert "\x1b[" not in text, "no colour codes when piped"


def test_evaluate_as_json_has_every_answer_with_bounds_and_what_it_rests_on(toy_file: str) -> None:
    found = document("evaluate", toy_file, "--method", "exact", "--method", "sim", *QUICK_SIM)
    assert found["verb"] == "evaluate"
    assert found["scenario"]["pair"] == "toy"
    assert found["scenario"]["workload"]["num_requests"] == 30
    answers = {(a["method"], a["mode"]): a["quantities"] for a in found["answers"]}
    assert set(answers) == {(method, mode) for method in ("exact", "sim") for mode in ("ar", "sd", "ssd")}
    for quantities in answers.values():
        assert all(set(quantity) == BOUNDED for quantity in quantities.values())
        assert {"tokens_per_s", "speedup_over_ar", "speedup_over_sd", "tokens_per_s_per_device"} <= set(quantities)
    assert set(answers["exact", "ssd"]) <= set(LABELS)
    assert answers["exact", "ssd"]["tokens_per_s"]["low"] is None
    simulated = answers["sim", "ssd"]["tokens_per_s"]
    assert simulated["low"] < answers["exact", "ssd"]["tokens_per_s"]["value"] < simulated["high"]


def test_evaluate_says_what_is_extrapolated() -> None:
    assert "extrapolated: batch size 8 beyond 1" in run("evaluate", "--set", "batch_size=8").stdout
    assert document("evaluate", "--set", "batch_size=8")["extrapolated"] == ["batch size 8 beyond 1"]
    assert document("evaluate")["extrapolated"] == []


def test_evaluate_with_uncertainty_gives_the_uncalibrated_band() -> None:
    (ssd,) = (a for a in document("evaluate", "--method", "exact", "--uncertainty")["answers"] if a["mode"] == "ssd")
    rate = ssd["quantities"]["tokens_per_s"]
    assert rate["low"] < rate["value"] < rate["high"]
    assert "[" in run("whatif", "--set", "batch_size=2", "--uncertainty").stdout


def test_a_method_that_does_not_cover_the_scenario_says_why_and_the_others_answer(toy_file: str) -> None:
    args = ("evaluate", toy_file, "--set", "fallback.kind=threshold", "--set", "output_tokens=null")
    found = document(*args)
    assert [r["method"] for r in found["refusals"]] == ["paper"]
    assert "threshold" in found["refusals"][0]["reason"]
    result = run(*args)
    assert "paper, ssd" in result.stderr
    assert "tokens/s" in result.stdout


def test_the_seed_option_is_the_run_seed(toy_file: str) -> None:
    assert document("evaluate", toy_file, "--seed", "7")["scenario"]["run"]["seed"] == 7


# what is wrong


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("evaluate", "none.yaml"), "cannot read this file"),
        (("evaluate", "--pair", "gpt"), "no embedded profile 'gpt'; choose one of"),
        (("evaluate", "--set", "batchsize=3"), "did you mean 'workload.batch_size'?"),
        (("evaluate", "--set", "batch_size"), "write path.to.field=value"),
        (("evaluate", "--method", "guess"), "must be one of paper, exact, sim, real"),
        (("sweep", "--over", "batch_size=4:1"), "does not lead from 4 to 1"),
        (("sweep", "--over", "batch_size=1,2", "--out", "x.xlsx"), "must end in .parquet, .csv, .json"),
        (("sweep", "--over", "batch_size=1,2", "--quantity", "joy"), "must be one of tokens_per_s"),
        (("sweep", "--over", "batch_size=1,2", "--engine", "slurm"), "must be one of local, ray, dask"),
        (("sweep", "--over", "batch_size=1,2", "--workers", "0"), "must be at least 1"),
        (("sweep", "--over", "batch_size=1,2", "--resume"), "say which sweep with --out"),
        (("sweep", "--over", "batch_size=1,2", "--figure", "none/x.png"), "lie in a folder that exists"),
        (("whatif",), "say what changes"),
        (("catalog", "show", "gpt"), "choose one of"),
        (("simulate", "--sink", "aggregate", "--timeline", "x.png"), "keeps no rounds to draw"),
        (("simulate", "--trace", "none/x.json"), "there is no folder"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(args: tuple[str, ...], message: str) -> None:
    result = run(*args, code=EXIT_BAD_INPUT)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_wrong_usage_is_exit_code_2_too() -> None:
    for args in (("evaluate", "--nonsense"), ("nonsense",), ("simulate", "--sink", "most")):
        run(*args, code=EXIT_BAD_INPUT)


def test_all_problems_are_told_at_once() -> None:
    sets = [arg for text in ("batch_size=0", "fallback.kind=x", "run.seed=-1") for arg in ("--set", text)]
    text = run("evaluate", *sets, code=EXIT_BAD_INPUT).stderr
    assert "3 problems" in text
    for field in ("workload.batch_size", "drafting.fallback.kind", "run.seed"):
        assert f"- {field}: must be" in text


def test_what_should_not_happen_is_told_with_the_way_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("ssdsim.evaluate.evaluate", crash)
    text = run("evaluate", code=EXIT_BROKEN).stderr
    assert "KeyError: 'lost'" in text
    assert "SSDSIM_DEBUG=1" in text
    monkeypatch.setenv("SSDSIM_DEBUG", "1")
    assert isinstance(CliRunner().invoke(app, ["evaluate"]).exception, KeyError)


def test_an_interruption_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ssdsim.evaluate.evaluate", interrupt)
    assert "interrupted" in run("evaluate", code=EXIT_INTERRUPTED).stderr


def test_an_interruption_while_the_verbs_are_imported_is_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupts(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "ssdsim.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ssdsim.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


# whatif


def test_whatif_shows_the_change_in_absolute_and_percent_and_why() -> None:
    text = run("whatif", "--set", "num_speculative_tokens=4").stdout
    for expected in ("before", "after", "percent", "what moved most is the acceptance", "together"):
        assert expected in text


def test_whatif_as_json_adds_up(toy_file: str) -> None:
    found = document("whatif", toy_file, "--given", "batch_size=4", "--set", "fallback.kind=none")
    assert found["scenario"]["workload"]["batch_size"] == 4
    before, after = (found[when]["tokens_per_s"]["value"] for when in ("before", "after"))
    assert found["change"]["tokens_per_s"] == pytest.approx(after - before)
    assert found["change_percent"]["tokens_per_s"] == pytest.approx(100 * (after / before - 1))
    assert sum(part["tokens_per_s"] for part in found["contributions"]) == pytest.approx(after - before)


# sweep


def test_a_sweep_prints_a_table_and_writes_file_and_picture(toy_file: str, tmp_path: Path) -> None:
    out, figure = tmp_path / "s.csv", tmp_path / "s.svg"
    axes = ("--over", "batch_size=1,2,4", "--over", "mode=ar,sd,ssd")
    result = run("sweep", toy_file, *axes, "--out", str(out), "--figure", str(figure))
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["batch", "size", "AR", "SD", "SSD"] in lines
    table = pd.read_csv(out)
    assert table["mode"].tolist() == ["ar", "sd", "ssd"] * 3
    assert figure.read_text().startswith("<?xml")
    assert f"wrote {out}" in result.stderr


def test_a_sweep_as_json_is_one_document_and_unknown_values_are_null(toy_file: str) -> None:
    found = document("sweep", toy_file, "--over", "batch_size=0,2")
    assert [row["status"] for row in found["rows"]] == ["invalid", "ok"]
    assert found["rows"][0]["quantities"]["tokens_per_s"] == dict.fromkeys(BOUNDED)
    assert found["rows"][1]["quantities"]["tokens_per_s"]["value"] > 0
    assert found["rows"][0]["error"].startswith("workload.batch_size")
    assert found["methods"] == ["exact"]


def test_a_failing_point_is_reported_and_not_fatal_but_nothing_at_all_is(toy_file: str) -> None:
    result = run("sweep", toy_file, "--over", "batch_size=0,2")
    assert "1 of 2 rows have no answer" in result.stderr
    assert "1 x workload.batch_size" in result.stderr
    assert "2 of 2 rows" in run("sweep", toy_file, "--over", "batch_size=0,-1", code=EXIT_BAD_INPUT).stderr


def test_a_dry_run_says_what_would_be_computed_and_computes_nothing(toy_file: str, tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    args = (
        "sweep",
        toy_file,
        "--over",
        "batch_size=1:64:2x",
        "--over",
        "run.seed=1:3",
        "--out",
        str(out),
        "--dry-run",
    )
    assert "21 points by exact: 21 rows" in run(*args).stdout
    assert document(*args)["points"] == 21
    assert not out.exists()


def test_the_bare_sweep_draws_the_default_pair_and_says_what_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run("sweep").stdout
    assert "Llama-3.1-70B / Llama-3.2-1B: partly assumed" in text
    assert "partly extrapolated (batch size" in text
    for head in ("lookahead", "batch size", " AR ", " SD ", "SSD, fan-out per position 3"):
        assert head in text
    assert (tmp_path / "results" / "sweep.png").stat().st_size > 10_000


# simulate


def test_simulate_writes_tables_trace_and_timeline_and_prints_percentiles(toy_file: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    extras = ("--trace", str(out / "trace.json"), "--timeline", str(out / "timeline.png"))
    result = run("simulate", toy_file, *QUICK_SIM, "--out", str(out), "--format", "csv", *extras)
    assert "p99" in result.stdout
    assert len(pd.read_csv(out / "requests.csv")) == 30
    assert json.loads((out / "about.json").read_text())["seed"] == 0
    assert json.loads((out / "trace.json").read_text())
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_simulate_gives_the_same_means_whatever_it_keeps(toy_file: str) -> None:
    kept = [document("simulate", toy_file, *QUICK_SIM, "--sink", sink)["quantities"] for sink in ("all", "aggregate")]
    for name in ("tokens_per_s", "cache_hit_rate", "mean_acceptance_length"):
        assert kept[0][name]["value"] == pytest.approx(kept[1][name]["value"])
        assert kept[0][name]["low"] < kept[0][name]["value"] < kept[0][name]["high"]


def test_the_same_seed_gives_the_same_run_and_another_one_another(toy_file: str) -> None:
    first, again, other = (
        document("simulate", toy_file, *QUICK_SIM, "--seed", seed)["quantities"]["tokens_per_s"]["value"]
        for seed in ("1", "1", "2")
    )
    assert first == again != other


# catalog


def test_the_catalog_lists_its_profiles_and_marks_the_default() -> None:
    assert "llama-3.1-70b (default)" in run("catalog", "list").stdout
    found = document("catalog", "list")
    assert found["default"] in {profile["name"] for profile in found["profiles"]}


def test_the_catalog_shows_where_each_number_comes_from() -> None:
    text = run("catalog", "show", "llama-3.1-70b").stdout
    for expected in ("costs.host.seconds", "assumed", "fitted", "published", "calibrated range: max_batch_size 1"):
        assert expected in text
    profile = document("catalog", "show", "llama-3.1-70b")["profile"]
    assert profile["provenance"]["costs.host.seconds"]["kind"] == "assumed"
