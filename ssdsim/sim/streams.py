"""Named random streams: the same draw for the same purpose, whatever policy, batch or sink is simulated.

Every purpose has its own generator. A number is found by its place (request and round, or index), never by the order
in which the simulation happens to ask, so two policies that are compared meet the same requests with the same luck.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ROUNDS_PER_TILE = 64
_REQUESTS_PER_TILE = 16
_TILE = _REQUESTS_PER_TILE * ROUNDS_PER_TILE
_PERIOD = 1 << 128
_BAND = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Distance between bands of requests in the generator's sequence: its period over the golden ratio, as NumPy's own
`jumped` takes it. A power of two would not do: PCG's low bits repeat at such distances, and requests would
correlate."""
_BLOCK = 1024
"""Entries of a sequence that are drawn at once."""


class Stream(IntEnum):
    """What a random number is for."""

    PROMPT_TOKENS = 0
    OUTPUT_TOKENS = 1
    SPREAD = 2
    """The place of a request in the spread of acceptance between requests."""
    ACCEPTANCE = 3
    LOOKUP = 4
    VERIFY_JITTER = 5
    JIT_JITTER = 6
    GLUE_JITTER = 7
    TREE_JITTER = 8
    HOST_JITTER = 9


class Streams:
    """All random numbers of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tables = {
            stream: _RequestTable(np.random.SeedSequence(seed, spawn_key=(stream,)))
            for stream in (Stream.ACCEPTANCE, Stream.LOOKUP)
        }

    def per_request(self, stream: Stream, first: int, count: int) -> FloatArray:
        """[count] uniforms of the requests first .. first + count - 1."""
        return _from_blocks(first, count, lambda block: self._generator(stream, block).random(_BLOCK))

    def jitter(self, stream: Stream, cv: float, first: int, count: int) -> FloatArray:
        """[count] gamma variables of mean 1 and coefficient of variation `cv`, one per round from `first` on."""
        if cv == 0.0:
            return np.ones(count)
        shape, scale = cv**-2, cv**2
        return _from_blocks(first, count, lambda block: self._generator(stream, block).gamma(shape, scale, _BLOCK))

    def per_round(self, stream: Stream, requests: IntArray, first_round: int, num_rounds: int) -> FloatArray:
        """[requests, num_rounds] uniforms of the requests' own rounds from `first_round` on."""
        return self._tables[stream].rows(requests, first_round, num_rounds)

    def _generator(self, stream: Stream, block: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(stream, block)))


class _RequestTable:
    """An endless table of uniforms, one row per request and one column per round, drawn tile by tile."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self._bits = np.random.PCG64(seed)
        self._generator = np.random.Generator(self._bits)
        self._position = 0
        self._tile = lru_cache(maxsize=256)(self._draw_tile)

    def rows(self, requests: IntArray, first_round: int, num_rounds: int) -> FloatArray:
        result = np.empty((len(requests), num_rounds))
        bands, offsets = np.divmod(requests, _REQUESTS_PER_TILE)
        edges = [0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(requests)]
        for start, end in pairwise(edges):
            band, rows = int(bands[start]), _as_slice(offsets[start:end])
            column = 0
            while column < num_rounds:
                tile, inside = divmod(first_round + column, ROUNDS_PER_TILE)
                width = min(ROUNDS_PER_TILE - inside, num_rounds - column)
                result[start:end, column : column + width] = self._tile(band, tile)[rows, inside : inside + width]
                column += width
        return result

    def _draw_tile(self, band: int, tile: int) -> FloatArray:
        """Jump to the tile's place in the generator's sequence: no draw depends on what was drawn before."""
        position = band * _BAND + tile * _TILE
        if position != self._position:
            self._bits.advance((position - self._position) % _PERIOD)
        self._position = position + _TILE
        return self._generator.random((_REQUESTS_PER_TILE, ROUNDS_PER_TILE))


def _as_slice(indices: IntArray) -> slice | IntArray:
    """The same indices as a slice where they follow each other, which is copied several times faster."""
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices


def _from_blocks(first: int, count: int, draw: Callable[[int], FloatArray]) -> FloatArray:
    last = first + count
    blocks = range(first // _BLOCK, -(-last // _BLOCK))
    if not blocks:
        return np.empty(0)
    drawn = np.concatenate([draw(block) for block in blocks])
    return drawn[first - blocks.start * _BLOCK : last - blocks.start * _BLOCK]
