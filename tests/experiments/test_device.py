"""The study of a device: on a CPU with small shapes it runs as it would on a GPU with large ones."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dummy_pair import write_dummy_pair

from experiments import device, forwards
from experiments.common import start
from experiments.device import SHAPES
from experiments.forwards import Forward, ForwardsFile, Shape, split
from ssdsim.errors import InputError, RunError

FORWARDS = ["--batches", "1,2", "--widths", "1,5", "--contexts", "16,64"]
TEXTS = ["--num-prompts", "4", "--max-tokens", "12"]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pytest.importorskip("torch")
    monkeypatch.setattr(forwards, "REPEATS", 3)
    target, draft = write_dummy_pair(tmp_path)
    return ["--target", target, "--draft", draft]


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Forwards only; the batch sizes of which runs were wanted."""
    asked: list[int] = []
    monkeypatch.setattr(device, "generate", lambda study, batches, findings: asked.extend(batches))
    return asked


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Shape]:
    """The shapes of which a forward was timed."""
    shapes: list[Shape] = []
    real = forwards.time_forward

    def listed(loaded: Any, shape: Shape, study: Any) -> Forward:
        shapes.append(shape)
        return real(loaded, shape, study)

    monkeypatch.setattr(forwards, "time_forward", listed)
    return shapes


