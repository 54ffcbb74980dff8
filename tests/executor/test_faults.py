"""Whatever dies or is wrong: no token is lost, one message says what happened, no process outlives the run."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from processes import becomes_true, is_alive

pytest.importorskip("torch")

from random_pair import write_random_pair

from executor.__main__ import EXIT_INTERRUPTED
from executor.config import EngineConfig, Request
from executor.engine import Engine, Generation
from executor.launch import SpeculatorProcess
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


LongRun = tuple[subprocess.Popen[str], psutil.Process]


@pytest.fixture
def long_run(pair: ModelPair) -> Iterator[LongRun]:
    """`python -m executor` that will run for a long time, and its speculator's process."""
    prompts = [argument for i in range(400) for argument in ("--prompt-ids", f"5,7,{i % 90}")]
    command = [sys.executable, "-m", "executor", "--target", pair.target, "--draft", str(pair.draft), *prompts]
    command += ["--set", "num_speculative_tokens=1", "--max-tokens", "400", "--transport", "pipe"]
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
