"""Exact throughput of a closed loop: b slots refilled at once, requests of finite length (THEORY 2.4).

A slot serves request after request, and in round index it is a regenerative chain that knows nothing of the
other slots: its law in a round, long after the start, is

    expected rounds of a request spent in (source, end) / expected rounds of a request,

slots are independent, and `round_time` turns that into the mean round. Used by `evaluate` for closed
arrivals; the simulator's round must be, and is tested to be, this one:

1. Verification (window) runs over the rows of all b slots, next to it the build of the next cache. n counts
   the drafted rows: those answered by a hit and those of a request's first round drafted just in time.
2. A slot whose request has all its tokens FINISHES: its last round emits only the tokens that were missing,
   it looks nothing up, and the next request takes the slot at once. Every other slot looks up: HIT or MISS.
3. Before the next verification the drafter works through the gap: the fallback of the M misses and the first
   drafting of the A admitted requests, one after the other, each for all its rows together; or one drafting
   of all M + A rows where the fallback drafts just in time. A hit costs nothing. With `on_late = wait` the
   gap starts when window and build have ended, and a late build is waited for in every round; with `abort` it
   starts when the window has ended, and a late build is waited for only if some slot hit.
4. With `first_round = jit` the first row of a request is drafted, neither hit nor miss. With `first_round =
   miss` it is answered by the fallback, and an admission is one more miss in every respect.

Requests may differ in length and acceptance. Both enter by rounds: slow requests fill more of them. The law
is that of a loop long running; a chain that cannot forget its phase (every request takes the same number of
rounds, surely) keeps the phases it started with, and they are then taken at random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, Real, as_real
from ssdsim.theory.finite import FirstRound, mix_kinds
from ssdsim.theory.lengths import LengthLaw, length_law, mean_tokens
from ssdsim.theory.round_time import End, Gap, RoundMean, RoundTimes, by_count, mean_round
from ssdsim.theory.row_law import RowLaw, end_kernel, slot_chain

DRAFTED, FALLBACK, FIRST = 0, 1, 2
"""Sources of a row as `SlotLaw.by_source` lists them; FIRST is a drafted row that no look-up preceded."""

_BLOCK_BYTES = 1 << 25
"""Chains are carried down the tokens left as many at a time as fit here."""


@dataclass(frozen=True, kw_only=True)
class SlotLaw:
    """What one slot does in a round, long after the start, per design point."""

    first_round: FirstRound
    by_source: FloatArray
    """[..., 3, 3]: probability of (DRAFTED | FALLBACK | FIRST, End) in a round; sums to 1."""
    tokens_per_round: FloatArray
    """[...]: mean tokens a slot emits, those beyond a request's length not counted."""
    rounds_per_request: FloatArray
    """[...]: mean rounds of a request; infinite for endless requests."""

    @property
    def law(self) -> FloatArray:
        """[..., 2, 3]: probability of (Source, End), first rounds among the drafted."""
        law = self.by_source[..., :2, :].copy()
        law[..., DRAFTED, :] += self.by_source[..., FIRST, :]
        return law

    @property
    def cache_hit_rate(self) -> FloatArray:
        """[...]: hits per look-up; with first_round = miss an admission counts as a look-up that missed."""
        ends = self.by_source.sum(axis=-2)
        missed = ends[..., End.MISS] + (ends[..., End.FINISHED] if self.first_round == "miss" else 0.0)
        return np.asarray(ends[..., End.HIT] / (ends[..., End.HIT] + missed))


@dataclass(frozen=True, kw_only=True)
class ClosedBatch:
    """Long-run behaviour of a closed loop, per design point."""

    rate_per_sequence: Real
    """Tokens per second of one slot."""
    request_rate: Real
    """Requests per second of the whole batch."""
    request_s: Real
    """Mean time of a request in its slot."""
    prob_all_hit: Real
    """Probability that every slot of the batch hits."""
    round: RoundMean


def slot_law(
    drafted: RowLaw,
    fallback: RowLaw,
    output_tokens: LengthLaw | None,
    *,
    first_round: FirstRound = "jit",
    request_kinds: FloatArray | None = None,
) -> SlotLaw:
    """The round-stationary law of a slot in a closed loop (THEORY 2.4).

    `output_tokens`: the law of request lengths, shared by all points; None for endless requests, where kinds
    of requests weigh as in the limit of long requests of equal length. `request_kinds` [Q]: share of each
    kind among the requests; the last leading axis of the row laws is then the kind.
    """
    if output_tokens is None:
        counts, tokens = _rounds_per_token(drafted, fallback), 1.0
    else:
        lengths = length_law(output_tokens)
        counts, tokens = request_rounds(drafted, fallback, lengths, first_round), mean_tokens(lengths)
    if request_kinds is not None:
        counts = mix_kinds(counts, request_kinds)
    rounds = counts.sum(axis=(-2, -1))
    return SlotLaw(
        first_round=first_round,
        by_source=counts / rounds[..., None, None],
        tokens_per_round=tokens / rounds,
        rounds_per_request=rounds if output_tokens is not None else np.full_like(rounds, np.inf),
    )


