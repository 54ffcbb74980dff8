"""Saguaro sampling: trading acceptance for bonus tokens that are easier to guess (section 4.2, THEORY 5).

Scaling the draft's probability of the cached tokens by C < 1 moves the residual onto them. With a fixed set
that is monotone: the lower C, the higher the hit rate given rejection (Theorem 15). The algorithm's set is
not fixed: the token sent for verification is excluded from it, and then a lower C can lower the hit rate.
So C is a free knob, and `best_downweight` searches it without assuming a shape.

Distributions are the last axis, `[..., V]`; leading axes are contexts. Sets are taken from the RAW draft
with ties by token id: ranking again after down-weighting would throw the down-weighted tokens out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ssdsim import verification
from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.acceptance import outcome_weights
from ssdsim.theory.domain import BoolArray, FloatArray, Real


def cached_mask(p_draft: npt.ArrayLike, fan_out: int) -> BoolArray:
    """Membership of the `fan_out` tokens the raw draft likes best, ties by token id. `[..., V]` bool."""
    draft = domain.distribution("p_draft", p_draft)
    best = verification.top_tokens(draft, _fan_out(fan_out, draft.shape[-1]))
    mask = np.zeros(draft.shape, dtype=np.bool_)
    np.put_along_axis(mask, best, True, axis=-1)
    return mask


def saguaro_distribution(p_draft: npt.ArrayLike, fan_out: int, downweight: float) -> FloatArray:
    """The sampling scheme of section 4.2.1: the top F tokens scaled by C in [0, 1], renormalised. `[..., V]`."""
    draft = domain.distribution("p_draft", p_draft)
    c = domain.scalar("downweight", domain.probability("downweight", downweight))
    reweighted: FloatArray = verification.saguaro_reweight(draft, cached_mask(draft, fan_out), c)
    return reweighted


class ResidualMass(NamedTuple):
    """Unnormalised residual mass inside and outside a set; together the rejection probability."""

    inside: Real
    outside: Real

    @property
    def hit_prob(self) -> Real:
        """P(bonus token in the set | rejection); NaN where nothing is ever rejected."""
        with np.errstate(invalid="ignore"):
            return domain.as_real(np.divide(self.inside, np.add(self.inside, self.outside)))


def fixed_set_residual(
    p_target: npt.ArrayLike, p_draft: npt.ArrayLike, cached: npt.ArrayLike, downweight: float
) -> ResidualMass:
    """Theorem 15's setting: residual masses for any fixed set `cached` (bool `[..., V]`) at constant C.

    As C falls `inside` never decreases and `outside` never increases, so the hit probability given
    rejection rises where it is defined. Where the reweighted draft equals the target it is 0/0 and can
    jump.
    """
    target, draft = _pair(p_target, p_draft)
    mask = np.asarray(cached)
    if mask.dtype != np.bool_ or mask.shape[-1:] != draft.shape[-1:]:
        raise DomainError("cached", "must be a bool array over the vocabulary", cached)
    c = domain.scalar("downweight", domain.probability("downweight", downweight))
    excess = np.maximum(target - verification.saguaro_reweight(draft, mask, c), 0.0)
    return ResidualMass(
        domain.as_real(np.where(mask, excess, 0.0).sum(axis=-1)),
        domain.as_real(np.where(mask, 0.0, excess).sum(axis=-1)),
    )


class PositionStats(NamedTuple):
    """One position of a speculation under Saguaro sampling."""

    acceptance_prob: Real
    reject_and_hit_prob: Real
    """P(rejected here and the bonus token is cached)"""

    @property
    def hit_prob_on_rejection(self) -> Real:
        """P(bonus token cached | rejected here); NaN where nothing is ever rejected."""
        rejected = 1.0 - np.asarray(self.acceptance_prob)
        with np.errstate(invalid="ignore", divide="ignore"):
            return domain.as_real(np.where(rejected > 0, self.reject_and_hit_prob / rejected, np.nan))


def saguaro_stats(
    p_target: npt.ArrayLike,
    p_draft: npt.ArrayLike,
    fan_out: int,
    downweight: float,
    *,
    exclude_rejected: bool = True,
) -> PositionStats:
    """Acceptance and hits at a position k < K where `fan_out` candidates are cached. `[..., V]` -> `[...]`.

    `exclude_rejected` (the algorithm of section 4.1.1) caches the best F tokens other than the one sent;
    otherwise the best F, as in Theorem 15. The down-weighted tokens are the best F in both. Theorem 19's 50
    % needs the exclusion; without it its example hits 0 %.
    """
    target, draft = _pair(p_target, p_draft)
    c = domain.scalar("downweight", domain.probability("downweight", downweight))
    return _prepare(target, draft, fan_out, exclude_rejected).at(c)


class RoundStats(NamedTuple):
    """A whole round under Saguaro sampling; leading axes are contexts."""

    acceptance_prob: FloatArray
    """a_1..a_K, `[..., K]`"""
    hit_prob_by_position: FloatArray
    """h_0..h_K given that exactly k tokens were accepted, `[..., K+1]`; 0 where that never happens"""
    hit_prob: Real
    """probability that the look-up after this round hits, `[...]`"""


def round_stats(
    p_target: npt.ArrayLike,
    p_draft: npt.ArrayLike,
    fan_out: Sequence[int],
    downweight: float,
    *,
    exclude_rejected: bool = True,
) -> RoundStats:
    """Exact statistics of a round: K drafted positions and the bonus position, `[..., K+1, V]` each.

    `fan_out` has K+1 entries. At position K nothing is excluded and the bonus token is the target's own, so
    its draft is never reweighted. With V_k = in_k + a_{k+1} V_{k+1} the round's hit rate is V_0.
    """
    c = domain.scalar("downweight", domain.probability("downweight", downweight))
    return _prepare_round(p_target, p_draft, fan_out, exclude_rejected).at(c)


class Downweight(NamedTuple):
    """The best constant found and the objective there."""

    downweight: float
    value: float


def best_downweight(
    p_target: npt.ArrayLike,
    p_draft: npt.ArrayLike,
    fan_out: Sequence[int],
    objective: Callable[[RoundStats], float],
    *,
    exclude_rejected: bool = True,
    grid_size: int = 101,
) -> Downweight:
    """The C in [0, 1] that maximises `objective` of the round: a grid over all of it, then a search around the best.

    `objective` maps `RoundStats` to a number: the hit probability, or better the exact rate with its a_k
    and h_k, since hits are bought with acceptance. It need not be monotone or unimodal in C (THEORY 5). C =
    0 is skipped where it leaves no mass.
    """
    prepared = _prepare_round(p_target, p_draft, fan_out, exclude_rejected)

    def value(c: float) -> float:
        return float(objective(prepared.at(c)))

    first = 0 if prepared.defined_at_zero() else 1
    grid = np.linspace(0.0, 1.0, domain.count("grid_size", grid_size, 3))[first:]
    values = [value(float(c)) for c in grid]
    best = int(np.argmax(values))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)])
    refined = _golden_section(value, low, high)
    return max(Downweight(float(grid[best]), values[best]), refined, key=lambda found: found.value)


def _golden_section(value: Callable[[float], float], low: float, high: float) -> Downweight:
    """A local maximum of `value` in [low, high], to 1e-6 in C."""
    shrink = (5.0**0.5 - 1.0) / 2.0
    left, right = high - shrink * (high - low), low + shrink * (high - low)
    at_left, at_right = value(left), value(right)
    while high - low > 1e-6:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - shrink * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + shrink * (high - low)
            at_right = value(right)
    return Downweight(left, at_left) if at_left >= at_right else Downweight(right, at_right)


class _Position(NamedTuple):
    """A drafted position with all that does not depend on C."""

    target: FloatArray
    draft: FloatArray
    mask: BoolArray
    following: npt.NDArray[np.int64] | None
    """the best token outside the set, which takes the place of an excluded one; None without exclusion"""

    def at(self, downweight: float) -> PositionStats:
        proposal = verification.saguaro_reweight(self.draft, self.mask, downweight)
        accept = verification.acceptance_prob(self.target, proposal)
        excess = np.maximum(self.target - proposal, 0.0)
        hits = np.where(self.mask, excess, 0.0).sum(axis=-1)
        if self.following is not None:
            rejected = np.maximum(proposal - self.target, 0.0)
            total, inside = rejected.sum(axis=-1), np.where(self.mask, rejected, 0.0).sum(axis=-1)
            next_excess = np.take_along_axis(excess, self.following, axis=-1)[..., 0]
            hits = hits + next_excess * np.divide(inside, total, out=np.zeros_like(total), where=total > 0)
        return PositionStats(domain.as_real(accept), domain.as_real(hits))


class _Round(NamedTuple):
    """The K drafted positions, and the hit probability at position K, which no C changes."""

    drafted: list[_Position]
    last_hit_prob: FloatArray

    def at(self, downweight: float) -> RoundStats:
        positions = [position.at(downweight) for position in self.drafted]
        by_position = [np.nan_to_num(position.hit_prob_on_rejection) for position in positions]
        hits = np.stack([*by_position, self.last_hit_prob], axis=-1)
        accept = np.zeros((*self.last_hit_prob.shape, len(positions)))
        for k, position in enumerate(positions):
            accept[..., k] = np.minimum(position.acceptance_prob, 1.0)  # a sum of V terms can round above 1
        return RoundStats(accept, hits, domain.as_real((outcome_weights(accept) * hits).sum(axis=-1)))

    def defined_at_zero(self) -> bool:
        """Whether every drafted position has mass outside its set."""
        return all(bool((p.draft * ~p.mask).any(axis=-1).all()) for p in self.drafted)


def _prepare(target: FloatArray, draft: FloatArray, fan_out: int, exclude_rejected: bool) -> _Position:
    count, vocabulary = _fan_out(fan_out, draft.shape[-1]), draft.shape[-1]
    replaceable = exclude_rejected and 0 < count < vocabulary
    following = verification.top_tokens(draft, count + 1)[..., -1:] if replaceable else None
    return _Position(target, draft, cached_mask(draft, count), following)


def _prepare_round(
    p_target: npt.ArrayLike, p_draft: npt.ArrayLike, fan_out: Sequence[int], exclude_rejected: bool
) -> _Round:
    target, draft = _pair(p_target, p_draft)
    if target.ndim < 2 or target.shape[-2] != len(fan_out):
        raise DomainError("fan_out", "must have one entry per position, K + 1", list(fan_out))
    drafted = [
        _prepare(target[..., k, :], draft[..., k, :], count, exclude_rejected) for k, count in enumerate(fan_out[:-1])
    ]
    last_set = cached_mask(draft[..., -1, :], fan_out[-1])
    return _Round(drafted, np.where(last_set, target[..., -1, :], 0.0).sum(axis=-1))


def _pair(p_target: npt.ArrayLike, p_draft: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    target, draft = domain.distribution("p_target", p_target), domain.distribution("p_draft", p_draft)
    if target.shape != draft.shape:
        raise DomainError("p_draft", f"must have the shape of p_target, {target.shape}", draft.shape)
    return target, draft


def _fan_out(fan_out: int, vocabulary: int) -> int:
    checked = domain.count("fan_out", fan_out, 0)
    if checked > vocabulary:
        raise DomainError("fan_out", f"must be at most the vocabulary, {vocabulary}", fan_out)
    return checked
