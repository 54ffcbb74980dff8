"""The speculator: answers every outcome at once where it can, and prepares for the next while it is verified.

One round is `answer` (look-up, and the fallback for what missed) and `build` (see `executor.build`).
`serve` runs them over a channel, in a process of its own; `executor.local` runs them in the verifier's. In
mode `sd` every round is drafted after its outcome and nothing is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from executor.build import Builder, Sent
from executor.config import EngineConfig
from executor.contexts import Contexts, Ints
from executor.decoder import Decoder, check_context
from executor.drafting import ChainDrafter, Fallback, NgramLookup, NoProposal, Proposal, RandomTokens, Sampler
from executor.fan_out import FanOutPlan, num_proposed_on_miss
from executor.inbox import Inbox
from executor.memory import check_cache_fits, out_of_memory_explained
from executor.messages import Channel, OutcomeMessage, SlotState, SpeculationMessage, admissions
from executor.models import LoadedModel, load_model
from executor.synthetic import SyntheticOutcomes
from executor.vocabulary import HeadVocabulary
from ssdsim import records
from ssdsim.policies import choose_fallback
from ssdsim.records import Lookup, Source
from ssdsim.scenario import Mode


@dataclass(frozen=True, kw_only=True)
class SpeculatorTask:
    """What a speculator in a process of its own is started with."""

    config: EngineConfig
    draft: str
    """Source of the draft's weights, see `executor.models`."""
    dtype: str = "float32"
    device: str = "cpu"
    embedding_source: str | None = None
    seed: int = 0
    """Of dummy weights."""
    cuda_graphs: bool = False


def prepare(task: SpeculatorTask) -> Callable[[Channel], None]:
    """Load the draft; what is returned serves a channel until the run is over."""
    with out_of_memory_explained(task.config):
        draft = load_model(
            task.draft,
            dtype=task.dtype,
            device=task.device,
            embedding_source=task.embedding_source,
            seed=task.seed,
            cuda_graphs=task.cuda_graphs,
        )
        return Speculator(task.config, draft).serve