def closed_batch(law: SlotLaw, times: RoundTimes, *, first_draft_s: FloatArray | None = None) -> ClosedBatch:
    """The exact long-run throughput of `times.batch_size` slots that follow `law` (THEORY 2.4).

    `first_draft_s` [..., b+1]: first drafting of a = 0..b admitted requests, after the fallback of the
    misses. Without it admissions are drafted together with the misses and `fallback_s` counts both: for a
    fallback that drafts just in time, and for first_round = miss, which refuses anything else.
    """
    if first_draft_s is None:
        gaps = [Gap((End.MISS, End.FINISHED), times.fallback_s)]
    elif law.first_round == "miss":
        raise DomainError(
            "first_draft_s", "must be absent: with first_round = miss nothing is drafted first", "a time"
        )
    else:
        first_s = by_count("first_draft_s", first_draft_s)
        if first_s.shape[-1] != times.batch_size + 1:
            raise DomainError("first_draft_s", f"must have b+1 = {times.batch_size + 1} entries", first_s.shape)
        gaps = [Gap((End.MISS,), times.fallback_s), Gap((End.FINISHED,), first_s)]
    mean = mean_round(law.law, times, gaps)
    request_s = law.rounds_per_request * mean.round_s
    return ClosedBatch(
        rate_per_sequence=as_real(law.tokens_per_round / mean.round_s),
        request_rate=as_real(times.batch_size / request_s),
        request_s=as_real(request_s),
        prob_all_hit=as_real(law.by_source[..., End.HIT].sum(axis=-1) ** times.batch_size),
        round=mean,
    )


def request_rounds(drafted: RowLaw, fallback: RowLaw, lengths: FloatArray, first_round: FirstRound) -> FloatArray:
    """[..., 3, 3]: expected rounds of one request by (DRAFTED | FALLBACK | FIRST, End).

    `lengths` as `lengths.length_law` returns them. Renewal argument downwards in tokens left: a round with l
    tokens left follows each round with l + k + 1 left that accepted k, or it is a request's first.
    """
    if first_round not in ("jit", "miss"):
        raise DomainError("first_round", "must be 'jit' or 'miss'", first_round)
    kernel = end_kernel(drafted, fallback)
    chains = np.ascontiguousarray(np.moveaxis(kernel.reshape(-1, *kernel.shape[-3:]), 0, -1))
    block = max(1, _BLOCK_BYTES // (16 * (lengths.size + kernel.shape[-2])))
    parts = [
        _request_rounds(chains[..., start : start + block], lengths, first_round)
        for start in range(0, chains.shape[-1], block)
    ]
    counts = np.concatenate(parts, axis=-1)
    return np.moveaxis(counts, -1, 0).reshape(*kernel.shape[:-3], 3, 3)


def _request_rounds(kernel: FloatArray, lengths: FloatArray, first_round: FirstRound) -> FloatArray:
    """`request_rounds` as [3, 3, chains]; `kernel` [source, K+1, end, chains]."""
    visits = _visits(kernel, lengths, DRAFTED if first_round == "jit" else FALLBACK)
    counts = np.zeros((3, 3, kernel.shape[-1]))
    counts[DRAFTED], counts[FALLBACK] = (_ends(kernel[s], visits[:, s]) for s in (DRAFTED, FALLBACK))
    if first_round == "jit":
        counts[FIRST] = _ends(kernel[DRAFTED], np.broadcast_to(lengths[:, None], visits[:, 0].shape))
        counts[DRAFTED] -= counts[FIRST]
    return counts


def _visits(kernel: FloatArray, lengths: FloatArray, begins_as: int) -> FloatArray:
    """Expected rounds with l + 1 tokens left, [lengths, source, chains]; `kernel` [source, K+1, end,
    chains]."""
    _, reach, _, num_chains = kernel.shape
    longest = lengths.size
    visits = np.zeros((longest + reach, 2, num_chains))
    for left in range(longest - 1, -1, -1):
        np.einsum("ksc,skec->ec", visits[left + 1 : left + 1 + reach], kernel, out=visits[left])
        visits[left, begins_as] += lengths[left]
    return visits[:longest]


def _ends(kernel: FloatArray, visits: FloatArray) -> FloatArray:
    """Expected rounds [end, chains] of one source, by how they end; `kernel` [K+1, end, chains]."""
    near = min(len(kernel), len(visits))
    finishing = np.einsum("lc,lec->ec", visits[:near], kernel[::-1].cumsum(axis=0)[::-1][:near])
    going_on = np.maximum(visits.sum(axis=0) * kernel.sum(axis=0) - finishing, 0.0)
    return np.concatenate([going_on, finishing.sum(axis=0, keepdims=True)])


def _rounds_per_token(drafted: RowLaw, fallback: RowLaw) -> FloatArray:
    """[..., 3, 3]: long-run rounds per token of an endless request by (source, End)."""
    chain = slot_chain(drafted, fallback)
    law = chain.law / chain.tokens_per_round[..., None, None]
    return np.concatenate([law, np.zeros_like(law[..., :1, :])], axis=-2)
