"""How a speculation that is not in the cache comes about: one small class per way, each with a `propose`.

`ChainDrafter` drafts now: SD's every round, a request's first round, the `jit` fallback. The others are
what a miss gets where drafting would keep the batch waiting. Another drafter is another class here.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from executor import ngram
from executor.contexts import Contexts, Ints
from executor.decoder import Decoder
from executor.sampling import Stream, best, probabilities, uniforms
from executor.vocabulary import HeadVocabulary
from ssdsim.records import Source
from ssdsim.verification import saguaro_reweight, sample, top_tokens

CATCH_UP = 2
"""Tokens that a row may be behind when it drafts, which is what a fully accepted chain leaves: fed with its first
step."""
PREFILL_TOKENS = 2048
"""Tokens that one forward prefills over all rows, padding included."""
PADDING_TOKENS = 64
"""Padding that a row may bring into a forward before it gets one of its own."""


class Proposal(NamedTuple):
    """Speculations of n rows."""

    tokens: Ints  # [n, K], padded
    num_proposed: Ints  # [n]
    draft_probs: Tensor | None  # [n, K, V], what the tokens were drawn from; None where every row is greedy


class Fallback(Protocol):
    """Something that answers a miss without drafting."""

    source: Source

    def propose(self, rows: Ints) -> Proposal:
        """Speculations for the requests in `rows`, which follow their contexts."""


class Sampler:
    """Draws the draft's tokens: greedy, or sampled with Saguaro's reweighting by the draw of their
    position."""

    def __init__(self, contexts: Contexts, downweight: float) -> None:
        self._contexts, self._downweight = contexts, downweight

    def draw(self, logits: Tensor, rows: Ints, positions: Ints, num_cached: Ints) -> tuple[Tensor, Tensor | None]:
        """Head columns [n, w] of the tokens at `positions` [n, w] and what they were drawn from [n, w, H].

        `num_cached` [n]: candidates that the next build prepares for a rejection of these tokens, whose
        probability Saguaro lowers.
        """
        if not self._contexts.sampled(rows):
            return best(logits), None
        probs = probabilities(logits, self._contexts.temperatures[rows])
        if self._downweight < 1.0 and num_cached.any():
            probs = self._reweighted(probs, logits, rows, num_cached)
        draws = torch.from_numpy(uniforms(self._contexts.seeds[rows], positions, Stream.DRAFT))
        return sample(probs, draws.to(probs.device)), probs

    def _reweighted(self, probs: Tensor, logits: Tensor, rows: Ints, num_cached: Ints) -> Tensor:
        """Saguaro's distribution; a greedy row's point mass stays as it is."""
        ranked = top_tokens(logits, int(num_cached.max()))
        counts = np.where(self._contexts.temperatures[rows] > 0, num_cached, 0)
        among = torch.from_numpy(np.arange(ranked.shape[-1]) < counts[:, None, None]).to(probs.device)
        cached = torch.zeros_like(probs, dtype=torch.bool).scatter_(-1, ranked, among.expand(ranked.shape))
        reweighted: Tensor = saguaro_reweight(probs, cached, self._downweight)
        return reweighted


class ChainDrafter:
    """K tokens drafted one after the other, now."""

    def __init__(
        self,
        decoder: Decoder,
        contexts: Contexts,
        vocabulary: HeadVocabulary,
        sampler: Sampler,
        num_tokens: int,
        extra_step: bool,
    ) -> None:
        """`extra_step` feeds the last token as well, as the official engine does."""
        self._decoder, self._contexts, self._vocabulary = decoder, contexts, vocabulary
        self._sampler, self._num_tokens, self._extra_step = sampler, num_tokens, extra_step

    def propose(self, rows: Ints, num_cached: Ints) -> Proposal:
        """Feed what the cache has not seen yet, then draft. `num_cached` [n, K], see `Sampler.draw`."""
        logits = self._catch_up(rows)
        ones = np.ones(len(rows), np.int64)
        tokens = np.empty((len(rows), self._num_tokens), np.int64)
        distributions = []
        for index in range(self._num_tokens):
            positions = self._contexts.num_tokens[rows][:, None] + index
            columns, probs = self._sampler.draw(logits, rows, positions, num_cached[:, index])
            drawn = self._vocabulary.to_tokens(columns).cpu().numpy()
            tokens[:, index : index + 1] = drawn
            if probs is not None:
                distributions.append(self._vocabulary.widen(probs))
            if index + 1 < self._num_tokens or self._extra_step:
                logits = self._decoder.extend(rows, drawn, ones)
        draft_probs = torch.cat(distributions, dim=1) if distributions else None
        return Proposal(tokens, np.full(len(rows), self._num_tokens), draft_probs)

    def _catch_up(self, rows: Ints) -> Tensor:
        """Logits [n, 1, H] after each row's context."""
        prefill_contexts(self._decoder, self._contexts, rows, CATCH_UP)
        starts = self._decoder.lengths[rows]
        widths = self._contexts.num_tokens[rows] - starts
        fed = self._contexts.slices(rows, starts, widths)
        return self._decoder.extend(rows, fed, widths, last_only=True)


