"""The verifier: the target's side of a round, from proposed tokens to accepted counts and bonus tokens.

A request enters with all of its prompt but the last token in the cache. Every round then feeds the newest
token and what was proposed behind it, so a first round, plain decoding and a speculation differ in nothing
but their width.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.config import EngineConfig
from executor.contexts import Contexts, Ints
from executor.decoder import Decoder, check_context
from executor.drafting import prefill_contexts
from executor.models import LoadedModel
from executor.sampling import Stream, best, probabilities, uniforms
from executor.synthetic import SyntheticOutcomes
from ssdsim import verification


class Outcome(NamedTuple):
    """What became of the speculations of n rows."""

    num_accepted: Ints  # [n]
    bonus_tokens: Ints  # [n]
    verified_s: float
    """When the logits were there; what followed is acceptance."""
    context_tokens: float
    """Mean context of the rows when they were verified."""


class Verifier:
    """The target, its cache, and the contexts of all slots."""

    def __init__(self, config: EngineConfig, target: LoadedModel, decoder: Decoder | None = None) -> None:
        """`decoder` replaces the plain one over `target`, for instance by one that leads a group of ranks."""
        check_context(target, config.max_context_tokens)
        self._lookahead = config.num_speculative_tokens
        self._padded = config.drafting.padded_verify
        capacity = config.max_context_tokens + self._lookahead + 1
        self.contexts = Contexts(config.batch_size, capacity)
        self._decoder = decoder or Decoder(target.model, config.batch_size, capacity)
        self._synthetic = SyntheticOutcomes(config, self.contexts) if config.synthetic else None

    def admit(self, slot: int, tokens: NDArray[np.integer], seed: int, temperature: float) -> None:
        """Give the slot to a new request; `prefill` feeds it."""
        self.contexts.admit(slot, tokens, seed, temperature)
        self._decoder.lengths[slot] = 0

    def prefill(self, rows: Ints) -> None:
        """Feed what new requests bring, up to their last token."""
        prefill_contexts(self._decoder, self.contexts, rows, 1)

    def verify(
        self,
        rows: Ints,
        tokens: Ints,
        num_proposed: Ints,
        draft_probs: NDArray[np.float32] | None,
        sources: Ints,
    ) -> Outcome:
        """Accept a prefix of `tokens` [n, K] of each row and add the bonus token; caches and contexts follow.

        `draft_probs` [n, K, V] belong to rows above temperature 0, and are read up to `num_proposed` [n]. `sources`
        [n], who proposed, matter to synthetic outcomes only.
        """
        widest = self._lookahead if self._padded else int(num_proposed.max())
        self.contexts.propose(rows, tokens[:, :widest])
        starts = self._decoder.lengths[rows]
        widths = num_proposed + 1
        fed = self.contexts.slices(rows, starts, np.maximum(widths, widest + 1))
        logits = self._decoder.extend(rows, fed, widths)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        verified_s = perf_counter()
        if self.contexts.sampled(rows):
            num_accepted, bonus = self._accept_sampled(rows, logits, fed[:, 1:], num_proposed, draft_probs)
        else:
            num_accepted, bonus = _accept_greedy(logits, fed[:, 1:], num_proposed)
        if self._synthetic is not None:
            num_accepted, bonus = self._synthetic.outcome(rows, num_proposed, sources)
        self._decoder.rollback(rows, starts + 1 + num_accepted)
        context_tokens = float(self.contexts.num_tokens[rows].mean())
        self.contexts.settle(rows, num_accepted, bonus)
        return Outcome(num_accepted, bonus, verified_s, context_tokens)

    def _accept_sampled(
        self,
        rows: Ints,
        logits: Tensor,
        tokens: Ints,
        num_proposed: Ints,
        draft_probs: NDArray[np.float32] | None,
    ) -> tuple[Ints, Ints]:
        """The acceptance rule over `tokens` [n, w-1]; a greedy row's distributions are point masses."""
        contexts, device = self.contexts, logits.device
        p_target = probabilities(logits, contexts.temperatures[rows])  # [n, w, V]
        p_draft, proposed = self._draft_distributions(rows, tokens, num_proposed, draft_probs, p_target)
        positions = contexts.num_tokens[rows][:, None] + np.arange(tokens.shape[1] + 1)
        accept_draws = uniforms(contexts.seeds[rows], positions[:, :-1], Stream.ACCEPT)
        accept = verification.accept_probs(p_target[:, :-1], p_draft[:, :-1], torch.from_numpy(tokens).to(device))
        accept = accept * proposed
        num_accepted = verification.num_accepted(accept, torch.from_numpy(accept_draws).to(device))
        # Where nothing was rejected the draft's distribution is zero, and the residual is the target's own.
        here = num_accepted.view(-1, 1, 1).expand(-1, 1, p_target.shape[-1])
        residual = verification.residual(p_target.gather(1, here)[:, 0], p_draft.gather(1, here)[:, 0])
        accepted: Ints = num_accepted.cpu().numpy()
        bonus_positions = (contexts.num_tokens[rows] + accepted)[:, None]
        bonus_draws = uniforms(contexts.seeds[rows], bonus_positions, Stream.BONUS)[:, 0]
        bonus = verification.sample(residual, torch.from_numpy(bonus_draws).to(device))
        return accepted, bonus.cpu().numpy()

    def _draft_distributions(
        self,
        rows: Ints,
        tokens: Ints,
        num_proposed: Ints,
        draft_probs: NDArray[np.float32] | None,
        p_target: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """What each token was drawn from [n, w, V], zero where nothing was proposed, and where that is [n,
        w-1]."""
        proposed = torch.from_numpy(np.arange(tokens.shape[1]) < num_proposed[:, None]).to(p_target)
        p_draft = torch.zeros_like(p_target)
        if tokens.shape[1]:
            hot = torch.from_numpy(self.contexts.temperatures[rows] > 0).to(p_target.device)
            masses = torch.from_numpy(tokens).to(p_target.device).unsqueeze(-1)
            point = torch.zeros_like(p_draft[:, :-1]).scatter_(-1, masses, 1.0)
            assert draft_probs is not None
            sent = torch.from_numpy(draft_probs[:, : tokens.shape[1]]).to(p_target.device)
            p_draft[:, :-1] = torch.where(hot.view(-1, 1, 1), sent, point) * proposed.unsqueeze(-1)
        return p_draft, proposed


def _accept_greedy(logits: Tensor, tokens: Ints, num_proposed: Ints) -> tuple[Ints, Ints]:
    """The limit at temperature 0: accept while the draft proposed the target's own token."""
    best_tokens = best(logits).cpu().numpy()  # [n, w]
    offered = np.where(np.arange(tokens.shape[1]) < num_proposed[:, None], tokens, -1)
    num_accepted: Ints = np.asarray(verification.num_accepted_greedy(best_tokens[:, :-1], offered))
    return num_accepted, best_tokens[np.arange(len(best_tokens)), num_accepted]
