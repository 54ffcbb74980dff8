"""Outcomes drawn from a given law instead of decided by the models: for weights that are random, and to test times
alone.

Two models with dummy weights never agree, so their rounds would show none of the timeline that the real pair would.
With synthetic acceptance every forward, message and cache is real, and only three decisions are drawn, from the
configuration's `DraftBehaviour`: how many tokens are accepted, which token follows, and whether the look-up hits. All
three depend on who proposed, as in the simulator: random tokens are never accepted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor.config import DraftBehaviour, EngineConfig, all_accepted_curve
from executor.contexts import Contexts, Ints
from executor.sampling import Stream, uniforms
from executor.speculation_cache import SpeculationCache
from ssdsim.profile import Behaviour, CurvePair
from ssdsim.records import Source
from ssdsim.theory.acceptance import per_position
from ssdsim.theory.hit_curve import HitCurve

_NOT_DRAFTED = (Source.NONE, Source.RANDOM, Source.NGRAM)


def law_of(behaviour: Behaviour, lookahead: int) -> DraftBehaviour:
    """What a profile says of acceptance and hits after a drafted round, as the law of synthetic outcomes.

    All requests are alike in it, whatever their spread in the profile.
    """
    acceptance, found = behaviour.acceptance.at(lookahead), behaviour.ngram_acceptance
    agreement = acceptance[-1] if acceptance else 1.0
    curves = behaviour.hit_curves
    rejection, all_accepted = _curves(curves.after_draft, agreement)
    return DraftBehaviour(
        acceptance_prob=acceptance,
        rejection_curve=rejection,
        all_accepted_curve=all_accepted,
        after_redraft=None if curves.after_redraft is None else _curves(curves.after_redraft, agreement),
        after_fallback=None if curves.after_fallback is None else _curves(curves.after_fallback, agreement),
        ngram_acceptance_prob=0.0 if found is None else found.at(lookahead),
    )


def _curves(pair: CurvePair, agreement: float) -> tuple[HitCurve, HitCurve]:
    return pair.rejection.curve(), pair.all_accepted_curve(agreement)


class SyntheticOutcomes:
    """The three decisions, by draws that belong to a request and a position like all others."""

    def __init__(self, config: EngineConfig, contexts: Contexts) -> None:
        self._contexts, self._vocab_size = contexts, config.vocab_size
        behaviour, lookahead = config.behaviour, config.num_speculative_tokens
        drafted = per_position(behaviour.acceptance_prob, lookahead)
        self._acceptance: NDArray[np.float64] = np.tile(drafted, (len(Source), 1))  # [source, K]
        self._acceptance[Source.RANDOM] = 0
        self._acceptance[Source.NGRAM] = per_position(behaviour.ngram_acceptance_prob, lookahead)
        last = all_accepted_curve(behaviour)
        self._after_draft = (behaviour.rejection_curve, last)
        self._after_redraft = behaviour.after_redraft or self._after_draft
        self._after_fallback = behaviour.after_fallback or (last, last)

    def outcome(self, rows: Ints, num_proposed: Ints, sources: Ints) -> tuple[Ints, Ints]:
        """Accepted counts [n] and bonus tokens [n] of rows for which `sources` [n] proposed `num_proposed` [n]
        tokens."""
        starts, seeds = self._contexts.num_tokens[rows], self._contexts.seeds[rows]
        offsets = np.arange(self._acceptance.shape[1])
        accepted = uniforms(seeds, starts[:, None] + offsets, Stream.ACCEPT) < self._acceptance[sources]
        accepted &= offsets < num_proposed[:, None]
        num_accepted: Ints = np.cumprod(accepted, axis=1).sum(axis=1)
        draws = uniforms(seeds, (starts + num_accepted)[:, None], Stream.BONUS)[:, 0]
        return num_accepted, (draws * self._vocab_size).astype(np.int64)

    def lookup(
        self, cache: SpeculationCache, slots: Ints, num_accepted: Ints, num_proposed: Ints, sources: Ints
    ) -> Ints:
        """Entries [n]: one of the position's candidates where the curve's draw is a hit, else -1."""
        fan_out = cache.fan_out(slots, num_accepted)
        kinds = (sources == Source.JIT, np.isin(sources, _NOT_DRAFTED))
        after = [
            np.where(num_accepted < num_proposed, *(np.atleast_1d(curve.hit_prob(fan_out)) for curve in curves))
            for curves in (self._after_redraft, self._after_fallback, self._after_draft)
        ]
        hit_prob = np.select(kinds, after[:2], after[2])
        positions = (self._contexts.num_tokens[slots] + num_accepted)[:, None]
        hits = uniforms(self._contexts.seeds[slots], positions, Stream.LOOKUP)[:, 0] < hit_prob
        return np.where(hits, cache.first_entry(slots, num_accepted), -1)