def prefill_contexts(decoder: Decoder, contexts: Contexts, rows: Ints, tolerated: int) -> None:
    """Feed the contexts but their last token of rows where more than `tolerated` tokens wait, similar lengths
    together."""
    waiting = contexts.num_tokens[rows] - decoder.lengths[rows]
    order = np.argsort(waiting, kind="stable")
    rows, widths = rows[order], waiting[order] - 1
    first = int(np.searchsorted(widths, tolerated))
    while first < len(rows):
        last = first + _num_together(widths[first:])
        chosen = np.sort(rows[first:last])
        counts = contexts.num_tokens[chosen] - decoder.lengths[chosen] - 1
        decoder.feed(chosen, contexts.slices(chosen, decoder.lengths[chosen], counts), counts)
        first = last


def _num_together(widths: Ints) -> int:
    """How many of the rows of these ascending widths go into the next forward."""
    before = np.arange(len(widths))
    fits = widths * (before + 1) <= PREFILL_TOKENS
    close = np.diff(widths, prepend=widths[0]) * before <= PADDING_TOKENS
    together = fits & close
    return max(1, len(together) if together.all() else int(together.argmin()))


class NoProposal:
    """Propose nothing: verification costs one token per row and still emits one."""

    source = Source.NONE

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def propose(self, rows: Ints) -> Proposal:
        """Empty speculations."""
        tokens = np.zeros((len(rows), self._num_tokens), np.int64)
        return Proposal(tokens, np.zeros(len(rows), np.int64), None)


class RandomTokens:
    """Uniformly random tokens, the official engine's fast fallback."""

    source = Source.RANDOM

    def __init__(self, contexts: Contexts, vocab_size: int, num_tokens: int) -> None:
        self._contexts, self._vocab_size, self._num_tokens = contexts, vocab_size, num_tokens

    def propose(self, rows: Ints) -> Proposal:
        """K random tokens each."""
        positions = self._contexts.num_tokens[rows][:, None] + np.arange(self._num_tokens)
        draws = uniforms(self._contexts.seeds[rows], positions, Stream.RANDOM)
        tokens = (draws * self._vocab_size).astype(np.int64)
        probs = None
        if self._contexts.sampled(rows):
            probs = torch.full((*tokens.shape, self._vocab_size), 1.0 / self._vocab_size)
        return Proposal(tokens, np.full(len(rows), self._num_tokens), probs)


class NgramLookup:
    """What followed the same tokens earlier in the prompt or the output."""

    source = Source.NGRAM

    def __init__(self, contexts: Contexts, vocab_size: int, width: int, num_tokens: int) -> None:
        """At most `num_tokens` are proposed, in arrays of `width`."""
        self._contexts, self._vocab_size, self._width, self._num_tokens = contexts, vocab_size, width, num_tokens

    def propose(self, rows: Ints) -> Proposal:
        """Up to `num_tokens` each; where nothing is found, none."""
        tokens = np.zeros((len(rows), self._width), np.int64)
        num_proposed = np.zeros(len(rows), np.int64)
        for index, row in enumerate(rows):
            context = self._contexts.tokens[row, : self._contexts.num_tokens[row]]
            found = ngram.continuation(context, self._num_tokens)
            tokens[index, : len(found)] = found
            num_proposed[index] = len(found)
        probs = None
        if self._contexts.sampled(rows):
            # The proposal is certain given the context: a point mass, which makes the acceptance rule exact.
            proposed = torch.from_numpy(np.arange(self._width) < num_proposed[:, None])
            probs = torch.zeros(*tokens.shape, self._vocab_size)
            probs.scatter_(-1, torch.from_numpy(tokens).unsqueeze(-1), proposed.float().unsqueeze(-1))
        return Proposal(tokens, num_proposed, probs)
