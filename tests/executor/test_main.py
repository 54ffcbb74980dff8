"""`python -m executor`: what it refuses, in one message and with which exit code; and what its records say."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from random_pair import write_random_pair

from executor.__main__ import EXIT_BAD_INPUT, EXIT_BROKEN, main
from executor.placement import allowed_cores
from executor.roles import ModelPair

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    target, draft = write_random_pair(tmp_path_factory.mktemp("pair"))
    return ModelPair(target=str(target), draft=str(draft))


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "long"])
def test_a_patience_that_is_no_time_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--prompt", "x", "--patience", seconds])
    assert ended.value.code == EXIT_BAD_INPUT
    assert "--patience" in capsys.readouterr().err


def executor(pair: ModelPair, mode: str, *more: str) -> list[str]:
    """Arguments of a run of the command line."""
    models = ["--target", pair.target, "--draft", str(pair.draft)]
    return [*models, "--mode", mode, "--set", "num_speculative_tokens=1", *more]


SHORT = ("--prompt-ids", "5,7,11", "--max-tokens", "8")


def truncated(pair: ModelPair, folder: Path) -> str:
    """The draft with a weights file of which the last part is missing."""
    weights = Path(str(pair.draft), "model.safetensors").read_bytes()
    (folder / "config.json").write_bytes(Path(str(pair.draft), "config.json").read_bytes())
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    return str(folder)


def garbled(pair: ModelPair, folder: Path) -> str:
    """The draft with a weights file whose header says that it is longer than the file."""
    truncated(pair, folder)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    return str(folder)


def other_vocabulary(pair: ModelPair, folder: Path) -> str:
    """A draft of another size of vocabulary."""
    return str(write_random_pair(folder, vocab_size=90)[1])


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (truncated, "cannot be read as safetensors"),
        (garbled, "cannot be read as safetensors"),
        (other_vocabulary, "its vocabulary has 90 entries, the target's 96"),
        (lambda pair, folder: str(folder / "nothing"), "no such directory"),
    ],
    ids=["truncated", "garbled", "other vocabulary", "missing"],
)
def test_a_draft_that_cannot_be_used_is_one_message_and_exit_code_2(
    pair: ModelPair,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    draft: Callable[[ModelPair, Path], str],
    words: str,
) -> None:
    source = draft(pair, tmp_path)
    capfd.readouterr()
    assert main([*executor(pair, "ssd", *SHORT), "--draft", source]) == EXIT_BAD_INPUT
    assert_one_message(capfd, words)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ([*SHORT, "--context", "10"], EXIT_BAD_INPUT, "max_context_tokens"),
        ([*SHORT, "--context", "100000"], EXIT_BAD_INPUT, "max_context_tokens"),
        (["--prompt-ids", "5,96"], EXIT_BAD_INPUT, "token ids from 0 to 95; got 96"),
        (["--prompt-ids=5,-2"], EXIT_BAD_INPUT, "token ids from 0 to 95; got -2"),
        (["--prompt-ids", "five"], EXIT_BAD_INPUT, "--prompt-ids five"),
        (["--prompts", "/no/such/file"], EXIT_BAD_INPUT, "/no/such/file"),
        (["--prompt", "\udcff"], EXIT_BAD_INPUT, "--prompt: holds '\\udcff'"),
        ([*SHORT, "--batch-size", "0"], EXIT_BAD_INPUT, "batch_size"),
        ([*SHORT, "--set", "num_speculative_tokens=-1"], EXIT_BAD_INPUT, "drafting.num_speculative_tokens"),
        ([*SHORT, "--set", "fan_out=3", "--set", "fan_out.budget=3"], EXIT_BAD_INPUT, "fan_out"),
        (
            [*SHORT, "--context", "500", "--batch-size", "1000000"],
            EXIT_BROKEN,
            "batch_size: the cache of 1000000",
        ),
        ([*SHORT, "--threads", "0"], EXIT_BAD_INPUT, "num_threads"),
        ([*SHORT, "--device", "nowhere"], EXIT_BAD_INPUT, "device: 'nowhere' cannot be used here"),
        ([*SHORT, "--temperature", "1e-38"], EXIT_BAD_INPUT, "temperature: 0 or a finite number of at least 1e-06"),
        ([*SHORT, "--prompt", "x"], EXIT_BAD_INPUT, "--prompt, --prompt-ids exclude each other"),
        ([*SHORT, "--prompts", "/no/such/file"], EXIT_BAD_INPUT, "--prompt-ids, --prompts exclude each other"),
        ([*SHORT, "--pair", "tiny"], EXIT_BAD_INPUT, "--pair and --target exclude each other"),
        ([*SHORT, "--records", "/proc/nowhere"], EXIT_BAD_INPUT, "records: cannot make /proc/nowhere"),
        ([*SHORT, "--records", "/proc/self"], EXIT_BAD_INPUT, "records: /proc/self is not empty"),
    ],
    ids=[
        "context too small",
        "context too long",
        "token",
        "negative token",
        "no token",
        "no file",
        "no text",
        "no batch",
        "lookahead",
        "two values",
        "batch too large",
        "no thread",
        "no device",
        "temperature too small",
        "two sources of prompts",
        "ids and a file of prompts",
        "two pairs",
        "records cannot be written",
        "records would be overwritten",
    ],
)
def test_a_request_that_cannot_be_met_is_one_message_and_an_exit_code(
    pair: ModelPair, capfd: pytest.CaptureFixture[str], more: list[str], code: int, words: str
) -> None:
    assert main(executor(pair, "ar", *more)) == code
    assert_one_message(capfd, words)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["fallback.kind=ngram", "fallback.num_tokens=20"], "num_tokens"),
        (["fan_out.policy=explicit", "fan_out.values=[4,3,9]"], "fan_out"),
        (["fan_out.policy=explicit", "fan_out.values=[4]"], "fan_out"),
        (["fallback.kind=none", "redraft_hits=true"], "redraft_hits"),
    ],
    ids=["too many looked up", "vector too long", "vector too short", "nothing redrafts"],
)
def test_a_drafting_that_contradicts_itself_is_refused(
    pair: ModelPair, capfd: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    settings = [argument for setting in more for argument in ("--set", setting)]
    assert main(executor(pair, "ssd", *SHORT, *settings)) == EXIT_BAD_INPUT
    assert_one_message(capfd, words)


def test_a_text_for_a_model_without_a_tokenizer_is_refused(
    pair: ModelPair, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--target", f"dummy:{pair.target}", "--mode", "ar", "--prompt", "x"]) == EXIT_BAD_INPUT
    assert_one_message(capfd, "give token ids with --prompt-ids")


def assert_one_message(capfd: pytest.CaptureFixture[str], words: str) -> None:
    out, err = capfd.readouterr()
    lines = err.strip().splitlines()
    assert not out
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert words in lines[0]


def test_two_programs_at_once_write_what_each_writes_alone(pair: ModelPair) -> None:
    command = [sys.executable, "-m", "executor", *executor(pair, "ssd", *SHORT)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    documents = [json.loads(program.communicate(timeout=120)[0]) for program in both]
    assert documents[0]["outputs"][0]["tokens"] == documents[1]["outputs"][0]["tokens"]
    pinned = [d["about"]["verifier_placement"] for d in documents]
    assert not pinned[0].startswith("cores") or pinned[0] != pinned[1]


def test_records_say_what_was_asked_of_which_machine(
    pair: ModelPair, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "records"
    assert main([*executor(pair, "ssd", *SHORT), "--seed", "7", "--records", str(out)]) == 0
    assert json.loads(capfd.readouterr().out)["lost_speculator"] is False
    about = json.loads((out / "about.json").read_text())
    assert about["mode"] == "ssd"
    assert (about["target"], about["draft"]) == ("target", "draft"), "no path of this machine"
    assert about["seed"] == 7
    assert about["drafting"]["num_speculative_tokens"] == 1
    assert about["machine"]["num_allowed_cores"] == len(allowed_cores())
    assert about["versions"].keys() >= {"python", "torch", "ssdsim"}
