"""The exact model of a scenario against THEORY's own numbers and identities (unit of time: one verification)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from toy_scenarios import RATIOS, toy, toy_pair

from ssdsim.errors import DomainError
from ssdsim.evaluate import Method, compare, evaluate
from ssdsim.scenario import Mode, Scenario

E5 = (1 - 0.8**6) / 0.2
"""Tokens per drafted round at a = .8, K = 5."""


def rate(scenario: Scenario, mode: Mode = Mode.SSD, method: Method = Method.EXACT) -> float:
    """Tokens per unit of time and sequence."""
    return evaluate(scenario, method, mode).tokens_per_s / scenario.workload.batch_size


def test_the_fast_fallback_reaches_the_rate_of_section_6_3() -> None:
    """THEORY 6.3: 3.236 with nothing proposed, 3.385 with an n-gram acceptance of .5 (K_b = 5, B = 12, b = 1).

    The n-gram row's budget is divided by the optimal policy there; p_b falls from .991 to .933.
    """
    nothing = toy(fan_out__per_position=None, fan_out__budget=12, fan_out__policy="optimal")
    assert rate(nothing) == pytest.approx(3.236, abs=1e-3)
    found = toy(
        fan_out__per_position=None,
        fan_out__budget=12,
        fan_out__policy="optimal",
        fallback__kind="ngram",
    )
    assert evaluate(found, Method.EXACT).quantities["hit_rate_after_fallback"].value == pytest.approx(0.933, abs=2e-3)
    assert rate(found) == pytest.approx(3.385, abs=2e-3)


@pytest.mark.parametrize("batch_size", [1, 4, 16])
@pytest.mark.parametrize("kind", ["jit", "none"])
def test_corollary_16_is_exact_inside_its_assumptions(batch_size: int, kind: str) -> None:
    scenario = toy(batch_size=batch_size, fallback__kind=kind)
    assert rate(scenario) == pytest.approx(rate(scenario, method=Method.PAPER), rel=1e-12)


def test_the_printed_formula_is_too_fast_once_the_build_outlives_verification_and_fallback() -> None:
    """THEORY 1 (Cor. 16) at T_b = 0: a mixed batch waits T_p, of which the formula charges p^b T_p + 1 - p^b."""
    for build in (1.2, 1.5):
        scenario = toy(toy_pair(costs={**RATIOS, "build": build}), batch_size=16, on_late="abort")
        p = evaluate(scenario, Method.EXACT).quantities["cache_hit_rate"].value
        true_round = p**16 * build + (1 - p) ** 16 * 1 + (1 - p**16 - (1 - p) ** 16) * build
        printed_round = p**16 * build + (1 - p**16)
        excess = rate(scenario, method=Method.PAPER) / rate(scenario)
        assert excess == pytest.approx(true_round / printed_round, rel=1e-12)
        assert excess > 1.1


def test_a_late_build_that_is_not_aborted_delays_misses_as_well() -> None:
    """A miss then costs max(1, T_p) + T_b instead of 1 + T_b (THEORY 1, Cor. 8)."""
    costs = {**RATIOS, "build": 1.5, "jit": 0.8}
    scenarios = {late: toy(toy_pair(costs=costs), fallback__kind="jit", on_late=late) for late in ("wait", "abort")}
    p = evaluate(scenarios["wait"], Method.EXACT).quantities["cache_hit_rate"].value
    assert rate(scenarios["wait"]) == pytest.approx(E5 / (p * 1.5 + (1 - p) * 2.3), rel=1e-12)
    assert rate(scenarios["abort"]) == pytest.approx(E5 / (p * 1.5 + (1 - p) * 1.8), rel=1e-12)


def test_truncation_is_left_to_the_simulator_only_where_it_bites() -> None:
    in_time = toy(on_late="truncate")
    assert rate(in_time) == pytest.approx(rate(toy()), rel=1e-12)
    with pytest.raises(DomainError, match="simulate"):
        rate(toy(toy_pair(costs={**RATIOS, "build": 1.5}), on_late="truncate"))


def test_narrow_fallback_rows_save_verification_unless_kernels_pad() -> None:
    """Row by row: width 6 when drafted, 1 when nothing is proposed, growth .01 per query token beyond one per row."""
    pair = toy_pair(costs={**RATIOS, "verify_per_query_token": 0.01})
    answer = evaluate(toy(pair), Method.EXACT).quantities
    p = answer["cache_hit_rate"].value
    assert answer["window_s"].value == pytest.approx(1 + 0.01 * 5 * p, rel=1e-12)
    padded = evaluate(toy(pair, padded_verify=True), Method.EXACT).quantities
    assert padded["window_s"].value == pytest.approx(1.05, rel=1e-12)


def test_sd_and_ar_are_their_textbook_formulas() -> None:
    scenario = toy(batch_size=8)
    assert rate(scenario, Mode.AR) == pytest.approx(1.0, rel=1e-12)
    assert rate(scenario, Mode.SD) == pytest.approx(E5 / 1.5, rel=1e-12)


def test_preparing_only_for_full_acceptance_is_amusd_and_pearl() -> None:
    """fan_out = (0, ..., 0, 1): a hit needs all five accepted and the draft's favourite to be the bonus token.

    p_hit = a^5 * a after a drafted round; a miss is drafted just in time and costs T_j (b = 1, T_p < 1).
    """
    scenario = toy(fan_out={"policy": "explicit", "values": [0, 0, 0, 0, 0, 1]}, fallback__kind="jit")
    p = 0.8**6
    assert rate(scenario) == pytest.approx(E5 / (p + (1 - p) * 1.2), rel=1e-12)


def test_without_lookahead_ssd_is_ar_on_the_same_machinery() -> None:
    scenario = toy(num_speculative_tokens=0, fan_out__per_position=0)
    assert rate(scenario) == pytest.approx(rate(scenario, Mode.AR), rel=1e-12)


def test_more_draft_devices_shorten_the_build() -> None:
    linear = {"kind": "linear", "per_sequence_s": 0.01}
    costs = {
        "kind": "components",
        "verify": {"kind": "constant", "seconds": 1.0},
        "draft_step": {"kind": "constant", "seconds": 0.1},
        "tree_step": linear,
    }
    builds = [
        evaluate(toy(toy_pair(costs=costs), batch_size=4, num_draft_devices=g), Method.EXACT).quantities["build_s"]
        for g in (1, 2, 5)
    ]
    # 4 rows of 12 branches, K = 5 steps of .01 per branch on one device; ceil(48 / G) branches on each of G.
    assert [round(build.value, 9) for build in builds] == [2.4, 1.2, 0.5]


@pytest.mark.parametrize(("spread", "loss"), [(0.12, 0.028), (0.2, 0.069)])
def test_one_mean_hides_the_slow_requests(spread: float, loss: float) -> None:
    """THEORY 3: a Beta spread of .12 / .2 between long requests costs 2.8 / 6.9 % of the plug-in rate (SD, K = 5)."""
    long_requests = {"kind": "constant", "value": 4000}
    spread_out = toy(toy_pair(spread=spread), output_tokens=long_requests)
    alike = toy(output_tokens=long_requests)
    assert 1 - rate(spread_out, Mode.SD) / rate(alike, Mode.SD) == pytest.approx(loss, abs=1.5e-3)


def test_a_closed_loop_tends_to_the_endless_rate_as_requests_grow() -> None:
    endless = rate(toy(batch_size=4))
    gaps = [endless - rate(toy(batch_size=4, output_tokens=n)) for n in (64, 256, 1024, 4096)]
    assert all(a > b > 0 for a, b in pairwise(gaps))
    assert gaps[-1] < 0.005 * endless


def test_a_static_batch_pays_for_its_tail() -> None:
    """The vector `exact_finite-07`: 2.94044 per sequence at K = 5, b = 16, N = 512, first drafting .8, T_b = 0."""
    static = toy(toy_pair(costs={**RATIOS, "jit": 0.8}), batch_size=16, output_tokens=512, arrivals="static")
    assert rate(static) == pytest.approx(2.9404400256809344, abs=1e-7)


def test_every_threshold_policy_is_at_least_matched_by_the_best_one() -> None:
    """THEORY 6.2 at b = 8, T_j = .2: the best threshold beats both static fallbacks; exact rate 3.279 at m = 3."""
    given = rate(toy(batch_size=8, fallback__kind="threshold", fallback__threshold=3))
    assert given == pytest.approx(3.278963310323322, abs=1e-9)
    best = rate(toy(batch_size=8, fallback__kind="threshold"))
    static = max(rate(toy(batch_size=8, fallback__kind=kind)) for kind in ("jit", "none"))
    assert best >= given > static


def test_first_rounds_and_misses_share_one_chain_when_both_are_drafted() -> None:
    """b = 1, N = 1: every round is a first round that finishes, T_j + 1 per token, whichever fallback waits."""
    for kind in ("jit", "none"):
        scenario = toy(output_tokens=1, fallback__kind=kind)
        assert rate(scenario) == pytest.approx(1 / 1.2, rel=1e-12)


def test_speedups_compare_with_the_same_method() -> None:
    answers = {(a.method, a.mode): a for a in compare(toy(), [Method.PAPER, Method.EXACT])}
    for method in (Method.PAPER, Method.EXACT):
        ssd, sd = answers[method, Mode.SSD], answers[method, Mode.SD]
        assert ssd.quantities["speedup_over_sd"].value == pytest.approx(ssd.tokens_per_s / sd.tokens_per_s)


def test_devices_count_the_speculators_only_under_ssd() -> None:
    answers = {a.mode: a.quantities for a in compare(toy(num_draft_devices=2))}
    assert answers[Mode.SD]["tokens_per_s_per_device"].value * 4 == answers[Mode.SD]["tokens_per_s"].value
    assert answers[Mode.SSD]["tokens_per_s_per_device"].value * 6 == answers[Mode.SSD]["tokens_per_s"].value


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"batch_size": 9}, "batch size 9"),
        ({"num_speculative_tokens": 6}, "lookahead 6"),
        ({"prompt_tokens": 99}, "context"),
    ],
)
def test_what_lies_beyond_the_calibrated_range_is_flagged(overrides: dict[str, Any], said: str) -> None:
    limits = {"max_batch_size": 8, "max_speculative_tokens": 5, "max_context_tokens": 64}
    pair = {**toy_pair(), "limits": limits}
    inside = toy(pair, prompt_tokens=32)
    assert not evaluate(inside, Method.EXACT).notes
    outside = toy(pair, **{"prompt_tokens": 32, **overrides})
    assert any(said in note for note in evaluate(outside, Method.EXACT).notes)
