"""Nobody can take one origin for another: open, filled, line."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from figures import marks
from figures.drawing import Point
from figures.marks import Origin


def points(origin: Origin, **bounds: float) -> list[Point]:
    return [Point("panel", "series", origin, x, 2.0 * x, **bounds) for x in (1.0, 2.0)]


def drawn(origin: Origin, **bounds: float) -> Figure:
    figure = Figure()
    marks.plot(figure.add_subplot(), points(origin, **bounds), "red")
    return figure


@pytest.mark.parametrize(("origin", "face"), [(Origin.PUBLISHED, "white"), (Origin.MEASURED, "red")])
def test_published_values_are_open_and_measured_ones_filled(origin: Origin, face: str) -> None:
    (line,) = drawn(origin).axes[0].lines
    assert (line.get_markerfacecolor(), line.get_linestyle()) == (face, "None")
    assert list(line.get_ydata()) == [2.0, 4.0]


@pytest.mark.parametrize(("origin", "dashes"), [(Origin.EXACT, "-"), (Origin.SIM, "--"), (Origin.PAPER, ":")])
def test_models_are_lines_without_markers(origin: Origin, dashes: str) -> None:
    (line,) = drawn(origin).axes[0].lines
    assert (line.get_marker(), line.get_linestyle()) == ("None", dashes)


def test_bounds_become_a_band_of_a_model_and_bars_of_a_measurement() -> None:
    assert len(drawn(Origin.EXACT, low=1.0, high=5.0).axes[0].collections) == 1
    (bars,) = drawn(Origin.MEASURED, low=1.0, high=5.0).axes[0].collections
    (low, high) = bars.get_paths()[1].vertices[:, 1]
    assert (low, high) == (1.0, 5.0)


@pytest.mark.parametrize("origin", [Origin.EXACT, Origin.PAPER])
def test_a_formula_never_wears_a_marker(origin: Origin) -> None:
    with pytest.raises(ValueError, match="lines or bars"):
        marks.look(origin, "red")


def test_the_legend_names_every_origin_in_the_picture_and_no_other() -> None:
    figure = Figure()
    shown = [*points(Origin.PUBLISHED), *points(Origin.EXACT, low=1.0, high=5.0)]
    marks.legend(figure, [], shown)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["exact model, with band", "published"]