def call(monkeypatch: pytest.MonkeyPatch, out: Path, *options: str) -> int:
    """The exit code of the study as `python -m` would start it."""
    monkeypatch.setattr(sys, "argv", ["device", "--out", str(out), *options])
    try:
        start(device.main)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def read_rows(out: Path) -> list[dict[str, str]]:
    with (out / "forwards.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "billions"), [("llama-3.1-8b", 8.03), ("llama-3.2-1b", 1.236)])
def test_the_shapes_have_the_published_numbers_of_weights(name: str, billions: float) -> None:
    shape = json.loads((SHAPES / f"{name}.json").read_text())
    hidden, heads, head_dim = shape["hidden_size"], shape["num_attention_heads"], shape["head_dim"]
    attention = 2 * hidden * heads * head_dim + 2 * hidden * shape["num_key_value_heads"] * head_dim
    layers = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    embeddings = (1 if shape["tie_word_embeddings"] else 2) * shape["vocab_size"] * hidden
    assert (layers + embeddings) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_line_over_the_context_tells_attention_from_the_rest() -> None:
    straight = [
        Forward("target", batch, 4, context, 3e-3 + 2e-7 * batch * context, 1.0)
        for batch in (1, 8)
        for context in (100, 1000, 4000)
    ]
    for part in split(straight):
        assert part.dense_s == pytest.approx(3e-3)
        assert part.attention_s_per_token == pytest.approx(2e-7)


def test_a_shape_of_one_context_has_no_line() -> None:
    lines = split([Forward("target", 1, 1, 16, 1.0, 1.0), *(Forward("target", 2, 1, c, 1.0, 1.0) for c in (16, 64))])
    assert [(line.batch, line.width) for line in lines] == [(2, 1)]


@pytest.mark.serial
def test_the_study_times_forwards_and_runs_all_modes(
    tmp_path: Path, pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert call(monkeypatch, out, *pair, *FORWARDS, *TEXTS) == 0
    rows = read_rows(out)
    assert len(rows) == 2 * 2 * 2 * 2
    assert all(0 < float(row["seconds"]) <= float(row["slowest_s"]) for row in rows)
    summary = json.loads((out / "summary.json").read_text())
    assert [(row["batch"], row["mode"]) for row in summary["rows"]] == [
        (batch, mode) for batch in (1, 2) for mode in ("ar", "sd", "ssd")
    ]
    assert all(row["tokens/s"] > 0 for row in summary["rows"])
    assert len(summary["findings"]["split"]) == 2 * 2 * 2


@pytest.mark.serial
def test_forwards_have_their_provenance_and_parts_on_disk(
    tmp_path: Path, pair: list[str], no_runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert call(monkeypatch, out, *pair, *FORWARDS, *TEXTS) == 0
    about = json.loads((out / "about.json").read_text())
    assert about["device"] == "cpu"
    assert about["device_name"]
    assert about["models"]["target"] == "dummy:target"
    assert about["models"]["dtype"] == "float32"
    assert about["versions"]["torch"]
    assert about["date"]
    parts = json.loads((out / "summary.json").read_text())["findings"]["split"]
    assert {(p["role"], p["batch"], p["width"]) for p in parts} == {
        (role, batch, width) for role in ("target", "draft") for batch in (1, 2) for width in (1, 5)
    }
    assert all({"dense_s", "attention_s_per_token"} <= part.keys() for part in parts)
    assert no_runs == [1, 2]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("no more of it"), 70, "out of memory (no more of it)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 70, "out of memory"),
    ],
)
def test_what_was_timed_outlives_a_failure_and_is_not_repeated(
    failure: BaseException,
    code: int,
    told: str,
    tmp_path: Path,
    pair: list[str],
    no_runs: list[int],
    timed: list[Shape],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, whole = tmp_path / "out", forwards.time_forward

    def broken(loaded: Any, shape: Shape, study: Any) -> Forward:
        if len(timed) == 11:  # in the draft
            raise failure
        return whole(loaded, shape, study)

    monkeypatch.setattr(forwards, "time_forward", broken)
    assert call(monkeypatch, out, *pair, *FORWARDS, *TEXTS) == code
    assert told in capsys.readouterr().err
    kept = read_rows(out)
    assert len(kept) == len(timed) == 11
    monkeypatch.setattr(forwards, "time_forward", whole)
    assert call(monkeypatch, out, *pair, *FORWARDS, *TEXTS) == 0
    assert read_rows(out)[:11] == kept
    assert len(read_rows(out)) == len(timed) == len(set(timed)) == 16


def test_a_row_that_was_cut_short_is_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "forwards.csv"
    file = ForwardsFile(path)
    file.append(Forward("target", 1, 1, 16, 0.5, 0.75))
    file.append(Forward("target", 1, 1, 64, 0.625, 0.75))
    path.write_bytes(path.read_bytes()[:-4])
    again = ForwardsFile(path)
    assert list(again.found.values()) == [Forward("target", 1, 1, 16, 0.5, 0.75)]
    again.append(Forward("draft", 1, 1, 16, 0.5, 0.75))
    assert [row["role"] for row in read_rows(tmp_path)] == ["target", "draft"]


@pytest.mark.parametrize("text", ["a,b\r\n1,2\r\n", ",".join(Forward._fields) + "\r\ntarget,1,1,x,1,1\r\n"])
def test_a_foreign_file_of_forwards_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "forwards.csv").write_text(text)
    with pytest.raises(InputError, match="not of this study"):
        ForwardsFile(tmp_path / "forwards.csv")


@pytest.mark.serial
def test_forwards_of_something_else_are_neither_used_nor_lost(
    tmp_path: Path,
    pair: list[str],
    no_runs: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, few = tmp_path / "out", ["--batches", "1", "--widths", "1", "--contexts", "16,64", *TEXTS]
    assert call(monkeypatch, out, *pair, *few) == 0
    before = read_rows(out)
    assert call(monkeypatch, out, *pair, *few, "--dtype", "bfloat16") == 2
    assert "other models" in capsys.readouterr().err
    assert read_rows(out) == before
    (out / "about.json").unlink()
    assert call(monkeypatch, out, *pair, *few) == 2
    assert "without its about.json" in capsys.readouterr().err


@pytest.mark.serial
def test_a_shape_that_does_not_fit_is_left_out(
    tmp_path: Path,
    pair: list[str],
    no_runs: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, grid = tmp_path / "out", ["--batches", "1,10000000", "--widths", "1", "--contexts", "16,64"]
    assert call(monkeypatch, out, *pair, *grid, *TEXTS) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 4
    assert all("left out: " in line and "batch 10000000" in line for line in told)
    assert {row["batch"] for row in read_rows(out)} == {"1"}
    assert len(json.loads((out / "summary.json").read_text())["findings"]["left_out"]) == 4
    assert no_runs == [1]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--contexts", "64,100000"], "contexts: 100000"),
        (["--contexts", "64,510"], "contexts: 510 and 16 new tokens are more than the 512 positions"),
        (["--contexts", "64"], "contexts: give two or more"),
        (["--contexts", "64,64"], "contexts: give two or more"),
        (["--contexts", "16,64", "--max-tokens", "512"], "max_tokens: 512"),
        (["--contexts", "16,64", "--device", "cuda:77"], "device: 'cuda:77' cannot be used"),
        (["--contexts", "16,64", "--dtype", "int3"], "dtype: one of"),
        (["--contexts", "16,64", "--pair", "tiny"], "pair: give either"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_timed(
    options: list[str],
    told: str,
    tmp_path: Path,
    pair: list[str],
    timed: list[Shape],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert call(monkeypatch, out, *pair, *options) == 2
    assert told in capsys.readouterr().err
    assert not timed
    assert not (out / "about.json").exists()


@pytest.mark.serial
def test_models_that_do_not_go_together_are_refused_before_anything_is_timed(
    tmp_path: Path,
    pair: list[str],
    timed: list[Shape],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "draft" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 301}))
    grid = ["--contexts", "16,64"]
    assert call(monkeypatch, tmp_path / "out", *pair, *grid) == 2
    assert "vocabulary has 301" in capsys.readouterr().err
    assert call(monkeypatch, tmp_path / "out", *pair[:2], *grid) == 2
    assert "draft: give the --draft" in capsys.readouterr().err
    assert not timed


@pytest.mark.serial
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_timed(
    tmp_path: Path,
    pair: list[str],
    timed: list[Shape],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "out", Path("/proc/out")):
        assert call(monkeypatch, out, *pair, "--contexts", "16,64") == 2
        assert f"out: {out} cannot be written to" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert not timed


@pytest.mark.serial
def test_one_run_that_fails_does_not_keep_the_others_from_being_made(
    tmp_path: Path,
    pair: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = device.Study.run

    def broken(study: device.Study, settings: Any, part: str = "runs") -> Any:
        if settings[0].mode == "sd":
            raise RunError("the speculator was lost")
        return real(study, settings, part)

    monkeypatch.setattr(device.Study, "run", broken)
    out = tmp_path / "out"
    grid = ["--batches", "1", "--widths", "1", "--contexts", "16,64", *TEXTS]
    assert call(monkeypatch, out, *pair, *grid) == 70
    told = capsys.readouterr().err
    assert "left out: sd-K4-b1-T0: the speculator was lost" in told
    assert "error: 1 of 3 runs failed" in told
    summary = json.loads((out / "summary.json").read_text())
    assert [row["mode"] for row in summary["rows"]] == ["ar", "ssd"]
    assert len(summary["findings"]["failed_runs"]) == 1


@pytest.mark.serial
def test_every_shape_captures_its_graphs_into_a_pool_of_its_own(
    pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor import graphs
    from executor.models import load_model

    pools: list[Any] = []
    monkeypatch.setattr(graphs, "on_cuda", lambda where: pools.append(where) or (lambda work: work))
    loaded = load_model(pair[1])
    study = SimpleNamespace(models=SimpleNamespace(cuda_graphs=True), texts=SimpleNamespace(seed=0))
    for batch in (1, 2):
        shape = Shape("target", batch, 1, 16)
        assert forwards.time_forward(loaded, shape, study).shape == shape  # type: ignore[arg-type]
    assert len(pools) == 2


@pytest.mark.serial
def test_a_built_in_pair_can_be_timed(tmp_path: Path, no_runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    grid = ["--batches", "1", "--widths", "1", "--contexts", "16,64", *TEXTS]
    assert call(monkeypatch, out, "--pair", "tiny", *grid) == 0
    assert [row["role"] for row in read_rows(out)] == ["target", "target", "draft", "draft"]
    assert json.loads((out / "about.json").read_text())["models"]["target"] == "tiny/target"


def test_the_help_names_the_pair_that_is_taken_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, tmp_path, "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "(default: the shapes of Llama-3.1-8B and Llama-3.2-1B)" in told


def test_an_error_that_nobody_expected_keeps_its_traceback() -> None:
    def broken() -> None:
        raise RuntimeError("a kernel is missing")

    with pytest.raises(RuntimeError, match="a kernel is missing"):
        start(broken)
