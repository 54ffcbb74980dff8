"""Which fan-out vector prepares for the outcomes of which speculation.

The policies are `ssdsim.policies`; here they are applied to what a round really sent: a full chain from the
cache or drafted now, the shorter proposals of a fallback, a chain cut short by a late build.
"""

from __future__ import annotations

from executor.config import DraftBehaviour, all_accepted_curve
from ssdsim.policies import allocate_fan_out
from ssdsim.records import Source
from ssdsim.scenario import Drafting, FallbackKind, FanOut, num_fallback_tokens

_UNDRAFTED = frozenset({Source.NGRAM, Source.NONE, Source.RANDOM})


class FanOutPlan:
    """Fan-out vectors by source and number of proposed tokens; each is worked out once."""

    def __init__(self, drafting: Drafting, behaviour: DraftBehaviour, head_size: int) -> None:
        """`head_size`: columns of the draft's head; one may be excluded, so no position has more
        candidates."""
        self._drafting, self._behaviour, self._most = drafting, behaviour, head_size - 1
        self._vectors: dict[tuple[Source, int], tuple[int, ...]] = {}

    def vector(self, source: Source, num_proposed: int) -> tuple[int, ...]:
        """`num_proposed + 1` integers: candidates to prepare after 0..num_proposed accepted tokens."""
        key = (source, num_proposed)
        if key not in self._vectors:
            wanted = self._work_out(source, num_proposed)
            self._vectors[key] = tuple(min(count, self._most) for count in wanted)
        return self._vectors[key]

    def max_branches(self) -> int:
        """The largest sum of any vector that a run can meet."""
        lookahead = self._drafting.num_speculative_tokens
        drafted = [self.vector(s, n) for s in (Source.HIT, Source.JIT) for n in range(1, lookahead + 1)]
        undrafted = [self.vector(s, n) for s in _UNDRAFTED for n in range(lookahead + 1)]
        return max(sum(vector) for vector in drafted + undrafted)

    def _work_out(self, source: Source, num_proposed: int) -> tuple[int, ...]:
        if source is Source.RANDOM:
            # A random token is all but never accepted: everything prepares for its rejection.
            return (*self._work_out(Source.NONE, 0), *(0,) * num_proposed)
        if source in _UNDRAFTED:
            return self._spread(self._on_miss(num_proposed), num_proposed)
        by_fallback = source is Source.JIT and self._drafting.fan_out_on_miss is not None
        chosen = self._drafting.fan_out_on_miss if by_fallback else None
        return self._spread(chosen or self._drafting.fan_out, num_proposed)

    def _on_miss(self, num_proposed: int) -> FanOut:
        """The fan-out of undrafted rows; unless given, the drafted rows' budget over their fewer
        positions."""
        given = self._drafting.fan_out_on_miss
        if given is not None and self._drafting.fallback.kind is not FallbackKind.JIT:
            return given
        fan_out = self._drafting.fan_out
        policy = "uniform" if fan_out.policy == "explicit" else fan_out.policy
        return FanOut(policy=policy, budget=fan_out.total(self._drafting.num_speculative_tokens + 1))

    def _spread(self, fan_out: FanOut, num_proposed: int) -> tuple[int, ...]:
        if fan_out.values is not None:
            return _shortened(fan_out.values, num_proposed)
        assert fan_out.policy != "explicit"
        known = self._behaviour.acceptance_prob
        acceptance = known[:num_proposed] if isinstance(known, tuple) else known
        return allocate_fan_out(
            fan_out.policy,
            num_proposed,
            fan_out.total(num_proposed + 1),
            acceptance,
            self._behaviour.rejection_curve,
            all_accepted_curve(self._behaviour),
        )


def num_proposed_on_miss(drafting: Drafting) -> int:
    """Most tokens that the fallback of an undrafted row proposes."""
    return 0 if drafting.fallback.kind is FallbackKind.JIT else num_fallback_tokens(drafting)


def _shortened(values: tuple[int, ...], num_proposed: int) -> tuple[int, ...]:
    """An explicit vector over fewer positions keeps its head and its last entry, "all accepted"."""
    if num_proposed + 1 >= len(values):
        return (*values, *(0,) * (num_proposed + 1 - len(values)))
    return (*values[:num_proposed], values[-1])
