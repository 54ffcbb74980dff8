"""The study of a device: on a CPU with small shapes it runs as it would on a GPU with large ones."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from dummy_pair import write_dummy_pair

from experiments import device
from experiments.device import SHAPES, Forward, split


@pytest.mark.parametrize(("name", "billions"), [("llama-3.1-8b", 8.03), ("llama-3.2-1b", 1.236)])
def test_the_shapes_have_the_published_numbers_of_weights(name: str, billions: float) -> None:
    shape = json.loads((SHAPES / f"{name}.json").read_text())
    hidden, heads, head_dim = shape["hidden_size"], shape["num_attention_heads"], shape["head_dim"]
    attention = 2 * hidden * heads * head_dim + 2 * hidden * shape["num_key_value_heads"] * head_dim
    layers = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    embeddings = (1 if shape["tie_word_embeddings"] else 2) * shape["vocab_size"] * hidden
    assert (layers + embeddings) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_line_over_the_context_tells_attention_from_the_rest() -> None:
    forwards = [
        Forward("target", batch, 4, context, 3e-3 + 2e-7 * batch * context, 1.0)
        for batch in (1, 8)
        for context in (100, 1000, 4000)
    ]
    for part in split(forwards):
        assert part.dense_s == pytest.approx(3e-3)
        assert part.attention_s_per_token == pytest.approx(2e-7)


@pytest.mark.serial
def test_the_study_times_forwards_and_runs_all_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    target, draft = write_dummy_pair(tmp_path)
    out = tmp_path / "out"
    grid = ["--batches", "1,2", "--widths", "1,5", "--contexts", "16,64", "--num-prompts", "4", "--max-tokens", "12"]
    models = ["--target", target, "--draft", draft]
    monkeypatch.setattr(sys, "argv", ["device", "--out", str(out), *models, *grid])
    device.main()
    with (out / "forwards.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * 2
    assert all(0 < float(row["seconds"]) <= float(row["slowest_s"]) for row in rows)
    summary = json.loads((out / "summary.json").read_text())
    assert [(row["batch"], row["mode"]) for row in summary["rows"]] == [
        (batch, mode) for batch in (1, 2) for mode in ("ar", "sd", "ssd")
    ]
    assert all(row["tokens/s"] > 0 for row in summary["rows"])