class Speculator:
    """The draft's side of a run."""

    def __init__(self, config: EngineConfig, draft: LoadedModel) -> None:
        check_context(draft, config.max_context_tokens)
        lookahead, drafting = config.num_speculative_tokens, config.drafting
        vocabulary = HeadVocabulary(config.vocab_size, draft.head_token_ids)
        capacity = config.max_context_tokens + lookahead + 1
        self._config, self._vocabulary = config, vocabulary
        self._plan = FanOutPlan(drafting, config.behaviour, vocabulary.size)
        scratch = lookahead * self._plan.max_branches() if config.mode is Mode.SSD else 0
        self._contexts = Contexts(config.batch_size, capacity)
        check_cache_fits(config, draft.model, scratch)
        self._decoder = Decoder(draft.model, config.batch_size, capacity + scratch)
        sampler = Sampler(self._contexts, drafting.saguaro_downweight)
        extra_step = drafting.sd_extra_step and config.mode is Mode.SD
        self._chain = ChainDrafter(
            self._decoder, self._contexts, vocabulary, sampler, lookahead, extra_step=extra_step
        )
        self._fallbacks = _fallbacks(config, self._contexts)
        self._builder = Builder(config, self._decoder, self._contexts, vocabulary, sampler, self._plan)
        self._synthetic = SyntheticOutcomes(config, self._contexts) if config.synthetic else None
        self._sent = Sent(config.batch_size)
        self._reply = SpeculationMessage(config.layout)
        self._reply.slots["bonus_rank"] = -1
        self._settled: tuple[Ints, Ints, Ints] | None = None
        self._ready_s = perf_counter()

    def serve(self, channel: Channel) -> None:
        """Answer and build until told to stop. Raises ChannelClosed if the verifier is gone."""
        inbox = Inbox(channel, self._config.layout)
        with torch.inference_mode():
            while (delivery := inbox.take()) is not None:
                channel.send(self.answer(*delivery).buffer)
                self.build(inbox)

    def answer(self, outcome: OutcomeMessage, prompt: NDArray[np.int32]) -> SpeculationMessage:
        """The reply to an outcome: a speculation for every slot that goes on. The message is reused."""
        started = perf_counter()
        entries = self._settle(outcome)
        admitted = self._admit(outcome, prompt)
        continuing = np.flatnonzero(outcome.slots["state"] == SlotState.CONTINUE)
        found = entries[continuing] >= 0
        hits, misses = continuing[found], continuing[~found]
        self._sent.slots = np.sort(np.concatenate((continuing, admitted)))
        self._reply.slots["num_proposed"] = 0
        self._answer_hits(hits, entries[hits])
        looked_up = perf_counter()
        self._answer_rest(hits, misses, admitted)
        header = self._reply.view
        header["round"] = outcome.view["round"]
        header["received_s"], header["wait_s"] = started, started - self._ready_s
        header["lookup_s"] = looked_up - started
        builder = self._builder
        header["glue_s"], header["tree_s"], header["store_s"] = builder.glue_s, builder.tree_s, builder.store_s
        header["num_branches"] = builder.num_branches
        sent_s = perf_counter()
        header["fallback_s"], header["sent_s"] = sent_s - looked_up, sent_s
        return self._reply

    def build(self, inbox: Inbox | None = None) -> None:
        """What there is to do while the reply is verified: rank the bonus tokens, fill the cache."""
        if self._config.mode is Mode.SSD:
            if self._settled is not None and self._synthetic is None:
                self._reply.slots["bonus_rank"][self._settled[0]] = self._builder.rank(*self._settled)
            self._builder.build(self._sent, inbox)
        self._ready_s = perf_counter()

    def _settle(self, outcome: OutcomeMessage) -> Ints:
        """Take in what the verifier decided; the cache entry [slots] of each outcome, -1 where there is
        none."""
        slots, reply = outcome.slots, self._reply.slots
        rows = np.flatnonzero(slots["num_accepted"] >= 0)
        num_accepted = slots["num_accepted"][rows].astype(np.int64)
        bonus_tokens = slots["bonus_token"][rows].astype(np.int64)
        entries = np.full(len(slots), -1, np.int64)
        reply["fan_out_here"], reply["lookup"] = 0, Lookup.NOT_MADE
        if self._config.mode is Mode.SSD:
            entries[rows] = self._lookup(rows, num_accepted, bonus_tokens)
            reply["fan_out_here"][rows] = self._builder.cache.fan_out(rows, num_accepted)
            going_on = slots["state"][rows] == SlotState.CONTINUE
            found = np.where(entries[rows] >= 0, Lookup.HIT, Lookup.MISS)
            reply["lookup"][rows] = np.where(going_on, found, Lookup.FINAL)
        self._contexts.settle(rows, num_accepted, bonus_tokens)
        seen = np.minimum(self._decoder.lengths[rows], self._contexts.num_tokens[rows] - 1)
        self._decoder.rollback(rows, seen)
        self._settled = (rows, num_accepted, bonus_tokens)
        return entries

    def _lookup(self, rows: Ints, num_accepted: Ints, bonus_tokens: Ints) -> Ints:
        cache = self._builder.cache
        if self._synthetic is None:
            return cache.lookup(rows, num_accepted, bonus_tokens)
        sent = self._sent
        return self._synthetic.lookup(cache, rows, num_accepted, sent.num_proposed[rows], sent.sources[rows])

    def _admit(self, outcome: OutcomeMessage, prompt: NDArray[np.int32]) -> Ints:
        """Give slots to new requests; which."""
        admitted = []
        for slot, tokens in admissions(outcome, prompt):
            fields = outcome.slots[slot]
            self._contexts.admit(slot, tokens, int(fields["seed"]), float(fields["temperature"]))
            self._decoder.lengths[slot] = 0
            admitted.append(slot)
        return np.array(admitted, np.int64)

    def _answer_hits(self, hits: Ints, entries: Ints) -> None:
        if not len(hits):
            return
        cache, lookahead = self._builder.cache, self._config.num_speculative_tokens
        stored = cache.tokens(hits, entries)
        tokens = np.zeros((len(hits), lookahead), np.int64)
        tokens[:, : cache.num_tokens] = stored
        probs = None
        if self._contexts.sampled(hits):
            probs = self._vocabulary.widen(cache.draft_probs(hits, entries))
        self._propose(hits, Source.HIT, Proposal(tokens, np.full(len(hits), cache.num_tokens), probs))

    def _answer_rest(self, hits: Ints, misses: Ints, admitted: Ints) -> None:
        """What is not in the cache: drafted now, or answered by the fallback."""
        drafting = self._config.drafting
        self._reply.view["fallback"] = records.Fallback.NOT_NEEDED
        if self._config.mode is Mode.SD:
            return self._draft(self._sent.slots, Source.SD)
        if drafting.first_round == "miss":
            misses, admitted = np.sort(np.concatenate((misses, admitted))), misses[:0]
        action = "jit"
        if len(misses):
            action = choose_fallback(
                drafting.fallback.kind.value,
                len(misses),
                len(self._sent.slots),
                threshold=drafting.fallback.threshold,
                critical_batch_size=self._config.critical_batch_size,
            )
            self._reply.view["fallback"] = records.Fallback[action.upper()]
        if action != "jit":
            fallback = self._fallbacks[action]
            self._propose(misses, fallback.source, fallback.propose(misses))
            misses = misses[:0]
        elif len(misses) and drafting.redraft_hits:
            misses = np.sort(np.concatenate((misses, hits)))
        self._sent.sources[admitted] = Source.FIRST
        self._sent.sources[misses] = Source.JIT
        return self._draft(np.sort(np.concatenate((admitted, misses))))

    def _draft(self, rows: Ints, source: Source | None = None) -> None:
        """Draft `rows` now; their source is in place unless given."""
        if not len(rows):
            return
        if source is not None:
            self._sent.sources[rows] = source
        sources = self._sent.sources[rows].copy()
        lookahead = self._config.num_speculative_tokens
        num_cached = np.array([self._plan.vector(Source(s), lookahead)[:-1] for s in sources], np.int64)
        self._propose(rows, sources, self._chain.propose(rows, num_cached))

    def _propose(self, rows: Ints, source: Source | Ints, proposal: Proposal) -> None:
        """Write one way's speculations into the reply, and keep what the build needs of them."""
        slots = self._reply.slots
        slots["tokens"][rows] = proposal.tokens
        slots["num_proposed"][rows] = self._sent.num_proposed[rows] = proposal.num_proposed
        slots["source"][rows] = self._sent.sources[rows] = source
        self._contexts.propose(rows, proposal.tokens)
        probs = proposal.draft_probs
        if probs is not None and self._reply.draft_probs is not None:
            self._reply.draft_probs[rows, : probs.shape[1]] = probs.float().cpu().numpy()


def _fallbacks(config: EngineConfig, contexts: Contexts) -> dict[str, Fallback]:
    lookahead, vocab_size = config.num_speculative_tokens, config.vocab_size
    return {
        "none": NoProposal(lookahead),
        "random": RandomTokens(contexts, vocab_size, lookahead),
        "ngram": NgramLookup(contexts, vocab_size, lookahead, num_proposed_on_miss(config.drafting)),
    }
