"""`ssdsim measure` as a user meets it: one document, one message, exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from processes import becomes_true, start_python
from typer.testing import CliRunner

from ssdsim.cli.app import app
from ssdsim.cli.measure import TokenProgress

random_pair = pytest.importorskip("random_pair", reason="needs torch")

pytestmark = pytest.mark.serial

PROGRAM = "import sys; from ssdsim.cli import main; sys.argv[1:] = {!r}; main()"
QUICK = ("--mode", "ar,ssd", "-K", "2", "--fan-out", "2", "--num-prompts", "2", "--max-tokens", "6")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, draft = random_pair.write_random_pair(tmp_path_factory.mktemp("pair"))
    return str(target), str(draft)


def measure(*arguments: str, code: int = 0) -> Any:
    """The verb in this process."""
    result = CliRunner().invoke(app, ["measure", *arguments])
    assert result.exit_code == code, result.output
    return result


def refused(*arguments: str) -> str:
    """The message of a call that must be refused: one line on stderr, nothing on stdout, exit code 2."""
    result = measure(*arguments, code=2)
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return str(result.stderr)


@pytest.fixture(scope="module")
def measured(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "out"
    """A measurement made by the command in a process of its own, and the document that it printed."""
    arguments = ("measure", *QUICK, "--target", pair[0], "--draft", pair[1], "--out", str(out), "--json", "--quiet")
    with start_python(PROGRAM.format(arguments)) as process:
        stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert stderr == ""
    (out / "document.json").write_text(stdout)
    return out


def test_stdout_is_one_json_document(measured: Path) -> None:
    document = json.loads((measured / "document.json").read_text())
    assert [combination["name"] for combination in document["combinations"]] == ["ar-b1-T0", "ssd-K2-F2-jit-b1-T0"]
    ssd = document["combinations"][1]
    assert ssd["drafting"]["num_speculative_tokens"] == 2
    quantities = ssd["quantities"]
    assert {"tokens_per_s", "speedup_over_ar", "cache_hit_rate", "acceptance_prob_1", "round_s"} <= quantities.keys()
    assert quantities["tokens_per_s"].keys() == {"value", "low", "high"}


def test_a_finished_measurement_is_shown_again_without_running(pair: tuple[str, str], measured: Path) -> None:
    text = measure("--target", pair[0], "--draft", pair[1], *QUICK, "--out", str(measured), "--resume").stdout
    for word in ("tokens/s", "x AR", "acceptance per position", "verify", "speculator waits"):
        assert word in text


def test_an_interrupted_measurement_keeps_its_finished_runs(pair: tuple[str, str], tmp_path: Path) -> None:
    """Ctrl-C during the second run: exit code 130, the first run is whole, and the rest can be resumed."""
    options = ("--mode", "ar,sd", "-K", "2", "--num-prompts", "8", "--max-tokens", "200", "--ignore-eos")
    out = tmp_path / "out"
    arguments = ("measure", "--target", pair[0], "--draft", pair[1], *options, "--out", str(out))
    process = start_python(PROGRAM.format(arguments))
    first = out / "runs" / "ar-b1-T0.r0"
    assert becomes_true(lambda: first.is_dir() or process.poll() is not None, within_s=200)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted" in stderr
    assert {path.name for path in (out / "runs").iterdir()} == {first.name}


FORCED = ("--num-prompts", "4", "--max-tokens", "8", "-K", "2", "--temperature", "1", "--downweight", "0.5")


def forced(pair: tuple[str, str], out: Path) -> tuple[str, ...]:
    """The arguments of a teacher-forced measurement into `out`."""
    return ("--teacher-forced", "--target", pair[0], "--draft", pair[1], *FORCED, "--out", str(out))


@pytest.fixture(scope="module")
def observed(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Observations made by the command with two threads, and the document that it printed."""
    out = tmp_path_factory.mktemp("forced") / "out"
    stdout = measure(*forced(pair, out), "--threads", "2", "--json").stdout
    (out / "document.json").write_text(stdout)
    return out


@pytest.fixture
def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be computed: the target's first text would fail."""

    def fail(*_: object) -> None:
        raise AssertionError("a text is written")

    monkeypatch.setattr("executor.teacher_forced.write_texts", fail)


def test_teacher_forced_prints_curves_without_an_engine(observed: Path) -> None:
    estimates = json.loads((observed / "document.json").read_text())["estimates"]
    kinds = {(estimate["saguaro_downweight"], estimate["prompt_kind"]) for estimate in estimates}
    assert (1.0, None) in kinds
    assert (0.5, "code") in kinds
    whole = estimates[0]
    assert 0 < whole["acceptance"]["value"] < 1
    hits = [quantity["value"] for quantity in whole["hit_curves"]["rejection"]["hit_probs"]]
    assert hits == sorted(hits)
    assert len(hits) == 32


def test_threads_reach_the_observations(observed: Path) -> None:
    assert json.loads((observed / "about.json").read_text())["num_threads"] == 2


@pytest.mark.usefixtures("no_texts")
def test_finished_observations_are_shown_again(pair: tuple[str, str], observed: Path) -> None:
    arguments = forced(pair, observed)
    assert "add --resume to show them again" in refused(*arguments)
    assert measure(*arguments, "--resume", "--json").stdout == (observed / "document.json").read_text()


