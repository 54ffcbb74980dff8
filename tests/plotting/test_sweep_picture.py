"""Sweep pictures: every kind of view can be drawn, axes are labelled with units, equal views give equal files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from ssdsim.plotting.sweep import Line, View, draw_sweep


def view(panels: int = 2, lines: int = 3, x: tuple = (1, 2, 4, 8), quantity: str = "round_s") -> View:
    modes = ("ar", "sd", "ssd")
    values = np.arange(1.0, 1 + panels * lines * len(x)).reshape(panels, lines, len(x)) * 1e-3
    return View(
        quantity=quantity,
        panel_name="lookahead",
        panel_values=tuple(range(1, panels + 1)),
        x_name="batch size",
        x_values=x,
        lines=tuple(Line(f"line {i}", modes[i % 3], "exact") for i in range(lines)),
        values=values,
        bounds=np.full((2, *values.shape), np.nan),
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr("ssdsim.plotting.style.save", lambda figure, path: figures.append(figure))
    return figures


def test_axes_carry_names_and_units_and_values_are_in_these_units(drawn: list[Figure]) -> None:
    draw_sweep(view(), Path("unused.png"), title="pair: partly assumed")
    (figure,) = drawn
    assert figure.get_suptitle() == "pair: partly assumed"
    first = figure.axes[0]
    assert (first.get_ylabel(), first.get_xlabel(), first.get_title()) == ("round (ms)", "batch size", "lookahead 1")
    assert first.lines[0].get_ydata().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert first.get_xscale() == "log", "1, 2, 4, 8 is geometric"


def test_lines_of_one_mode_share_its_colour_family_but_not_their_marker(drawn: list[Figure]) -> None:
    draw_sweep(view(lines=6), Path("unused.png"), title="")
    lines = drawn[0].axes[0].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 6


def test_bounds_are_shaded_where_they_are_known(drawn: list[Figure]) -> None:
    plain = view()
    for bounds, shades in ((plain.bounds, 0), (np.stack([plain.values * 0.9, plain.values * 1.1]), 3)):
        draw_sweep(plain._replace(bounds=bounds), Path("unused.png"), title="")
        assert len(drawn[-1].axes[0].collections) == shades


def test_unused_panels_are_hidden(drawn: list[Figure]) -> None:
    draw_sweep(view(panels=5), Path("unused.png"), title="")
    assert [axes.get_visible() for axes in drawn[0].axes] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("x", [(1,), (1, 2, 3), ("jit", "none"), ("",), (0.5, 0.7, 0.9, 1.1)])
def test_any_axis_can_be_drawn(tmp_path: Path, x: tuple) -> None:
    draw_sweep(view(x=x), tmp_path / "p.png", title="t")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_views_give_equal_files(tmp_path: Path, suffix: str) -> None:
    for name in ("a", "b"):
        draw_sweep(view(), tmp_path / f"{name}{suffix}", title="t")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
