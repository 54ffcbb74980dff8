"""Replayed rank traces against a token-by-token walk that knows nothing of the simulator.

Under greedy decoding everything follows from the ranks: the draft proposes its favourites, so it is right where the
rank is 0, and the cache holds the next candidates, the rejected one left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from runs import PHASES, check_invariants
from toy_scenarios import toy_pair

from ssdsim.errors import InputError
from ssdsim.records import Records
from ssdsim.scenario import Mode, Scenario
from ssdsim.sim import simulate

RANKS = [np.random.default_rng(i).geometric(0.65, 40 + 7 * i) - 1 for i in range(5)]
"""Five texts whose tokens are the draft's favourite 65 times in a hundred."""
FAN_OUT = (3, 2, 1, 2)
ON_MISS = (4,)


class Round(NamedTuple):
    proposed: int
    accepted: int
    emitted: int
    hit: bool


def walk(ranks: list[int], fallback: str) -> list[Round]:
    """One request, token by token: K = 3; a miss is drafted anew (jit) or answered by nothing."""
    rounds, position, missed = [], 0, False
    while position < len(ranks):
        proposes = 0 if missed and fallback != "jit" else 3
        fan_out = FAN_OUT if proposes else ON_MISS
        accepted = 0
        while accepted < proposes and position + accepted < len(ranks) and ranks[position + accepted] == 0:
            accepted += 1
        emitted = min(accepted + 1, len(ranks) - position)
        hit = False
        if position + accepted < len(ranks):
            candidates_ahead = ranks[position + accepted] - (1 if accepted < proposes else 0)
            hit = candidates_ahead < fan_out[accepted]
        rounds.append(Round(proposes, accepted, emitted, hit))
        position += emitted
        missed = not hit
    return rounds


def replayed(fallback: str, **fields: Any) -> Scenario:
    pair = toy_pair(costs=PHASES)
    pair["behaviours"][0]["rank_trace"] = {"requests": [ranks.tolist() for ranks in RANKS]}
    scenario = {
        "num_speculative_tokens": 3,
        "fan_out": {"policy": "explicit", "values": list(FAN_OUT)},
        "fallback": {"kind": fallback},
    }
    if fallback == "none":
        scenario["fan_out_on_miss"] = {"policy": "explicit", "values": list(ON_MISS)}
    data = {"pair": pair, "drafting": scenario, "workload": {"output_tokens": 500, "num_requests": 12, **fields}}
    return Scenario.model_validate(data)


def rounds_of(records: Records, request: int) -> list[Round]:
    outcomes = records.outcomes.columns()
    rows = {name: column[outcomes["request_id"] == request] for name, column in outcomes.items()}
    hits = rows["lookup"] == 1
    return [
        Round(*map(int, row[:3]), bool(row[3]))
        for row in zip(rows["num_proposed"], rows["num_accepted"], rows["num_emitted"], hits, strict=True)
    ]


@pytest.mark.parametrize("fallback", ["jit", "none"])
def test_a_replayed_trace_is_the_walk_along_its_text(fallback: str) -> None:
    records = simulate(replayed(fallback, batch_size=3)).records
    check_invariants(records)
    for request in range(12):
        expected = walk(RANKS[request % 5].tolist(), fallback)
        last = expected[-1]._replace(hit=False)
        assert rounds_of(records, request) == [*expected[:-1], last]


def test_random_tokens_are_walked_like_none() -> None:
    """They cost verification and bring nothing: the same tokens, the same look-ups."""
    none, random = (simulate(replayed(kind)).records.outcomes.columns() for kind in ("none", "random"))
    np.testing.assert_array_equal(none["num_accepted"], random["num_accepted"])


def test_bonus_ranks_give_the_whole_hit_curve() -> None:
    """A look-up hits exactly where the bonus token's rank is within the fan-out, so one run tells of all fan-outs."""
    outcomes = simulate(replayed("jit")).records.outcomes.columns()
    looked_up = np.isin(outcomes["lookup"], (1, 2))
    within = outcomes["bonus_rank"] <= outcomes["fan_out_here"]
    np.testing.assert_array_equal(within[looked_up], (outcomes["lookup"] == 1)[looked_up])
    assert outcomes["bonus_rank"].min() >= 1


def test_greedy_ssd_walks_through_sd_s_tokens() -> None:
    """Drafting on every miss leaves the speculations as they are: same acceptance, round by round."""
    scenario = replayed("jit", batch_size=4)
    ssd, sd = (simulate(scenario.model_copy(update={"mode": mode})).records for mode in (Mode.SSD, Mode.SD))
    for request in range(12):
        assert [r.emitted for r in rounds_of(ssd, request)] == [r.emitted for r in rounds_of(sd, request)]


def test_n_grams_are_not_in_a_rank_trace() -> None:
    with pytest.raises(InputError, match="choose another kind"):
        simulate(replayed("ngram"))
