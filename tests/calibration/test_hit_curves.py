"""Hit curves from the bonus ranks of runs: one run answers every fan-out, and each kind of position has its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ssdsim.calibration.hit_curves import CurveEstimate, hit_curves_of
from ssdsim.calibration.runs import Run
from ssdsim.records import Lookup, Records, Source
from ssdsim.scenario import Drafting, Mode, Placement, Workload

NUM_REQUESTS, ROUNDS_EACH = 30, 300


def run_with(**columns: Any) -> Run:
    """An SSD run with K = 2 and these columns of its outcome table; requests take turns."""
    count = len(columns["bonus_rank"])
    records = Records()
    rest = {
        "round": np.arange(count),
        "request_id": np.arange(count) % NUM_REQUESTS,
        "lookup": Lookup.HIT,
        "num_emitted": columns["num_accepted"] + 1,
        "fan_out_here": 3,
    }
    records.outcomes.extend(count, **{**rest, **columns})
    parts = {"drafting": Drafting(num_speculative_tokens=2), "workload": Workload(), "placement": Placement()}
    return Run(name="made", records=records, mode=Mode.SSD, **parts)  # type: ignore[arg-type]


def curves_of(**columns: Any) -> dict[tuple[str, str], CurveEstimate]:
    return hit_curves_of([run_with(**columns)])


def test_a_curve_is_the_share_of_ranks_within_the_fan_out() -> None:
    ranks = np.array([1, 1, 2, 4, 5, 40] * NUM_REQUESTS)
    ones = np.ones_like(ranks)
    curve = curves_of(source=ones * Source.HIT, num_proposed=2 * ones, num_accepted=ones, bonus_rank=ranks)[
        "after_draft", "rejection"
    ]
    shares = {fan_out: quantity.value for fan_out in (1, 2, 4, 64) if (quantity := curve.at(fan_out))}
    assert shares == pytest.approx({1: 2 / 6, 2: 3 / 6, 4: 4 / 6, 64: 1.0})
    assert curve.at(5) is None


def test_positions_and_sources_do_not_mix() -> None:
    """Ranks 1, 2, 3, 4 at the four kinds of positions: each curve is a step at its own rank."""
    source = np.array([Source.HIT, Source.JIT, Source.NGRAM, Source.NONE] * NUM_REQUESTS)
    num_proposed = np.array([2, 2, 2, 0] * NUM_REQUESTS)
    num_accepted = np.array([0, 2, 1, 0] * NUM_REQUESTS)
    curves = curves_of(
        source=source,
        num_proposed=num_proposed,
        num_accepted=num_accepted,
        bonus_rank=np.array([1, 2, 3, 4] * NUM_REQUESTS),
    )
    places = [
        ("after_draft", "rejection"),
        ("after_draft", "all_accepted"),
        ("after_fallback", "rejection"),
        ("after_fallback", "all_accepted"),
    ]
    for rank, place in enumerate(places, 1):
        hits = [curves[place].at(fan_out) for fan_out in (1, 2, 3, 4)]
        assert [quantity.value for quantity in hits if quantity] == [float(f >= rank) for f in (1, 2, 3, 4)]


def test_the_law_that_drew_the_ranks_is_found() -> None:
    """Misses .85 F^-.3 in 9,000 independent bonus tokens.

    Intervals of 95 % miss the truth for one seed in 20 each; this seed is none of them.
    """
    count = NUM_REQUESTS * ROUNDS_EACH
    draws = np.random.default_rng(1).random(count)
    ranks = np.ceil((draws / 0.85) ** (-1 / 0.3)).clip(1, 10**6).astype(np.int64)
    ones = np.ones(count, np.int64)
    curve = curves_of(source=ones * Source.HIT, num_proposed=2 * ones, num_accepted=ones, bonus_rank=ranks)[
        "after_draft", "rejection"
    ]
    assert curve.law is not None
    assert not curve.law.is_refuted
    for quantity, truth in ((curve.law.miss_prefactor, 0.85), (curve.law.miss_exponent, 0.3)):
        assert quantity.low is not None
        assert quantity.high is not None
        assert quantity.low < truth < quantity.high


def test_a_curve_without_misses_has_no_law() -> None:
    ones = np.ones(NUM_REQUESTS * 4, np.int64)
    curve = curves_of(source=ones * Source.HIT, num_proposed=2 * ones, num_accepted=2 * ones, bonus_rank=ones)[
        "after_draft", "all_accepted"
    ]
    assert curve.law is None
    first = curve.at(1)
    assert first is not None
    assert first.value == 1.0
