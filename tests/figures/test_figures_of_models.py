"""Figures drawn without results show published numbers as published and the model's as the model gives them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from experiments.published import rates, rows, study
from figures import cache_geometry, end_to_end, fallback, fan_out_policies, miss_rate, model, pareto, saguaro, toy
from figures.drawing import Point
from figures.inputs import Results
from figures.marks import Origin
from figures.published import TITLES
from ssdsim.scenario import Mode
from ssdsim.theory.hit_curve import PowerLaw
from ssdsim.theory.sampling import saguaro_stats

LLAMA, QWEN = "llama-3.1-70b", "qwen3-32b"


def test_bars_end_at_the_predictions_and_open_markers_at_the_published_rows() -> None:
    drawing = end_to_end.draw(Results())
    axes = drawing.figure.axes[0]
    heights = sorted({round(patch.get_height(), 6) for patch in axes.patches})
    points = [p for p in drawing.data if isinstance(p, Point) and p.panel == TITLES[LLAMA]]
    exact = [p for p in points if p.origin is Origin.EXACT]
    assert heights == sorted({round(p.y, 6) for p in exact})
    profile = study.LLAMA.calibrated_profile()
    sd = {p.x: p.y for p in exact if p.series == "SD"}
    assert sd["GSM8K"] == pytest.approx(rates.sd_rate(profile, "gsm8k"))
    published = {(p.series, p.x): p.y for p in points if p.origin is Origin.PUBLISHED}
    assert published["SSD, K=7", "HumanEval"] == rows.LLAMA.ssd_rate(7, "humaneval")
    assert published["SD", "mean"] == pytest.approx(fmean(rows.LLAMA.sd))


def test_the_papers_own_rows_are_those_of_the_reference_file(shared_data: Path) -> None:
    from figures.published import AUTHORS_HIT_RATE, AUTHORS_SAGUARO_HIT_RATE, FIGURE_1, QWEN_PAPER

    text = (shared_data / "validation" / "ssd_published.md").read_text()
    for mode, values in QWEN_PAPER.items():
        cells = " | ".join(f"{value:g}" for value in values)
        assert f"{mode.upper()} | {cells} |" in text
    for engine, rate in FIGURE_1.items():
        assert f"{engine} {rate}" in text
    assert f"cache hits {AUTHORS_HIT_RATE:.2f}".replace("0.", ".") in text
    assert f"hits {AUTHORS_SAGUARO_HIT_RATE:.2f}".replace("0.", ".") in text


def test_the_fastest_drafting_beats_every_other_of_its_batch() -> None:
    found = model.choices(QWEN, Mode.SSD, [1, 16])
    best = model.fastest(found)
    for b in (1, 16):
        assert found[best[b]] == max(rate for choice, rate in found.items() if choice.batch_size == b)
    own = model.exact(QWEN, Mode.SSD, _drafting(best[16])).tokens_per_s
    assert found[best[16]] == pytest.approx(own)


def _drafting(choice: model.Choice) -> dict[str, object]:
    return {
        "batch_size": choice.batch_size,
        "num_speculative_tokens": choice.lookahead,
        "drafting.fan_out.per_position": choice.fan_out,
        "drafting.fallback.kind": choice.fallback,
    }


def test_ssd_is_charged_for_its_fifth_device() -> None:
    points = [p for p in pareto._points(LLAMA) if p.origin is Origin.PUBLISHED]
    devices = {p.series: float(p.x) / p.y for p in points}
    assert devices == pytest.approx({"AR": 4.0, "SD": 4.0, "SSD": 5.0})


def test_the_fan_out_squares_are_the_policies_allocations() -> None:
    drawing = cache_geometry.draw(Results())
    squares = [len(axes.patches) for axes in drawing.figure.axes]
    assert squares == [cache_geometry._BRANCHES_PER_POSITION * 8] * 3
    by_policy = {p.policy: [] for p in drawing.data}  # type: ignore[attr-defined]
    for position in drawing.data:
        by_policy[position.policy].append(position.fan_out)  # type: ignore[attr-defined]
    assert by_policy["uniform"] == [3] * 8
    assert by_policy["geometric"][-1] == max(by_policy["geometric"]), "Theorem 12's boost of the last position"


def test_the_band_of_the_miss_rate_pinches_where_it_was_calibrated() -> None:
    points = [p for p in miss_rate._model(LLAMA) if p.panel == "after a drafted round"]
    widths = {p.x: (p.high or 0) / (p.low or 1) for p in points}
    # h(3) is kept at a rejection only; where all was accepted the curve is h(F - 1): the band is narrow, not closed
    assert widths[3] < 1.15
    assert min(widths, key=lambda fan_out: widths[fan_out]) in {3, 4}
    assert widths[32] > 5


def test_the_printed_law_misses_always_at_fan_out_one() -> None:
    law = [p for p in miss_rate.draw(Results()).data if isinstance(p, Point) and p.origin is Origin.PAPER]
    assert {p.x: p.y for p in law}[1] == 1.0


def test_the_fast_fallback_overtakes_as_the_batch_grows_and_nothing_beats_random_tokens() -> None:
    points = list(fallback._by_batch())
    jit, none, random = (
        {p.x: p.y for p in points if p.series == fallback._FALLBACKS[kind][0]} for kind in ("jit", "none", "random")
    )
    assert jit[1] > none[1]
    assert none[64] > jit[64]
    assert all(none[b] >= random[b] for b in none), "random tokens give nothing and are paid for"


def test_geometric_reads_the_exponent_off_a_power_law() -> None:
    curve = PowerLaw(exponent=0.7, prefactor=0.4)
    assert fan_out_policies._slope(curve) == pytest.approx(0.7)


def test_the_optimal_policy_hits_most_at_every_temperature() -> None:
    points = [p for p in fan_out_policies._points(toy.profile(), list(toy.TEMPERATURES), 6) if p.panel == "hit rate"]
    by_series = {s: np.array([p.y for p in points if p.series == s]) for s in {p.series for p in points}}
    for policy in ("SSD, uniform", "SSD, geometric"):
        assert (by_series["SSD, optimal"] >= by_series[policy] - 1e-12).all()


def test_the_trade_off_starts_at_plain_sampling() -> None:
    plain = [p for p in saguaro._curves() if p.series == "F=3"][-1]
    pair = toy.distributions(1.0)
    stats = saguaro_stats(*pair, 3, 1.0)
    overlap = np.minimum(pair.target, pair.draft).sum(axis=-1)  # Theorem 1
    assert plain.x == pytest.approx(overlap.mean())
    assert plain.y == pytest.approx(np.mean(stats.reject_and_hit_prob) / (1 - overlap.mean()))


def test_the_example_moves_its_residual_into_the_cache() -> None:
    shares = []
    for c in (1.0, saguaro._EXAMPLE_DOWNWEIGHT):
        target, proposal, residual, cached = saguaro.example(c)
        assert proposal.sum() == pytest.approx(1)
        assert residual.sum() == pytest.approx(1 - np.minimum(target, proposal).sum())
        shares.append(residual[cached].sum() / residual.sum())
    assert shares[0] < shares[1]
