"""Random numbers are found by their place, in whatever order and company they are asked for."""

from __future__ import annotations

import numpy as np
from runs import run_of

from ssdsim.sim import simulate
from ssdsim.sim.streams import Stream, Streams


def test_a_number_has_a_place() -> None:
    """Rounds 50-149 of requests 3, 17 and 40, asked at once or one by one, backwards."""
    whole = Streams(7).per_round(Stream.ACCEPTANCE, np.arange(48), 0, 160)
    streams = Streams(7)
    for request in (40, 17, 3):
        alone = streams.per_round(Stream.ACCEPTANCE, np.array([request]), 50, 100)
        np.testing.assert_array_equal(alone[0], whole[request, 50:150])
    together = streams.per_round(Stream.ACCEPTANCE, np.array([3, 17, 40]), 50, 100)
    np.testing.assert_array_equal(together, whole[[3, 17, 40], 50:150])


def test_sequences_do_not_depend_on_where_one_starts() -> None:
    whole = Streams(7).per_request(Stream.SPREAD, 0, 3000)
    np.testing.assert_array_equal(Streams(7).per_request(Stream.SPREAD, 1000, 1500), whole[1000:2500])


def test_every_purpose_and_seed_has_its_own_numbers() -> None:
    requests = np.arange(16)
    drawn = [
        Streams(seed).per_round(stream, requests, 0, 64).ravel()
        for seed in (0, 1)
        for stream in (Stream.ACCEPTANCE, Stream.LOOKUP)
    ]
    correlations = np.corrcoef(drawn)[np.triu_indices(4, k=1)]
    assert np.all(np.abs(correlations) < 0.14)  # 4.5 standard errors of 1024 pairs


def test_jitter_has_mean_one_and_its_coefficient_of_variation() -> None:
    """Of 100,000 gamma variables the mean errs by cv/316 and the cv by about cv/300: four errors each."""
    noise = Streams(3).jitter(Stream.TREE_JITTER, 0.3, 0, 100_000)
    assert abs(noise.mean() - 1.0) < 4 * 0.3 / 316
    assert abs(noise.std() - 0.3) < 4 * 0.3 / 300
    assert np.all(Streams(3).jitter(Stream.TREE_JITTER, 0.0, 0, 5) == 1.0)


def test_policies_meet_the_same_luck() -> None:
    """A request's k-th round accepts the same number of tokens under every policy that drafts it."""
    jit, fewer = (
        simulate(run_of(fallback__kind="jit", per_position=budget, batch_size=4)).records.outcomes.columns()
        for budget in (1, 4)
    )
    np.testing.assert_array_equal(jit["num_accepted"], fewer["num_accepted"])


def test_more_candidates_only_add_hits() -> None:
    """Look-ups share their luck as well: what hits at fan-out 1 hits at fan-out 4."""
    few, many = (
        simulate(run_of(fallback__kind="jit", per_position=budget, batch_size=4)).records.outcomes.columns()["lookup"]
        for budget in (1, 4)
    )
    hit = 1
    assert np.all(many[few == hit] == hit)
    assert (many == hit).sum() > (few == hit).sum()
