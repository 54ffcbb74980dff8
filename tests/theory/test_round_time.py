"""The mean round against its definition, summed over every way in which a few slots can end a round."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ssdsim.theory.round_time import End, Gap, RoundTimes, Source, mean_round

SLOTS = 3
LAW = np.array([[0.35, 0.15, 0.1], [0.2, 0.05, 0.15]])
"""[source, end] of one slot."""
FALLBACK_S = np.array([0.0, 0.2, 0.25, 0.4])
FIRST_S = np.array([0.0, 0.1, 0.15, 0.3])
PREFILL_S = np.array([0.0, 0.5, 1.0, 1.5])
SHARED = (Gap((End.MISS, End.FINISHED), FALLBACK_S), Gap((End.FINISHED,), FIRST_S))
APART = (Gap((End.MISS,), FALLBACK_S), Gap((End.FINISHED,), FIRST_S))
BUILDS = {
    "never late": np.array([0.1]),
    "late": np.array([1.5]),
    "late with many drafted rows": np.array([0.5, 0.9, 1.3, 2.0]),
}


def enumerated(times: RoundTimes, gaps: tuple[Gap, ...], prefill_s: np.ndarray) -> tuple[float, float]:
    """(mean round, part of it in which only prompts are read), slot by slot."""
    round_s = read_s = 0.0
    for slots in product(product(Source, End), repeat=SLOTS):
        prob = float(np.prod([LAW[source, end] for source, end in slots]))
        drafted = sum(source is Source.DRAFTED for source, _ in slots)
        ends = [end for _, end in slots]
        window_s, build_s = (np.broadcast_to(t, SLOTS + 1)[drafted] for t in (times.window_s, times.build_s))
        late_s = max(0.0, build_s - window_s)
        gap_s = sum(gap.time_s[sum(end in gap.ends for end in ends)] for gap in gaps)
        aborted_s = max(late_s if End.HIT in ends else 0.0, gap_s)
        answered_s = late_s + gap_s if times.on_late == "wait" else aborted_s
        launched_s = max(answered_s, prefill_s[ends.count(End.FINISHED)])
        round_s += prob * (float(times.overhead_s) + window_s + launched_s)
        read_s += prob * (launched_s - answered_s)
    return round_s, read_s


@pytest.mark.parametrize("on_late", ["wait", "abort"])
@pytest.mark.parametrize("gaps", [SHARED, APART], ids=["drafted together", "drafted in turn"])
@pytest.mark.parametrize("build", BUILDS)
def test_prompts_are_read_beside_the_late_build_and_the_gaps(build: str, gaps: tuple[Gap, ...], on_late: str) -> None:
    times = RoundTimes(
        window_s=np.array([1.0]),
        build_s=BUILDS[build],
        fallback_s=FALLBACK_S,
        overhead_s=0.05,
        on_late=on_late,  # type: ignore[arg-type]
    )
    expected_s, read_s = enumerated(times, gaps, PREFILL_S)
    found = mean_round(LAW, times, gaps, Gap((End.FINISHED,), PREFILL_S))
    assert float(found.round_s) == pytest.approx(expected_s, rel=1e-12)
    assert float(found.prefill_s) == pytest.approx(read_s, rel=1e-12)
    assert read_s > 0.01
    assert float(mean_round(LAW, times, gaps).round_s) == pytest.approx(expected_s - read_s, rel=1e-12)


def test_points_with_and_without_prompts_to_read_share_an_array() -> None:
    times = RoundTimes(window_s=np.array([1.0]), build_s=np.array([0.5]), fallback_s=FALLBACK_S)
    prefill_s = np.stack([0 * PREFILL_S, PREFILL_S])
    both = np.asarray(mean_round(LAW, times, APART, Gap((End.FINISHED,), prefill_s)).round_s)
    alone = [float(mean_round(LAW, times, APART, Gap((End.FINISHED,), row)).round_s) for row in prefill_s]
    assert both.tolist() == pytest.approx(alone, rel=1e-14)
    assert alone[1] > alone[0]