@pytest.mark.usefixtures("no_texts")
def test_other_observations_are_not_shown_as_these(pair: tuple[str, str], observed: Path) -> None:
    message = refused(*forced(pair, observed), "--resume", "--max-tokens", "9", "--temperature", "0.5")
    assert "holds observations with other conditions, max_tokens; choose another folder" in message


@pytest.mark.usefixtures("no_texts")
@pytest.mark.parametrize("below", [".", "below"])
def test_a_folder_that_cannot_be_made_is_refused_at_once(pair: tuple[str, str], tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    message = refused(*forced(pair, tmp_path / "file" / below))
    assert "cannot be made a folder" in message


@pytest.mark.usefixtures("no_texts")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fan-out", "300"), "fan_out: must be at most max_fan_out, which is 32; got 300"),
        (("--max-fan-out", "96"), "max_fan_out: must be below the draft's 96 tokens; got 96"),
        (("--max-fan-out", "0"), "max_fan_out: an integer of at least 1; got 0"),
        (("--seed", "-1"), "--seed: must be at least 0; got -1"),
        (("--threads", "0"), "--threads: must be at least 1; got 0"),
        (("--repeat", "1"), "--repeat: not used with --teacher-forced, which makes no runs; leave it out"),
    ],
)
def test_bad_options_are_refused_before_texts_are_written(
    pair: tuple[str, str], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in refused(*forced(pair, tmp_path / "out"), *options)


def test_options_that_teacher_forced_does_not_use_are_named_together(pair: tuple[str, str], tmp_path: Path) -> None:
    of_runs = ("--mode", "nonsense", "--fan-out-on-miss", "x", "--fallback", "nonsense", "--batch", "zero")
    others = ("--set", "x", "--synthetic", "nofile", "--repeat", "9", "--interleave", "--anchor-every", "2")
    message = refused(*forced(pair, tmp_path / "out"), *of_runs, *others)
    names = (*of_runs[::2], "--set", "--synthetic", "--repeat", "--interleave", "--anchor-every")
    assert f"error: {', '.join(names)}: not used with --teacher-forced" in message
    assert not (tmp_path / "out").exists()


def test_a_narrow_curve_narrows_the_default_fan_out(pair: tuple[str, str], tmp_path: Path) -> None:
    document = json.loads(measure(*forced(pair, tmp_path / "out"), "--max-fan-out", "2", "--json").stdout)
    assert (document["fan_out"], document["max_fan_out"]) == (2, 2)


@pytest.mark.parametrize("quiet", [False, True])
def test_remarks_are_made_unless_quiet(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    TokenProgress(quiet=quiet).remark("few prompts")
    assert capsys.readouterr().err == ("" if quiet else "note: few prompts\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mode", "ar,xd"), "--mode: must be one of ar, sd, ssd; got 'xd'"),
        (("-K", "0"), "-K: must be an integer of at least 1; got '0'"),
        (("--batch", "1,,2"), "--batch: empty value"),
        (("--temperature", "nan"), "--temperature: must be a finite number of at least 0; got 'nan'"),
        (("--fan-out", "some:3"), "--fan-out: write 3, geometric:3, optimal:3 or an explicit 4+3+3+2"),
        (("-K", "3", "--fan-out", "4+3"), "drafting.fan_out.values: needs 4 entries (K + 1); got 2"),
        (("--fallback", "some"), "--fallback: must be one of jit, none, random, ngram, threshold, auto; got 'some'"),
        (("--fallback", "auto"), "fallback: 'auto' weighs latencies that a profile holds; give one with --profile"),
        (("--profile", "absent"), "absent"),
        (("--fallback", "threshold"), "fallback: 'threshold' needs its number of misses"),
        (("--downweight", "2"), "--downweight: must be a number in [0, 1]; got '2'"),
        (("--set", "workload.batch_size=2"), "--set workload.batch_size: fields of the drafting only"),
        (("--repeat", "0"), "--repeat: must be at least 1; got 0"),
        (("--seed", "-1"), "--seed: must be at least 0; got -1"),
        (("--threads", "0"), "--threads: must be at least 1; got 0"),
        (("--max-fan-out", "8"), "--max-fan-out: used with --teacher-forced only; leave it out"),
        (("--max-tokens", "0"), "max_tokens: an integer of at least 1; got 0"),
        (("--prompts", "absent.jsonl"), "prompts: absent.jsonl cannot be read"),
    ],
)
def test_bad_options_are_one_message(
    pair: tuple[str, str], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    source = ("--target", pair[0], "--draft", pair[1], "--out", str(tmp_path / "out"))
    assert message in refused(*source, *options)
    assert not (tmp_path / "out").exists()


def test_an_unknown_pair_names_the_known_ones(tmp_path: Path) -> None:
    assert "choose one of smollm2, tiny" in refused("--pair", "large", "--out", str(tmp_path / "out"))


def test_a_draft_needs_its_target(pair: tuple[str, str], tmp_path: Path) -> None:
    assert "--draft goes with --target" in refused("--draft", pair[1], "--out", str(tmp_path / "out"))
