"""Two target ranks and a draft rank over gloo write what one process writes; 4+1 over NCCL is the same code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")

from processes import becomes_true, is_alive
from random_pair import VOCAB_SIZE, write_random_pair

from executor.config import EngineConfig, Request
from executor.engine import Generation
from executor.roles import ModelPair
from executor.session import Arrangement, open_engine
from executor.transport import Transport
from ssdsim.calibration.profile_from_records import calibrate
from ssdsim.calibration.runs import read_runs
from ssdsim.scenario import Drafting, Mode

pytestmark = pytest.mark.serial

PROMPTS = [(5, 7, 11), (40,), tuple(range(2, 32)), (9, 9, 9, 9)]
NUM_TOKENS = 32
LOOKAHEAD = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    target, draft = write_random_pair(tmp_path_factory.mktemp("pair"))
    return ModelPair(target=str(target), draft=str(draft))


def torchrun(pair: ModelPair, *more: str) -> subprocess.CompletedProcess[str]:
    """Three ranks of `python -m executor`, to their end."""
    return subprocess.run(command_of(pair, *more), capture_output=True, text=True, timeout=300)


def command_of(pair: ModelPair, *more: str, num_tokens: int = NUM_TOKENS) -> list[str]:
    """The rendezvous picks a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["-m", "executor", "--target", pair.target, "--draft", str(pair.draft)]
    command += [argument for prompt in PROMPTS for argument in ("--prompt-ids", ",".join(map(str, prompt)))]
    command += ["--max-tokens", str(num_tokens), "--ignore-eos", *more]
    return [*command, "--set", f"num_speculative_tokens={LOOKAHEAD}", "--batch-size", "2"]


def in_one_process(pair: ModelPair, mode: Mode, temperature: float = 0.0) -> Generation:
    requests = [
        Request(prompt=p, max_tokens=NUM_TOKENS, temperature=temperature, seed=i, ignore_eos=True)
        for i, p in enumerate(PROMPTS)
    ]
    config = EngineConfig(
        mode=mode,
        batch_size=2,
        max_context_tokens=max(map(len, PROMPTS)) + NUM_TOKENS,
        vocab_size=VOCAB_SIZE,
        drafting=Drafting(num_speculative_tokens=LOOKAHEAD),
        sampled=temperature > 0,
    )
    with open_engine(config, pair, Arrangement(transport=Transport.LOCAL)) as session:
        return session.engine.generate(requests)


def tokens_of(outputs: Sequence[dict[str, object]]) -> list[object]:
    return [output["tokens"] for output in outputs]


def test_a_profile_is_calibrated_from_what_the_ranks_recorded(pair: ModelPair, tmp_path: Path) -> None:
    for mode in Mode:
        done = torchrun(pair, "--mode", mode.value, "--records", str(tmp_path / mode.value))
        assert done.returncode == 0, done.stderr
    runs = read_runs([tmp_path])
    assert {run.mode for run in runs} == set(Mode)
    assert len({run.request_set for run in runs}) == 1
    for run in runs:
        assert run.records.requests.columns()["request_id"].tolist() == list(range(len(PROMPTS)))
    profile = calibrate(runs, name="ranks").profile
    assert (profile.target, profile.draft) == ("target", "draft")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_three_ranks_write_what_one_process_writes(pair: ModelPair, temperature: float) -> None:
    """At a temperature the draws belong to positions, so the same tokens come out; the logits travel as well."""
    done = torchrun(pair, "--mode", "ssd", "--temperature", str(temperature))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    expected = in_one_process(pair, Mode.SSD, temperature).outputs
    assert tokens_of(document["outputs"]) == [list(output.tokens) for output in expected]
    accepted = [output["accepted_lengths"] for output in document["outputs"]]
    assert accepted == [list(output.accepted_lengths) for output in expected]
    assert document["about"]["target_tp"] == 2
    assert document["about"]["transport"] == "distributed (gloo)"


def test_the_draft_s_rank_may_have_nothing_to_do(pair: ModelPair) -> None:
    done = torchrun(pair, "--mode", "ar")
    assert done.returncode == 0, done.stderr
    expected = in_one_process(pair, Mode.AR).outputs
    assert tokens_of(json.loads(done.stdout)["outputs"]) == [list(output.tokens) for output in expected]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--draft", "{broken}"], "cannot be read as safetensors"),
        (["--context", "20"], "max_context_tokens: request 0 needs"),
        (["--prompt-ids", "five"], "--prompt-ids five"),
        (["--device", "cpu", "--no-pin"], "--device, --no-pin: not used under torchrun"),
    ],
    ids=[
        "one rank fails to load",
        "one rank refuses the requests",
        "all ranks refuse the command",
        "options of one machine",
    ],
)
def test_where_one_rank_cannot_go_on_all_end_and_one_says_why(
    pair: ModelPair, tmp_path: Path, more: list[str], words: str
) -> None:
    config = Path(str(pair.draft), "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    done = torchrun(pair, "--mode", "ssd", *(part.format(broken=tmp_path) for part in more))
    assert done.returncode != 0
    assert not done.stdout
    messages = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(messages) == 1, done.stderr
    assert words in messages[0]
    assert "Traceback (most recent call last)" not in done.stderr.partition("error: ")[0]


@pytest.mark.parametrize("dead_rank", [0, 1, 2], ids=["engine", "share of the target", "draft"])
def test_a_dead_rank_ends_the_run_and_leaves_no_process(pair: ModelPair, dead_rank: int) -> None:
    """torchrun ends the others."""
    with long_run(pair) as (running, ranks):
        ranks[dead_rank].send_signal(signal.SIGKILL)
        out, err = running.communicate(timeout=120)
    assert running.returncode != 0
    assert not out
    assert "SIGKILL" in err or "Signal 9" in err, err
    assert becomes_true(lambda: not any(is_alive(rank.pid) for rank in ranks.values()))


def test_ranks_do_not_outlive_a_killed_torchrun(pair: ModelPair) -> None:
    with long_run(pair) as (running, ranks):
        running.kill()
        running.communicate(timeout=60)  # the ranks hold its ends of the pipes
    assert becomes_true(lambda: not any(is_alive(rank.pid) for rank in ranks.values()))


@contextmanager
def long_run(pair: ModelPair) -> Iterator[tuple[subprocess.Popen[str], dict[int, psutil.Process]]]:
    """Three ranks that are generating and will for a long time, and their processes by rank."""
    long = command_of(pair, "--mode", "ssd", num_tokens=400)
    long += [argument for i in range(400) for argument in ("--prompt-ids", f"5,7,{i % 90}")]
    running = subprocess.Popen(long, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running, awaited_ranks(running)
    finally:
        running.kill()
        running.communicate()


def awaited_ranks(running: subprocess.Popen[str]) -> dict[int, psutil.Process]:
    """The processes by rank, once rank 0 has waited for the others many times."""
    parent = psutil.Process(running.pid)
    found: dict[int, psutil.Process] = {}

    def are_generating() -> bool:
        for child in parent.children():
            rank = child.environ().get("RANK")  # a process that is just starting has its parent's
            if rank is not None:
                found[int(rank)] = child
        return len(found) == 3 and found[0].num_ctx_switches().voluntary > 3000

    assert becomes_true(are_generating, within_s=120)
    return found
