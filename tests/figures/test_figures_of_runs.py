"""Figures drawn from records show the records' own numbers, and the predictions of the profile beside them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from results_folder import RANKS, write_report

from figures import accuracy, batch_size, end_to_end, fallback, methods, miss_rate, pareto, round_budget, timeline
from figures.drawing import Point
from figures.inputs import Results, Run
from figures.marks import Origin
from ssdsim.evaluate import Method, evaluate
from ssdsim.records import Lookup
from ssdsim.scenario import Mode
from ssdsim.scenario_files import scenario_from


def run_of(results: Results, mode: Mode, batch: int) -> Run:
    return next(run for run in results.runs if (run.mode, run.workload.batch_size) == (mode, batch))


def rate(results: Results, mode: Mode, batch: int) -> float:
    return run_of(results, mode, batch).quantities["tokens_per_s"].value


def predicted(results: Results, mode: Mode, batch: int, method: Method = Method.EXACT) -> float:
    about = run_of(results, mode, batch).about
    pair = results.profiles[0].model_dump(mode="json")
    return evaluate(scenario_from({**about["scenario"], "pair": pair}), method, mode).tokens_per_s


def values(points: list[Point], origin: Origin, series: str) -> dict[float, float]:
    return {float(p.x): p.y for p in points if p.origin is origin and p.series == series}


def test_the_timeline_is_made_of_the_runs_rounds(measured: Results) -> None:
    drawing = timeline.draw(measured)
    for mode in (Mode.SD, Mode.SSD):
        rounds = run_of(measured, mode, 1).records.rounds.columns()
        bars = [bar for bar in drawing.data if bar.mode == mode]  # type: ignore[attr-defined]
        verified = {bar.round: bar.duration_ms for bar in bars if bar.work == "verify"}  # type: ignore[attr-defined]
        assert len(verified) > 3
        shown = np.isin(rounds["round"], list(verified))
        assert list(verified.values()) == pytest.approx((1e3 * rounds["verify_s"][shown]).tolist())
    assert "SD is measured: sd-b1. SSD is measured: ssd-b1." in drawing.caption


def test_the_timeline_counts_the_tokens_of_its_rounds(measured: Results) -> None:
    axes = timeline.draw(measured).figure.axes[1]
    outcomes = run_of(measured, Mode.SSD, 1).records.outcomes.columns()
    tokens = {f"+{n}" for n in set(outcomes["num_emitted"].tolist())}
    written = [text.get_text().removeprefix("miss: ") for text in axes.texts]
    assert len(written) >= timeline.SSD_ROUNDS - 1
    assert set(written) <= tokens


def test_a_folder_without_sd_gives_a_timeline_of_ssd_alone(measured: Results) -> None:
    only = Results(runs=tuple(run for run in measured.runs if run.mode is Mode.SSD))
    assert {bar.mode for bar in timeline.draw(only).data} == {"ssd"}  # type: ignore[attr-defined]


def test_speed_ups_are_measured_over_measured_and_predicted_over_predicted(measured: Results) -> None:
    points = batch_size._ours(measured)
    for mode in (Mode.SD, Mode.SSD):
        for origin, source in ((Origin.MEASURED, rate), (Origin.EXACT, predicted)):
            expected = {b: source(measured, mode, b) / source(measured, Mode.AR, b) for b in (1, 4)}
            assert values(points, origin, mode.upper()) == pytest.approx(expected)


def test_methods_shows_every_method_of_the_measured_runs_and_the_gaps(measured: Results) -> None:
    drawing = methods.draw(measured)
    rates = [p for p in drawing.data if isinstance(p, Point) and p.panel == "rate"]
    gaps = [p for p in drawing.data if isinstance(p, Point) and p.panel == "against exact"]
    exact = {b: predicted(measured, Mode.SSD, b) for b in (1, 4)}
    assert values(rates, Origin.EXACT, "SSD") == pytest.approx(exact)
    paper = {b: predicted(measured, Mode.SSD, b, Method.PAPER) for b in (1, 4)}
    assert values(rates, Origin.PAPER, "SSD") == pytest.approx(paper)
    real = {b: rate(measured, Mode.SSD, b) for b in (1, 4)}
    assert values(rates, Origin.MEASURED, "SSD") == pytest.approx(real)
    wanted = {b: 100 * (real[b] / exact[b] - 1) for b in real}
    assert values(gaps, Origin.MEASURED, "SSD") == pytest.approx(wanted)


def test_prompt_kinds_get_the_rates_of_their_own_requests(measured: Results) -> None:
    requests = run_of(measured, Mode.SD, 1).records.requests.columns()
    shown = {p.x: p.y for p in end_to_end._ours(measured) if p.series == "SD" and p.origin is Origin.MEASURED}
    assert shown["mean"] == pytest.approx(rate(measured, Mode.SD, 1))
    chat = requests["prompt_kind"] == 0
    seconds = (requests["finish_s"] - requests["admitted_s"])[chat].sum()
    assert shown["chat"] == pytest.approx(requests["output_tokens"][chat].sum() / seconds)


def test_miss_rates_are_the_shares_of_ranks_beyond_the_fan_out(measured: Results) -> None:
    points = [p for p in miss_rate._measured(measured) if p.panel == "after a drafted round"]
    ranks = np.concatenate([_looked_up_ranks(run_of(measured, Mode.SSD, b)) for b in (1, 4)])
    assert set(ranks.tolist()) <= {rank + extra for rank in RANKS for extra in (0, 1)}
    assert {p.x: p.y for p in points} == pytest.approx(
        {f: (ranks > f).mean() for f in miss_rate._FAN_OUTS if (ranks > f).any()}
    )
    assert all(p.low is not None and p.low < p.y < (p.high or 0) for p in points)


def _looked_up_ranks(run: Run) -> np.ndarray:
    outcomes = run.records.outcomes.columns()
    return outcomes["bonus_rank"][np.isin(outcomes["lookup"], [Lookup.HIT, Lookup.MISS])]


def test_a_point_of_the_pareto_front_is_rate_per_request_and_rate_per_device(measured: Results) -> None:
    devices = {Mode.AR: 4, Mode.SD: 4, Mode.SSD: 5}  # the toy pair's target has four, SSD adds one
    expected = [(rate(measured, m, b) / b, rate(measured, m, b) / devices[m]) for m in Mode for b in (1, 4)]
    shown = [(float(p.x), p.y) for p in pareto._ours(measured)]
    np.testing.assert_allclose(sorted(shown), sorted(expected))


def test_fallbacks_are_compared_over_measured_ar(measured: Results) -> None:
    points = list(fallback._measured(measured))
    expected = {b: rate(measured, Mode.SSD, b) / rate(measured, Mode.AR, b) for b in (1, 4)}
    assert values(points, Origin.MEASURED, "jit: draft now") == pytest.approx(expected)


def test_the_parts_of_a_round_add_up_to_the_round(measured: Results) -> None:
    for name, _, seconds in round_budget._runs(measured):
        mode, batch = (Mode.SSD if "SSD" in name else Mode.SD), int(name.rpartition("=")[2])
        parts = [part for part in round_budget._parts(name, Origin.MEASURED, seconds) if part.part != "build"]
        lasted = sum(part.duration_ms for part in parts if not part.part.startswith("build"))
        assert lasted == pytest.approx(1e3 * run_of(measured, mode, batch).quantities["round_s"].value)


def test_accuracy_draws_the_reports_numbers_and_averages_what_calibration_has_not_seen(tmp_path: Path) -> None:
    predictions = {"exact": (110.0, 0.8), "paper": (150.0, 0.9)}
    points = [
        {
            "name": f"p{i}",
            "measured": {"tokens_per_s": 100.0 * i, "cache_hit_rate": 0.7},
            "predicted": {
                m: {"tokens_per_s": rate * i, "cache_hit_rate": hits} for m, (rate, hits) in predictions.items()
            },
        }
        for i in (1, 2)
    ]
    write_report(tmp_path, points)
    drawing = accuracy.draw(Results.read(tmp_path))
    (exact,) = [line for line in drawing.figure.axes[0].lines if line.get_label() == "exact, measured"]
    assert (list(exact.get_xdata()), list(exact.get_ydata())) == ([100.0, 200.0], [110.0, 220.0])
    assert "exact 10.0 % on average" in drawing.caption
    assert "paper 50.0 % on average" in drawing.caption
    errors = {(p.series, p.quantity): p.error for p in drawing.data}  # type: ignore[attr-defined]
    assert math.isclose(errors["exact", "tokens_per_s"], 0.1)
    assert math.isclose(errors["exact", "cache_hit_rate"], 0.8 - 0.7), "a share's error is a difference"
