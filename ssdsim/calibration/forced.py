"""Acceptance and hit curves of a pair from observations of texts, without any engine (`ssdsim.observation`).

The output of speculative decoding is distributed as the target's own, whatever the draft. So text that the target
wrote by itself is as good as an engine's, and given a text the rounds that would have led to it are a Markov chain: a
draft that reached token x has it accepted with probability min(1, q(x) / p(x)). `_visits` follows this chain, which
gives the positions where rounds start, tests and ends fall for any lookahead, and with them acceptance per position
and hit curves as an engine would have counted them, but without its noise. At temperature 0 the chain is certain.

Intervals come from resampling texts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.guesses import FAN_OUTS, GuessCounts
from ssdsim.calibration.hit_curves import (
    LEAST_TRIALS,
    CurveEstimate,
    estimate_law,
    quantity_of,
    ratios,
    resamples_of,
)
from ssdsim.observation import Observed
from ssdsim.quantities import Quantity

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ForcedEstimate:
    """What a lookahead would bring, under one condition, on some of the texts."""

    num_texts: int
    num_tokens: int
    acceptance: Quantity
    """Mean over all written positions: 1 - total variation, or the share of agreement at temperature 0."""
    per_position: tuple[Quantity, ...]
    """Conditional acceptance of the 1st, 2nd, ... drafted token."""
    mean_acceptance_length: Quantity
    """Tokens per drafted round, the bonus token included."""
    hit_rates: tuple[Quantity, ...]
    """After a drafted round with fan-out 1, 2, ... at every position."""
    rejection: CurveEstimate | None
    """None where no text says anything of it; the others likewise."""
    all_accepted: CurveEstimate | None
    after_fallback: CurveEstimate | None
    """After a round that proposed nothing."""


def estimate(observed: Observed, num_speculative_tokens: int, *, seed: int = 0) -> ForcedEstimate:
    """Estimates for lookahead `num_speculative_tokens` (at least 1)."""
    sums = _sums_by_text(observed, num_speculative_tokens)
    resamples = resamples_of(len(observed.lengths), seed)
    accepted, reached = sums.accepted.T[..., None], sums.reached.T[..., None]  # [K, texts, 1]
    shares = [ratios(a, r, resamples)[0] for a, r in zip(accepted, reached, strict=True)]
    hits, ends = sums.rejection_hits + sums.bonus_hits, sums.rejected + sums.all_accepted
    return ForcedEstimate(
        num_texts=len(observed.lengths),
        num_tokens=int(observed.lengths.sum()),
        acceptance=ratios(
            (observed.accept_prob * observed.written).sum(axis=1, keepdims=True),
            observed.lengths[:, None].astype(np.float64),
            resamples,
        )[0],
        per_position=tuple(shares),
        mean_acceptance_length=_length(sums, resamples),
        hit_rates=ratios(hits, ends, resamples),
        rejection=_curve(sums.rejection_hits, sums.rejected, resamples),
        all_accepted=_curve(sums.bonus_hits, sums.all_accepted, resamples),
        after_fallback=_curve(sums.start_hits, sums.starts, resamples),
    )


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Expected counts of each text."""

    reached: FloatArray
    """[texts, K]: how often each position of a draft is tested."""
    accepted: FloatArray
    """[texts, K]"""
    rejected: FloatArray
    """[texts, 1]: rounds that end with a rejection; the following likewise."""
    all_accepted: FloatArray
    starts: FloatArray
    rejection_hits: FloatArray
    """[texts, F]"""
    bonus_hits: FloatArray
    start_hits: FloatArray


def _sums_by_text(observed: Observed, lookahead: int) -> _Sums:
    visits = _visits(observed.accept_given_token, lookahead) * observed.written  # [K + 1, texts, tokens]
    tested, finished, starts = visits[:-1], visits[-1], visits[0]
    return _Sums(
        reached=tested.sum(axis=2).T,
        accepted=(tested * observed.accept_prob).sum(axis=2).T,
        rejected=(tested.sum(axis=0) * (1 - observed.accept_prob)).sum(axis=1, keepdims=True),
        all_accepted=finished.sum(axis=1, keepdims=True),
        starts=starts.sum(axis=1, keepdims=True),
        rejection_hits=np.einsum("st,stf->sf", tested.sum(axis=0), observed.rejection_hits),
        bonus_hits=np.einsum("st,stf->sf", finished, observed.bonus_hits),
        start_hits=np.einsum("st,stf->sf", starts, observed.bonus_hits),
    )


def _visits(accept: FloatArray, lookahead: int) -> FloatArray:
    """[K + 1, texts, tokens]: probability that a token stands at place i of its round, given the text.

    Place i < K: it is tested as the draft's (i + 1)-th token. Place K: all were accepted, it is the bonus token.
    """
    num_texts, num_tokens = accept.shape
    visits = np.zeros((lookahead + 1, num_texts, num_tokens))
    here = np.zeros((lookahead + 1, num_texts))
    here[0] = 1.0
    for token in range(num_tokens):
        visits[:, :, token] = here
        passed = here[:-1] * accept[:, token]
        here = np.concatenate([(here.sum(axis=0) - passed.sum(axis=0))[None], passed])
    return visits


def _length(sums: _Sums, resamples: FloatArray) -> Quantity:
    """One plus the survival to every position."""
    weights = np.concatenate([np.ones((1, resamples.shape[1])), resamples])
    shares = (weights @ sums.accepted) / np.maximum(weights @ sums.reached, 1e-300)
    return quantity_of(1 + np.cumprod(shares, axis=1).sum(axis=1))


def _curve(hits: FloatArray, trials: FloatArray, resamples: FloatArray) -> CurveEstimate | None:
    """`hits` [texts, F], `trials` [texts, 1]."""
    if trials.sum() < LEAST_TRIALS:
        return None
    fan_outs = np.array([f for f in FAN_OUTS if f <= hits.shape[1]])
    misses = np.clip(trials - hits[:, fan_outs - 1], 0.0, None)
    counts = GuessCounts(fan_outs, np.broadcast_to(trials, misses.shape), misses, num_guesses=round(trials.sum()))
    return CurveEstimate(
        fan_outs=tuple(range(1, hits.shape[1] + 1)),
        hit_probs=ratios(hits, trials, resamples),
        law=estimate_law(counts, resamples),
    )
