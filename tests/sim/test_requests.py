"""Who sits where and when, stated as (first round, slot) lists."""

from __future__ import annotations

import numpy as np
from runs import run_of

from ssdsim.profile import RankTrace
from ssdsim.sim.requests import ENDLESS, ClosedSlots, Requests, StaticSlots
from ssdsim.sim.streams import Streams


def placed(slots: ClosedSlots | StaticSlots, *num_rounds: int) -> list[tuple[int, int]]:
    starts, chosen = slots.place(np.array(num_rounds))
    return list(zip(starts.tolist(), chosen.tolist(), strict=True))


def test_a_closed_loop_refills_the_slot_that_is_free_first() -> None:
    slots = ClosedSlots(2)
    assert placed(slots, 3, 1, 1, 4) == [(0, 0), (0, 1), (1, 1), (2, 1)]
    assert slots.settled == 3  # slot 0 is free in round 3, and nobody has been placed there yet
    assert slots.end == 6


def test_static_batches_wait_for_their_longest_request() -> None:
    slots = StaticSlots(2)
    assert placed(slots, 3, 1, 1) == [(0, 0), (0, 1), (3, 0)]
    assert slots.settled == 3
    assert placed(slots, 5) == [(3, 1)]
    assert slots.settled == slots.end == 8


def test_lengths_are_the_requests_own() -> None:
    """However they are asked for; a constant length is the same for all."""
    scenario = run_of(workload__output_tokens={"kind": "uniform", "low": 1, "high": 90}, workload__prompt_tokens=7)
    requests = Requests(scenario, None, Streams(1))
    lengths = requests.output_tokens(0, 50)
    assert requests.output_tokens(20, 5).tolist() == lengths[20:25].tolist()
    assert set(requests.prompt_tokens(0, 50).tolist()) == {7}


def test_a_request_ends_with_its_trace_or_earlier() -> None:
    trace = RankTrace(requests=((0,) * 10, (0,) * 200))
    bounded = Requests(run_of(workload__output_tokens=50), trace, Streams(1))
    assert bounded.output_tokens(0, 4).tolist() == [10, 50, 10, 50]


def test_an_endless_request_never_ends() -> None:
    requests = Requests(run_of(batch_size=3), None, Streams(1))
    assert requests.endless
    assert requests.total == 3
    assert requests.output_tokens(0, 3).tolist() == [ENDLESS] * 3
