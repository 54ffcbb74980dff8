"""The gallery: every figure by name, files and captions, what is skipped and what is refused."""

from __future__ import annotations

import builtins
import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from figures import gallery
from figures.inputs import Results
from ssdsim.cli.app import app
from ssdsim.errors import InputError

QUICK = "cache_geometry"


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_every_figure_has_a_script() -> None:
    for name in gallery.FIGURES:
        assert callable(import_module(f"figures.{name}").draw)


def test_pictures_data_and_captions_are_written(tmp_path: Path) -> None:
    (written,) = gallery.draw_figures([QUICK], None, tmp_path, ["png", "svg", "pdf"])
    assert [path.name for path in written.files] == [f"{QUICK}.{suffix}" for suffix in ("png", "svg", "pdf", "csv")]
    assert written.caption in (tmp_path / "index.md").read_text()
    drawing = gallery.draw(QUICK, Results())
    with (tmp_path / f"{QUICK}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["fan_out"]) for row in rows] == [p.fan_out for p in drawing.data]  # type: ignore[attr-defined]
    hit_probs = [p.hit_prob for p in drawing.data]  # type: ignore[attr-defined]
    assert [float(row["hit_prob"]) for row in rows] == pytest.approx(hit_probs, rel=1e-5)


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        gallery.draw_figures([QUICK], None, tmp_path / name, ["png", "svg"])
    for suffix in ("png", "svg"):
        first, second = ((tmp_path / name / f"{QUICK}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second


def test_the_documents_show_every_figure_with_its_caption_of_today() -> None:
    images = Path(__file__).resolve().parents[2] / "docs" / "images"
    page = (images / "index.md").read_text()
    for name in gallery.FIGURES:
        assert f"({name}.png)" in page
        assert f"({name}.csv)" in page
        assert (images / f"{name}.png").stat().st_size < 150_000
    assert gallery.draw(QUICK, Results()).caption in page


def test_an_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean pareto"):
        gallery.draw_figures(["paretto"], None, tmp_path)


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_mask_is_refused_by_name_and_skipped_among_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ssdsim\[executor\]"):
        gallery.draw_figures(["attention_mask"], None, tmp_path)
    skipped = gallery._one("attention_mask", Results(), tmp_path, ("png",), required=False)
    assert (skipped.files, skipped.skipped is not None) == ((), True)


def test_the_verb_reports_files_and_captions_as_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", QUICK, "--out", str(tmp_path), "--format", "png", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (figure,) = document["figures"]
    assert figure["files"] == [str(tmp_path / f"{QUICK}.{suffix}") for suffix in ("png", "csv")]
    assert "uniform" in figure["caption"]


def test_the_verb_lists_the_figures() -> None:
    result = CliRunner().invoke(app, ["figures", "--list", "--json"])
    assert [figure["name"] for figure in json.loads(result.stdout)["figures"]] == list(gallery.FIGURES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there are timeline"),
        (["--format", "bmp"], "must be one of png"),
        (["--from", "no"], "no such"),
    ],
)
def test_the_verb_refuses_bad_input(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", *arguments, "--out", str(tmp_path)])
    assert (result.exit_code, message in result.output) == (2, True)
