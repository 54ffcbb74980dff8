"""Two target ranks and a draft rank over gloo write what one process writes; 4+1 over NCCL is the same code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from random_pair import VOCAB_SIZE, write_random_pair

from executor.config import EngineConfig, Request
from executor.engine import Generation
from executor.roles import ModelPair
from executor.session import Arrangement, open_engine
from executor.transport import Transport
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
    """Three ranks of `python -m executor`; the rendezvous picks a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    command += ["-m", "executor", "--target", pair.target, "--draft", str(pair.draft)]
    command += [argument for prompt in PROMPTS for argument in ("--prompt-ids", ",".join(map(str, prompt)))]
    command += ["--max-tokens", str(NUM_TOKENS), "--ignore-eos", *more]
    command += ["--set", f"num_speculative_tokens={LOOKAHEAD}", "--batch-size", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


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
    ],
    ids=["one rank fails to load", "one rank refuses the requests", "all ranks refuse the command"],
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
