"""The phases of a round in seconds: the one protocol that the exact model, the simulator and the planner read.

`components` adds up measured parts (verification, draft step, glue forward, tree step, ...); `ratios` is the paper's
own abstraction: verification is one unit, building the whole cache T_p, drafting one chain on a miss T_b, whatever
the width. Every method takes arrays of one broadcastable shape.
"""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from ssdsim.costs.terms import ConstantTerm, CostTerm
from ssdsim.schema import Document, NonNegativeFloat, PositiveFloat, Seconds

FloatArray = NDArray[np.float64]
_ZERO = ConstantTerm(seconds=0.0)


class RoundCosts(Protocol):
    """What a round needs to know. `sequences` counts rows, `context_tokens` is the mean context of one row."""

    def verify_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        """One target forward over `query_tokens` new positions in all; with one per row it is an AR step."""

    def verify_beside_build_s(
        self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike
    ) -> FloatArray:
        """The same while the speculator builds, as far as both share the machine."""

    def prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        """Reading the prompts of `requests` on the target, one after the other, before their first round."""

    def draft_prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        """Reading them on the draft, before their first chain."""

    def sd_draft_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        """SD's drafting: `num_steps` sequential draft steps on SD's own draft placement."""

    def jit_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        """Just-in-time drafting of one chain per row on the speculator's device."""

    def glue_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        """The glue forward over `query_tokens` new positions in all."""

    def tree_s(self, branches: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        """`num_steps` sequential steps over `branches` branches."""

    def store_s(self, branches: ArrayLike) -> FloatArray:
        """Storing the finished branches in the speculation cache."""

    def ngram_s(self, sequences: ArrayLike) -> FloatArray:
        """Proposing by n-gram look-up for `sequences` rows."""

    def lookup_s(self, sequences: ArrayLike) -> FloatArray: ...

    def accept_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray: ...

    def sample_s(self, sequences: ArrayLike) -> FloatArray:
        """AR's choice of the next token, where nothing is to be accepted."""

    def reply_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray: ...

    def outcome_s(self, sequences: ArrayLike) -> FloatArray: ...

    def host_s(self, sequences: ArrayLike) -> FloatArray: ...


class Jitter(Document):
    """Coefficients of variation of the phases; a phase lasts its mean times a gamma variable of mean one."""

    verify: NonNegativeFloat = 0.0
    draft: NonNegativeFloat = 0.0
    """Drafting and building on the speculator's side."""
    host: NonNegativeFloat = 0.0


class ComponentCosts(Document):
    """A round from measured or modelled parts."""

    kind: Literal["components"] = "components"
    verify: CostTerm
    draft_start: CostTerm = _ZERO
    """What a chain of SD's drafter takes beyond its steps: catching up, handing over."""
    draft_step: CostTerm
    """One step of SD's drafter over `sequences` rows, on SD's placement."""
    jit_start: CostTerm = _ZERO
    """What a chain that is drafted just in time takes beyond its steps."""
    jit_step: CostTerm | None = None
    """One step of a single chain per row on the speculator's device; the tree step at that width where absent."""
    glue: CostTerm = _ZERO
    tree_start: CostTerm = _ZERO
    """What a tree takes beyond its steps: choosing the branches, and what each of them may see."""
    tree_step: CostTerm
    """One step over `sequences` branches (one query token each)."""
    store: CostTerm = _ZERO
    ngram: CostTerm = _ZERO
    lookup: CostTerm = _ZERO
    accept: CostTerm = _ZERO
    sample: CostTerm = _ZERO
    """AR's choice of the next token."""
    reply: CostTerm = _ZERO
    outcome: CostTerm = _ZERO
    host: CostTerm = _ZERO
    prefill: CostTerm = _ZERO
    """Reading one request's prompt (of `query_tokens`) on the target; SSD's speculator drafts meanwhile."""
    draft_prefill: CostTerm = _ZERO
    """Reading it on the draft, before the request's first chain."""
    verify_contention: PositiveFloat = 1.0
    """How many times as long verification takes beside a build as alone."""
    jitter: Jitter = Jitter()

    def verify_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self.verify(sequences, query_tokens, context_tokens)

    def verify_beside_build_s(
        self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike
    ) -> FloatArray:
        return self.verify_contention * self.verify(sequences, query_tokens, context_tokens)

    def prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        return np.asarray(requests) * self.prefill(1, prompt_tokens, 0)

    def draft_prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        return np.asarray(requests) * self.draft_prefill(1, prompt_tokens, 0)

    def sd_draft_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return _in_steps(self.draft_start, self.draft_step, sequences, num_steps, context_tokens)

    def jit_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        step = self.jit_step if self.jit_step is not None else self.tree_step
        return _in_steps(self.jit_start, step, sequences, num_steps, context_tokens)

    def glue_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self.glue(sequences, query_tokens, context_tokens)

    def tree_s(self, branches: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return _in_steps(self.tree_start, self.tree_step, branches, num_steps, context_tokens)

    def store_s(self, branches: ArrayLike) -> FloatArray:
        return self.store(branches, branches, 0)

    def ngram_s(self, sequences: ArrayLike) -> FloatArray:
        return self.ngram(sequences, sequences, 0)

    def lookup_s(self, sequences: ArrayLike) -> FloatArray:
        return self.lookup(sequences, sequences, 0)

    def accept_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray:
        return self.accept(sequences, query_tokens, 0)

    def sample_s(self, sequences: ArrayLike) -> FloatArray:
        return self.sample(sequences, sequences, 0)

    def reply_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray:
        return self.reply(sequences, query_tokens, 0)

    def outcome_s(self, sequences: ArrayLike) -> FloatArray:
        return self.outcome(sequences, sequences, 0)

    def host_s(self, sequences: ArrayLike) -> FloatArray:
        return self.host(sequences, sequences, 0)


def _in_steps(
    start: CostTerm, step: CostTerm, width: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike
) -> FloatArray:
    """`num_steps` steps over `width` rows or branches one after the other, and what they begin with."""
    steps = np.asarray(num_steps)
    return np.where(steps > 0, start(width, width, context_tokens), 0.0) + steps * step(width, width, context_tokens)


class RatioCosts(Document):
    """The paper's abstraction (section 3.2): all times relative to one verification, independent of width."""

    kind: Literal["ratios"] = "ratios"
    unit_s: PositiveFloat = 1.0
    """Seconds of one verification, which is also one AR step."""
    build: NonNegativeFloat
    """T_p: building the whole speculation cache."""
    jit: NonNegativeFloat
    """T_b of a slow fallback (T_j): drafting one chain just in time, for however many rows miss."""
    sd_draft: NonNegativeFloat
    """T_SD: SD's draft phase."""
    verify_per_query_token: NonNegativeFloat = 0.0
    """Growth of verification per query token beyond one per row (the paper has none)."""
    round_trip: NonNegativeFloat = 0.0
    """Reply and outcome together (the paper has none)."""
    host: Seconds = 0.0
    jitter: Jitter = Jitter()

    def verify_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        rows = np.asarray(sequences, dtype=float)
        extra = np.asarray(query_tokens) - rows
        return self._if_any(rows, 1.0 + self.verify_per_query_token * extra)

    def verify_beside_build_s(
        self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike
    ) -> FloatArray:
        return self.verify_s(sequences, query_tokens, context_tokens)

    def prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        return np.zeros(np.broadcast_shapes(np.shape(requests), np.shape(prompt_tokens)))

    def draft_prefill_s(self, requests: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
        return self.prefill_s(requests, prompt_tokens)

    def sd_draft_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self._if_any(np.minimum(sequences, num_steps), self.sd_draft)

    def jit_s(self, sequences: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self._if_any(np.minimum(sequences, num_steps), self.jit)

    def glue_s(self, sequences: ArrayLike, query_tokens: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self._if_any(sequences, 0.0)

    def tree_s(self, branches: ArrayLike, num_steps: ArrayLike, context_tokens: ArrayLike) -> FloatArray:
        return self._if_any(branches, self.build)

    def store_s(self, branches: ArrayLike) -> FloatArray:
        return self._if_any(branches, 0.0)

    def ngram_s(self, sequences: ArrayLike) -> FloatArray:
        return self._if_any(sequences, 0.0)

    def lookup_s(self, sequences: ArrayLike) -> FloatArray:
        return self._if_any(sequences, 0.0)

    def accept_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray:
        return self._if_any(sequences, 0.0)

    def sample_s(self, sequences: ArrayLike) -> FloatArray:
        return self._if_any(sequences, 0.0)

    def reply_s(self, sequences: ArrayLike, query_tokens: ArrayLike) -> FloatArray:
        return self._if_any(sequences, self.round_trip / 2)

    def outcome_s(self, sequences: ArrayLike) -> FloatArray:
        return self._if_any(sequences, self.round_trip / 2)

    def host_s(self, sequences: ArrayLike) -> FloatArray:
        return np.where(np.asarray(sequences) > 0, self.host, 0.0)

    def _if_any(self, count: ArrayLike, units: ArrayLike) -> FloatArray:
        return np.where(np.asarray(count) > 0, np.asarray(units) * self.unit_s, 0.0)


Costs = Annotated[ComponentCosts | RatioCosts, Field(discriminator="kind")]
