"""Exact time that a static batch of finite requests takes (THEORY 2.2, 2.3).

b sequences start together and the batch runs until the last has all its tokens. Clock times couple the
sequences, round counts do not: whatever the times, each sequence moves through (tokens left, source of its
row) on its own. So one forward pass over that chain gives, round by round, the probability that a sequence is
done, finishes, or goes on with a hit or a miss, and `round_time` turns independent slots into mean durations:

    E[makespan] = initial + sum_t E[D_t],  D_t = 0 once all are done,  a round that only finishes lasts its
    window.

The pass keeps tokens left in blocks of K + 1, the most a round can emit: a round reaches the block or the
next one, two small matrix products. Requests may differ in length and in acceptance (a spread between
requests is a mixture over kinds). A request that would overshoot its length emits only what remains. Used by
`evaluate` for static workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, Real, as_real, distribution, non_negative
from ssdsim.theory.joint_law import binomial_terms
from ssdsim.theory.lengths import LengthLaw, length_law, mean_tokens
from ssdsim.theory.round_time import End, RoundTimes, Source, mean_round
from ssdsim.theory.row_law import RowLaw, end_kernel

FirstRound = Literal["jit", "miss"]

_DONE = 1e-15
"""The pass stops once every sequence still runs with a smaller probability than this."""
_STATE_BYTES = 1 << 19
"""As many chains are carried together as keep their state in the second-level cache."""


@dataclass(frozen=True, kw_only=True)
class StaticBatch:
    """A batch from its first round to its last, per design point."""

    makespan_s: Real
    """Mean time until the last sequence is done."""
    rate_per_sequence: Real
    """Mean tokens of a sequence over the mean makespan."""
    rounds_per_sequence: Real
    rounds: Real
    """Mean rounds of the batch, the longest of its sequences."""


def static_batch(
    drafted: RowLaw,
    fallback: RowLaw,
    times: RoundTimes | Sequence[RoundTimes],
    output_tokens: LengthLaw,
    *,
    initial_s: Real = 0.0,
    first_round: FirstRound = "jit",
    request_kinds: FloatArray | None = None,
) -> StaticBatch:
    """Mean makespan and rate of a static batch (THEORY 2.3; b = 1: the recursion of 2.2).

    `times`: one RoundTimes if the launched batch is paid for to the end, whatever is still active (then
    window_s and build_s have one column); else a sequence of b, entry r-1 holding the times of r active rows.
    `initial_s`: first drafting of the whole batch (jit), or its fallback (miss). `request_kinds` [Q]: share
    of each kind of request; the last leading axis of the row laws is then the kind.
    """
    per_active = [times] if isinstance(times, RoundTimes) else list(times)
    slots = per_active[-1].batch_size
    if not isinstance(times, RoundTimes) and [t.batch_size for t in per_active] != list(range(1, slots + 1)):
        raise DomainError("times", "must hold the times of 1, 2, ..., b active rows", len(per_active))
    lengths = length_law(output_tokens)
    laws = round_laws(drafted, fallback, lengths, first_round, request_kinds)
    active = np.minimum(laws.sum(axis=(-2, -1)), 1.0)
    if isinstance(times, RoundTimes):
        round_s = np.asarray(mean_round(laws, times).round_s)
    else:
        round_s = _mean_over_active(laws, active, per_active)
    makespan_s = np.asarray(non_negative("initial_s", initial_s)) + round_s.sum(axis=0)
    rounds = (1.0 - (1.0 - active) ** slots).sum(axis=0)
    return StaticBatch(
        makespan_s=as_real(makespan_s),
        rate_per_sequence=as_real(mean_tokens(lengths) / makespan_s),
        rounds_per_sequence=as_real(active.sum(axis=0)),
        rounds=as_real(rounds),
    )


def _mean_over_active(laws: FloatArray, active: FloatArray, per_active: Sequence[RoundTimes]) -> FloatArray:
    """E[D_t] where times depend on how many rows are active: given r of them, they are again independent."""
    given_active = laws / np.maximum(active, np.finfo(float).tiny)[..., None, None]
    share = binomial_terms(len(per_active), active, 1.0 - active)
    rounds = [
        share[..., r] * np.asarray(mean_round(given_active, times).round_s)
        for r, times in enumerate(per_active, start=1)
    ]
    return np.asarray(np.sum(rounds, axis=0))


def round_laws(
    drafted: RowLaw,
    fallback: RowLaw,
    lengths: FloatArray,
    first_round: FirstRound,
    request_kinds: FloatArray | None = None,
) -> FloatArray:
    """[rounds, ..., 2, 3]: probability of (Source, End) of one sequence in its t-th round; the rest is
    "done"."""
    if first_round not in ("jit", "miss"):
        raise DomainError("first_round", "must be 'jit' or 'miss'", first_round)
    start = Source.DRAFTED if first_round == "jit" else Source.FALLBACK
    kernel = end_kernel(drafted, fallback)
    shape = kernel.shape[:-3]
    chains = kernel.reshape(-1, *kernel.shape[-3:])
    block = max(1, _STATE_BYTES // (16 * lengths.size))
    parts = [_forward(chains[i : i + block], lengths, start) for i in range(0, len(chains), block)]
    laws = np.zeros((max(len(part) for part in parts), len(chains), 2, 3))
    for i, part in enumerate(parts):
        laws[: len(part), i * block : i * block + part.shape[1]] = part
    laws = laws.reshape(-1, *shape, 2, 3)
    return laws if request_kinds is None else mix_kinds(laws, request_kinds)


def mix_kinds(laws: FloatArray, request_kinds: FloatArray) -> FloatArray:
    """[..., Q, 2, 3] averaged over the kinds of requests with shares `request_kinds` [Q]."""
    shares = distribution("request_kinds", request_kinds)
    if laws.ndim < 3 or shares.shape != laws.shape[-3:-2]:
        raise DomainError("request_kinds", "must match the last leading axis of the row laws", shares.shape)
    return np.asarray(np.einsum("...qse,q->...se", laws, shares))


def _forward(kernel: FloatArray, lengths: FloatArray, start: Source) -> FloatArray:
    """The t-th round's law for every chain. `kernel` [chains, 2, B, 2] -> [rounds, chains, 2, 3]."""
    num_chains, _, block, _ = kernel.shape
    num_blocks = -(-lengths.size // block)
    same, above, overshoot = _block_steps(kernel)
    state = np.zeros((num_chains, num_blocks + 1, block, 2))
    state.reshape(num_chains, -1, 2)[:, : lengths.size, start] = lengths
    state = state.reshape(num_chains, num_blocks + 1, 2 * block)
    stay = kernel.sum(axis=2)
    laws: list[FloatArray] = []
    while True:
        by_source = state.sum(axis=1).reshape(num_chains, block, 2).sum(axis=1)
        if by_source.sum(axis=1).max() <= _DONE:
            return np.array(laws)
        law = np.empty((num_chains, 2, 3))
        cut = (state[:, 0, None] @ overshoot).reshape(num_chains, 2, 2)
        law[..., : End.FINISHED] = np.maximum(by_source[..., None] * stay - cut, 0.0)
        law[..., End.FINISHED] = cut.sum(axis=-1)
        laws.append(law)
        alive = -(-(lengths.size - len(laws)) // block)
        state = _advance(state, same, above, alive)


def _advance(state: FloatArray, same: FloatArray, above: FloatArray, alive: int) -> FloatArray:
    following = np.zeros((len(state), alive + 1, state.shape[2]))
    if alive > 0:
        following[:, :alive] = state[:, :alive] @ same
        following[:, :alive] += state[:, 1 : alive + 1] @ above
    return following


def _block_steps(kernel: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How a round moves probability within a block of tokens left, from the block above, and past the end.

    `kernel` [chains, 2, B, 2] -> same and above [chains, 2B, 2B] over (place in block, source), overshoot
    [chains, 2B, 4] over (place in the lowest block, source) -> (source, end).
    """
    num_chains, _, block, _ = kernel.shape
    same = np.zeros((num_chains, block, 2, block, 2))
    above = np.zeros_like(same)
    for accepted in range(block):
        lower, upper = np.arange(accepted + 1), np.arange(accepted + 1, block)
        step = kernel[:, :, accepted]
        above[:, lower, :, lower + block - accepted - 1] = step
        same[:, upper, :, upper - accepted - 1] = step
    overshoot = np.zeros((num_chains, block, 2, 2, 2))
    from_here_on = kernel[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    for source in Source:
        overshoot[:, :, source, source] = from_here_on[:, source]
    width = 2 * block
    return (
        same.reshape(num_chains, width, width),
        above.reshape(num_chains, width, width),
        overshoot.reshape(num_chains, width, 4),
    )
