"""Requests must not share their luck: the table of uniforms is independent from request to request."""

from __future__ import annotations

import numpy as np
import pytest

from ssdsim.sim import streams
from ssdsim.sim.streams import Stream, Streams

REQUESTS, ROUNDS, SEEDS = 4000, 64, 24
BELOW = 0.3


def common_part() -> float:
    """z of the variance of counts: how many of 250 requests drew below .3 in a round, 16 x 64 x 24 such counts.

    Independent draws give the binomial's variance, and z a standard normal; requests are taken 16 apart, so that each
    comes from a band of its own.
    """
    counts = []
    for seed in range(SEEDS):
        table = Streams(seed).per_round(Stream.ACCEPTANCE, np.arange(REQUESTS), 0, ROUNDS)
        counts.append((table.reshape(250, 16, ROUNDS) < BELOW).sum(axis=0).ravel())
    centred = (np.concatenate(counts) - 250 * BELOW) / np.sqrt(250 * BELOW * (1 - BELOW))
    return float((np.mean(centred**2) - 1.0) / np.sqrt(2.0 / centred.size))


def test_counts_over_requests_vary_as_independent_draws_do() -> None:
    """|z| < 4.5: a right generator fails once in 150,000; the seeds are fixed."""
    assert abs(common_part()) < 4.5


def test_bands_a_power_of_two_apart_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the distance 2^64 PCG's bands form arithmetic progressions: the counts' variance is a third too large."""
    monkeypatch.setattr(streams, "_BAND", 1 << 64)
    assert common_part() > 4.5
