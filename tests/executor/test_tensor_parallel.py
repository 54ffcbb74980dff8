"""A target sharded over some ranks computes what the whole one computes, and the draft's rank has no part in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from executor.tensor_parallel import parallel_plan, sharded_over  # noqa: E402
from ssdsim.errors import DomainError, InputError  # noqa: E402

pytestmark = pytest.mark.serial

ARCHITECTURES = ["LlamaConfig", "Qwen2Config", "Qwen3Config"]
"""Together: biases on the projections, norms of queries and keys, neither."""


def small_config(architecture: str, **sizes: int) -> Any:
    return getattr(transformers, architecture)(
        vocab_size=90,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        **{"intermediate_size": 96, "num_key_value_heads": 2, **sizes},
    )


def save_random_model(config: Any, folder: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # Biases and norms too: as initialised they would hide an error.
        torch.nn.init.normal_(parameter, float(parameter.ndim == 1), 0.15)
    model.save_pretrained(folder)


def test_two_ranks_of_three_give_the_logits_of_one_through_prompts_steps_and_rollbacks(tmp_path: Path) -> None:
    for architecture in ARCHITECTURES:
        save_random_model(small_config(architecture), tmp_path / architecture)
    program = str(Path(__file__).with_name("tensor_parallel_program.py"))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    sources = [str(tmp_path / architecture) for architecture in ARCHITECTURES]
    done = subprocess.run(
        [*run, program, str(tmp_path / "out.npz"), *sources], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result = np.load(tmp_path / "out.npz")
    for name in ARCHITECTURES:
        assert result[f"{name}_heads"].tolist() == [2, 4]
        # Logits are of order 4; summing halves in another order moves an fp32 sum by some last places.
        assert np.abs(result[f"{name}_sharded"] - result[f"{name}_whole"]).max() < 1e-4


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_key_value_heads": 1}, "target_tp: a divisor of the model's 1 key-value heads"),
        ({"intermediate_size": 97}, "target_tp: a divisor of the model's 97 intermediate_size"),
    ],
)
def test_a_model_that_cannot_be_divided_evenly_is_refused(sizes: dict[str, int], words: str) -> None:
    two_ranks: Any = SimpleNamespace(size=lambda: 2)
    with pytest.raises(DomainError, match=words):
        sharded_over(two_ranks)(small_config("LlamaConfig", **sizes), {})


def test_a_plan_that_the_lean_forward_does_not_run_is_refused() -> None:
    config = SimpleNamespace(model_type="odd", base_model_tp_plan={"layers.*.moe": "grouped_gemm"})
    with pytest.raises(InputError, match="'odd' asks for grouped_gemm"):
        parallel_plan(config)
    with pytest.raises(InputError, match="no tensor-parallel plan"):
        parallel_plan(SimpleNamespace(model_type="bare"))
