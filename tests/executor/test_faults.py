"""Whatever dies or is wrong: no token is lost, one message says what happened, no process outlives the run."""

from __future__ import annotations

import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from processes import becomes_true, is_alive

pytest.importorskip("torch")

from random_pair import write_random_pair

from executor.__main__ import EXIT_BAD_INPUT, EXIT_BROKEN, EXIT_INTERRUPTED, main
from executor.config import EngineConfig, Request
from executor.engine import Engine, Generation
from executor.launch import SpeculatorProcess
from executor.placement import allowed_cores
from executor.roles import ModelPair
from executor.session import Arrangement, Session, open_engine
from executor.transport import Transport
from ssdsim.records import Source
from ssdsim.scenario import Drafting, Mode

pytestmark = pytest.mark.serial

REQUESTS = [Request(prompt=[5, 7, 11 + i], max_tokens=40) for i in range(3)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    target, draft = write_random_pair(tmp_path_factory.mktemp("pair"))
    return ModelPair(target=str(target), draft=str(draft))


@pytest.fixture(autouse=True)
def _nothing_outlives_the_test() -> Iterator[None]:
    yield
    assert becomes_true(lambda: not [c for c in psutil.Process().children() if is_alive(c.pid)])


def config(mode: Mode) -> EngineConfig:
    return EngineConfig(
        mode=mode,
        batch_size=2,
        max_context_tokens=50,
        vocab_size=96,
        drafting=Drafting(num_speculative_tokens=3),
    )


@pytest.fixture(scope="module")
def plain(pair: ModelPair) -> list[tuple[int, ...]]:
    """What the target alone writes."""
    with open_engine(config(Mode.AR), pair) as session:
        return tokens_of(session.engine.generate(REQUESTS))


def tokens_of(generation: Generation) -> list[tuple[int, ...]]:
    return [output.tokens for output in generation.outputs]


def sources_of(generation: Generation) -> Any:
    """The source of every row's speculation, by round."""
    columns = generation.records.outcomes.columns()
    return columns["source"][np.argsort(columns["round"], kind="stable")]


def at_round(engine: Engine, actions: dict[int, Callable[[], object]]) -> None:
    """Let the engine do something before a round, counted from 0."""
    step, count = engine.step, iter(range(1_000_000))

    def acting_step() -> None:
        actions.get(next(count), lambda: None)()
        step()

    engine.step = acting_step  # type: ignore[method-assign]


def speculator_of(session: Session) -> SpeculatorProcess:
    assert session.speculator is not None
    return session.speculator


def kill(session: Session) -> None:
    os.kill(speculator_of(session).pid, signal.SIGKILL)


@pytest.mark.parametrize("killed_at", [0, 5])
def test_without_its_speculator_the_engine_writes_the_same_tokens_one_by_one(
    pair: ModelPair, plain: list[tuple[int, ...]], killed_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(config(Mode.SSD), pair) as session:
        at_round(session.engine, {killed_at: lambda: kill(session)})
        with caplog.at_level(logging.WARNING):
            generation = session.engine.generate(REQUESTS)
        again = session.engine.generate(REQUESTS)
    assert tokens_of(generation) == plain
    assert tokens_of(again) == plain
    assert sources_of(generation)[-1] == Source.AR
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "was killed by SIGKILL; going on without it" in warnings[0]


def test_a_speculator_that_hangs_and_is_then_killed_costs_no_token(
    pair: ModelPair, plain: list[tuple[int, ...]]
) -> None:
    with open_engine(config(Mode.SSD), pair) as session:
        killer = threading.Timer(0.5, lambda: kill(session))

        def stop_then_kill() -> None:
            os.kill(speculator_of(session).pid, signal.SIGSTOP)
            killer.start()

        at_round(session.engine, {4: stop_then_kill})
        assert tokens_of(session.engine.generate(REQUESTS)) == plain
        killer.join()


@pytest.mark.parametrize("transport", [Transport.SHM, Transport.PIPE])
def test_a_speculator_that_lives_but_does_not_answer_is_given_up_and_ended(
    pair: ModelPair, plain: list[tuple[int, ...]], transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    arrangement = Arrangement(transport=transport, patience_s=0.3)
    with open_engine(config(Mode.SSD), pair, arrangement) as session:
        pid = speculator_of(session).pid
        at_round(session.engine, {4: lambda: os.kill(pid, signal.SIGSTOP)})
        assert tokens_of(session.engine.generate(REQUESTS)) == plain
        assert not is_alive(pid)
    assert [record.getMessage() for record in caplog.records] == [
        f"speculator: its process {pid} has not answered for 0.3 s; going on without it"
    ]


def test_a_successor_takes_in_the_running_requests_with_what_they_have_written(
    pair: ModelPair, plain: list[tuple[int, ...]]
) -> None:
    with open_engine(config(Mode.SSD), pair, Arrangement(replace_lost=True)) as session:
        speculator = speculator_of(session)
        # Waiting for the successor stands for the time that it takes to load.
        actions = {3: lambda: kill(session), 5: speculator.wait_until_ready}
        at_round(session.engine, actions)
        generation = session.engine.generate(REQUESTS)
        assert speculator.num_started == 2
    sources = sources_of(generation)
    alone = np.flatnonzero(sources == Source.AR)
    assert tokens_of(generation) == plain
    assert len(alone)
    assert sources[alone[-1] + 1] == Source.FIRST  # re-admitted, drafted like a new request
    assert (sources[alone[-1] + 1 :] == Source.HIT).any()


def test_a_successor_that_cannot_start_leaves_the_engine_alone(
    pair: ModelPair, plain: list[tuple[int, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(config(Mode.SSD), pair, Arrangement(replace_lost=True)) as session:
        speculator = speculator_of(session)

        def spoil_and_kill() -> None:
            speculator.entry = "executor.no_such_module:prepare"
            kill(session)

        ended = partial(becomes_true, lambda: not is_alive(speculator.pid), within_s=60)
        at_round(session.engine, {2: spoil_and_kill, 4: ended})
        assert tokens_of(session.engine.generate(REQUESTS)) == plain
    assert any("no_such_module" in record.getMessage() for record in caplog.records)


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


LONG = ("--max-tokens", "400", "--transport", "pipe")
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


LongRun = tuple[subprocess.Popen[str], psutil.Process]


@pytest.fixture
def long_run(pair: ModelPair) -> Iterator[LongRun]:
    """`python -m executor` that will run for a long time, and its speculator's process."""
    prompts = [argument for i in range(400) for argument in ("--prompt-ids", f"5,7,{i % 90}")]
    command = [sys.executable, "-m", "executor", *executor(pair, "ssd", *prompts, *LONG)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parent = psutil.Process(running.pid)
    assert becomes_true(lambda: bool(parent.children()), within_s=120)
    yield running, parent.children()[0]
    running.kill()
    running.communicate()


def await_generation(run: LongRun) -> None:
    """Until the slower role has been waited for many times: over a pipe a wait is a switch to another process."""

    def most_switches() -> int:
        return max(process.num_ctx_switches().voluntary for process in (psutil.Process(run[0].pid), run[1]))

    assert becomes_true(lambda: most_switches() > 1000, within_s=120)


@pytest.mark.parametrize("generating", [False, True], ids=["loading", "generating"])
def test_ctrl_c_ends_both_processes_with_one_message(long_run: LongRun, generating: bool) -> None:
    running, speculator = long_run
    if generating:
        await_generation(long_run)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == EXIT_INTERRUPTED, err
    assert err == "error: interrupted\n"
    assert not out
    assert becomes_true(lambda: not is_alive(speculator.pid))


def test_a_killed_verifier_takes_its_speculator_with_it(long_run: LongRun) -> None:
    running, speculator = long_run
    await_generation(long_run)
    running.kill()
    running.communicate(timeout=20)
    assert becomes_true(lambda: not is_alive(speculator.pid))


def test_two_engines_at_once_write_what_each_writes_alone(pair: ModelPair, plain: list[tuple[int, ...]]) -> None:
    with open_engine(config(Mode.SSD), pair) as one, open_engine(config(Mode.SSD), pair) as other:
        at_round(one.engine, {4: lambda: generations.append(other.engine.generate(REQUESTS))})
        generations: list[Generation] = []
        generations.append(one.engine.generate(REQUESTS))
        assert [tokens_of(generation) for generation in generations] == [plain, plain]
        kill(one)
        assert tokens_of(other.engine.generate(REQUESTS)) == plain


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
