"""Outcomes drawn from a given law instead of decided by the models: for weights that are random, and to test times
alone.

Two models with dummy weights never agree, so their rounds would show none of the timeline that the real pair would.
With synthetic acceptance every forward, message and cache is real, and only three decisions are drawn, from the
configuration's `DraftBehaviour`: how many tokens are accepted, which token follows, and whether the look-up hits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from executor.config import DraftBehaviour, EngineConfig, all_accepted_curve
from executor.contexts import Contexts, Ints
from executor.sampling import Stream, uniforms
from executor.speculation_cache import SpeculationCache
from ssdsim.profile import Behaviour
from ssdsim.theory.acceptance import per_position


def law_of(behaviour: Behaviour, lookahead: int) -> DraftBehaviour:
    """What a profile says of acceptance and hits after a drafted round, as the law of synthetic outcomes.

    All requests are alike in it, whatever their spread in the profile.
    """
    acceptance = behaviour.acceptance.at(lookahead)
    after_draft = behaviour.hit_curves.after_draft
    return DraftBehaviour(
        acceptance_prob=acceptance,
        rejection_curve=after_draft.rejection.curve(),
        all_accepted_curve=after_draft.all_accepted_curve(acceptance[-1] if acceptance else 1.0),
    )


class SyntheticOutcomes:
    """The three decisions, by draws that belong to a request and a position like all others."""

    def __init__(self, config: EngineConfig, contexts: Contexts) -> None:
        self._contexts, self._vocab_size = contexts, config.vocab_size
        behaviour, lookahead = config.behaviour, config.num_speculative_tokens
        self._acceptance: NDArray[np.float64] = np.asarray(per_position(behaviour.acceptance_prob, lookahead))
        self._rejection, self._all_accepted = behaviour.rejection_curve, all_accepted_curve(behaviour)

    def outcome(self, rows: Ints, num_proposed: Ints) -> tuple[Ints, Ints]:
        """Accepted counts [n] and bonus tokens [n] of rows that proposed `num_proposed` [n] tokens."""
        starts, seeds = self._contexts.num_tokens[rows], self._contexts.seeds[rows]
        offsets = np.arange(len(self._acceptance))
        accepted = uniforms(seeds, starts[:, None] + offsets, Stream.ACCEPT) < self._acceptance
        accepted &= offsets < num_proposed[:, None]
        num_accepted: Ints = np.cumprod(accepted, axis=1).sum(axis=1)
        draws = uniforms(seeds, (starts + num_accepted)[:, None], Stream.BONUS)[:, 0]
        return num_accepted, (draws * self._vocab_size).astype(np.int64)

    def lookup(self, cache: SpeculationCache, slots: Ints, num_accepted: Ints, num_proposed: Ints) -> Ints:
        """Entries [n]: one of the position's candidates where the curve's draw is a hit, else -1."""
        fan_out = cache.fan_out(slots, num_accepted)
        rejected = np.atleast_1d(self._rejection.hit_prob(fan_out))
        hit_prob = np.where(num_accepted < num_proposed, rejected, self._all_accepted.hit_prob(fan_out))
        positions = (self._contexts.num_tokens[slots] + num_accepted)[:, None]
        hits = uniforms(self._contexts.seeds[slots], positions, Stream.LOOKUP)[:, 0] < hit_prob
        return np.where(hits, cache.first_entry(slots, num_accepted), -1)
