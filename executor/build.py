"""The build: from the tokens just sent to a speculation cache for what may become of them.

It runs while the verifier verifies. Per round: one glue forward over the new positions of all rows, the
forks, one tree step per speculated token over all branches, and the store (see `executor.branches` for
positions and masks).
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from executor.branches import Forks, TreeSteps, fork_columns, forks
from executor.config import EngineConfig
from executor.contexts import Contexts, Ints
from executor.decoder import Decoder
from executor.drafting import Sampler, prefill_contexts
from executor.fan_out import FanOutPlan
from executor.inbox import Inbox
from executor.messages import OutcomeMessage, SlotState
from executor.ranks import bonus_ranks
from executor.speculation_cache import SpeculationCache
from executor.vocabulary import HeadVocabulary
from ssdsim.records import Source


class Sent:
    """What the last reply proposed, per slot; the tokens themselves wait in the contexts."""

    def __init__(self, num_slots: int) -> None:
        self.slots: Ints = np.empty(0, np.int64)  # those that the reply spoke of
        self.sources: Ints = np.zeros(num_slots, np.int64)
        self.num_proposed: Ints = np.zeros(num_slots, np.int64)


class Builder:
    """Fills the speculation cache; keeps the glue forward's logits, which rank the bonus token that comes."""

    def __init__(
        self,
        config: EngineConfig,
        decoder: Decoder,
        contexts: Contexts,
        vocabulary: HeadVocabulary,
        sampler: Sampler,
        plan: FanOutPlan,
    ) -> None:
        self._lookahead, self._on_late = config.num_speculative_tokens, config.drafting.on_late
        self._decoder, self._contexts, self._vocabulary = decoder, contexts, vocabulary
        self._sampler, self._plan = sampler, plan
        self.cache = SpeculationCache(config.batch_size, max(1, plan.max_branches()), self._lookahead)
        self.glue_s = self.tree_s = self.store_s = 0.0
        self.num_branches = 0
        self._glued: tuple[Ints, Tensor, Tensor] | None = None

    def build(self, sent: Sent, inbox: Inbox | None) -> None:
        """Prepare for every likely outcome of `sent`; `inbox` tells when the outcome has overtaken the
        build."""
        self.cache.clear()
        self.glue_s = self.tree_s = self.store_s = 0.0
        self.num_branches = 0
        self._glued = None
        if not len(sent.slots):
            return
        started = perf_counter()
        logits, excluded = self._glue(sent)
        glued = perf_counter()
        self.glue_s = glued - started
        branches = self._fork(sent)
        if branches is None:
            return
        columns = fork_columns(logits, excluded, branches)
        tokens = self._vocabulary.to_tokens(columns)
        self.cache.open(sent.slots, branches.num_accepted, tokens.cpu().numpy(), branches.valid)
        chains, probs = self._grow(sent.slots, branches, tokens, inbox)
        grown = perf_counter()
        self.tree_s = grown - glued
        if chains is None:
            self.cache.clear()
        else:
            self.cache.store(sent.slots, chains.cpu().numpy(), probs)
        self.store_s = perf_counter() - grown

    def rank(self, slots: Ints, num_accepted: Ints, bonus_tokens: Ints) -> Ints:
        """Rank [n] of the bonus tokens among their position's candidates, 1 the best; -1 where it is not
        known."""
        if self._glued is None:
            return np.full(len(slots), -1, np.int64)
        glued_slots, logits, excluded = self._glued
        rows = torch.from_numpy(np.searchsorted(glued_slots, slots)).to(logits.device)
        positions = torch.from_numpy(num_accepted).to(logits.device)
        columns = self._vocabulary.to_columns(torch.from_numpy(bonus_tokens).to(logits.device))
        return bonus_ranks(logits[rows, positions], columns, excluded[rows, positions])

    def _glue(self, sent: Sent) -> tuple[Tensor, Tensor]:
        """Feed bonus token and proposal of each row; logits [n, w, H] and the column [n, w] that a
        rejection rules out."""
        rows, num_proposed = sent.slots, sent.num_proposed[sent.slots]
        starts = self._contexts.num_tokens[rows] - 1
        prefill_contexts(self._decoder, self._contexts, rows, 1)
        self._decoder.rollback(rows, starts)
        fed = self._contexts.slices(rows, starts, num_proposed + 1)
        logits = self._decoder.extend(rows, fed, num_proposed + 1)
        excluded = np.full(fed.shape, -1, np.int64)
        excluded[:, :-1] = fed[:, 1:]
        # Behind a row's last proposed token nothing was rejected, whatever the padding holds.
        excluded[np.arange(fed.shape[1]) >= num_proposed[:, None]] = -1
        columns = torch.from_numpy(excluded).to(logits.device)
        if self._vocabulary.token_ids is not None:
            columns = torch.where(columns >= 0, self._vocabulary.to_columns(columns), columns)
        self._glued = (rows, logits, columns)
        return logits, columns

    def _fork(self, sent: Sent) -> Forks | None:
        vectors = [
            self._plan.vector(Source(source), int(count))
            for source, count in zip(sent.sources[sent.slots], sent.num_proposed[sent.slots], strict=True)
        ]
        self.num_branches = sum(sum(vector) for vector in vectors)
        return forks(vectors) if self.num_branches else None

    def _grow(
        self, rows: Ints, branches: Forks, tokens: Tensor, inbox: Inbox | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Chains [n, B, k] behind the forking tokens and their distributions [n, B, k, H]; None: given up."""
        steps = TreeSteps(self._decoder, rows, self._contexts.num_tokens[rows], branches, self._lookahead)
        positions = self._contexts.num_tokens[rows][:, None] + branches.num_accepted + 1
        num_cached = self._plan.vector(Source.HIT, self._lookahead)
        chains: list[Tensor] = []
        distributions: list[Tensor] = []
        for index in range(self._lookahead):
            logits = self._decoder.model.forward(steps.step(index, tokens), self._decoder.cache)
            cached_here = np.full(len(rows), num_cached[index])
            columns, probs = self._sampler.draw(logits, rows, positions + index, cached_here)
            tokens = self._vocabulary.to_tokens(columns)
            chains.append(tokens)
            if probs is not None:
                distributions.append(probs)
            if inbox is not None and self._on_late != "wait" and inbox.arrived():
                if self._on_late == "truncate":
                    break
                if self._nothing_hits(inbox.peek()[0]):
                    return None, None
        return torch.stack(chains, dim=2), torch.stack(distributions, dim=2) if distributions else None

    def _nothing_hits(self, outcome: OutcomeMessage) -> bool:
        """Whether no row that goes on would find its outcome in the cache that is being built."""
        slots = outcome.slots
        rows = np.flatnonzero((slots["state"] == SlotState.CONTINUE) & (slots["num_accepted"] >= 0))
        found = self.cache.lookup(rows, slots["num_accepted"][rows], slots["bonus_token"][rows])
        return bool((found < 0).all())
