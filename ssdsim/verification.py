"""Verification of a speculation: acceptance, residual, Saguaro reweighting, sampling.

The one implementation behind the theory, the simulator and the executor. Every function takes and returns
arrays of the caller's library (NumPy and PyTorch are tested) on the caller's device. Shapes: `...` is any
batch, `K` the positions of the speculation, `V` the vocabulary. Probabilities are trusted to be
distributions: these functions run once per round on the device, so they check shapes and never values.

A drafted token x is accepted with probability min(1, p_target(x) / p_draft(x)); at the first rejection the
bonus token is drawn from the residual, proportional to max(p_target - p_draft, 0). Together they emit exactly
p_target, whatever p_draft is (Theorem 1's setting; proof in seed 2, section 3).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from array_api_compat import array_namespace

from ssdsim.errors import DomainError

Array: TypeAlias = Any
"""An array of any array-API library."""


def accept_probs(p_target: Array, p_draft: Array, tokens: Array) -> Array:
    """Probability that each drafted token is accepted: min(1, p_target(x) / p_draft(x)).

    `p_*` are `[..., K, V]`, `tokens` `[..., K]` integers; returns `[..., K]`. A token that the draft could
    not have drawn (p_draft(x) = 0) is rejected.
    """
    xp = array_namespace(p_target, p_draft, tokens)
    _same_vocabulary(p_target, p_draft)
    target = xp.take_along_axis(p_target, tokens[..., None], axis=-1)[..., 0]
    draft = xp.take_along_axis(p_draft, tokens[..., None], axis=-1)[..., 0]
    drawable = draft > 0
    ratio = target / xp.where(drawable, draft, xp.ones_like(draft))
    return xp.where(drawable, xp.clip(ratio, max=1.0), xp.zeros_like(ratio))


def acceptance_prob(p_target: Array, p_draft: Array) -> Array:
    """Theorem 1: probability that a token drawn from `p_draft` is accepted, sum_x min(p_target, p_draft).

    `[..., V]` each; returns `[...]`. Equals one minus the total variation distance.
    """
    xp = array_namespace(p_target, p_draft)
    _same_vocabulary(p_target, p_draft)
    return xp.sum(xp.minimum(p_target, p_draft), axis=-1)


def residual(p_target: Array, p_draft: Array) -> Array:
    """Distribution of the bonus token after a rejection, proportional to max(p_target - p_draft, 0).

    `[..., V]` each; returns `[..., V]`. Where nothing is left over the two distributions are equal and no
    rejection can occur: p_target is returned.
    """
    xp = array_namespace(p_target, p_draft)
    _same_vocabulary(p_target, p_draft)
    excess = xp.clip(p_target - p_draft, min=0.0)
    mass = xp.sum(excess, axis=-1, keepdims=True)
    return xp.where(mass > 0, excess / xp.where(mass > 0, mass, xp.ones_like(mass)), p_target)


def saguaro_reweight(p_draft: Array, cached: Array, downweight: float) -> Array:
    """Saguaro sampling (section 4.2.1): scale the cached tokens by `downweight` (C) and renormalise.

    `p_draft` `[..., V]`, `cached` bool `[..., V]`; returns `[..., V]`. The residual moves into the cached set
    as C falls. Raises DomainError where C is outside [0, 1] or C = 0 leaves no mass.
    """
    xp = array_namespace(p_draft, cached)
    _same_vocabulary(p_draft, cached)
    if not 0.0 <= downweight <= 1.0:
        raise DomainError("downweight", "must be a number in [0, 1]", downweight)
    scaled = xp.where(cached, p_draft * downweight, p_draft)
    mass = xp.sum(scaled, axis=-1, keepdims=True)
    # Only C = 0 can empty a row; asking at any C would make the host wait for the device.
    if downweight == 0.0 and bool(xp.any(mass <= 0)):
        raise DomainError("downweight", "must be above 0 where every drawable token is cached", downweight)
    return scaled / mass


def top_tokens(logits: Array, fan_out: int, exclude: Array | None = None) -> Array:
    """The `fan_out` tokens with the largest logits, best first; equal logits rank by token id.

    `logits` `[..., V]`; returns int `[..., fan_out]`, so a smaller fan-out is a prefix. `exclude` `[...]` is
    one token per row that must not appear: the drafted token, which a rejection rules out as bonus token
    (positions k < K only, section 4.1.1). Raises DomainError if the vocabulary is too small.
    """
    xp = array_namespace(logits)
    wanted = fan_out if exclude is None else fan_out + 1
    if fan_out < 0 or wanted > logits.shape[-1]:
        raise DomainError("fan_out", f"must fit the vocabulary of {logits.shape[-1]}", fan_out)
    ranked = _ranked(xp, logits, wanted)
    if exclude is None:
        return ranked
    dropped = xp.astype(ranked == exclude[..., None], xp.int8)
    kept_first = xp.argsort(dropped, axis=-1, stable=True)
    return xp.take_along_axis(ranked, kept_first[..., :fan_out], axis=-1)


def num_accepted(accept_probs: Array, uniforms: Array) -> Array:
    """Length of the leading run of accepted tokens: uniform < accept_prob. `[..., K]` each -> int `[...]`."""
    return _leading_run(uniforms < accept_probs)


def num_accepted_greedy(target_tokens: Array, tokens: Array) -> Array:
    """Length of the leading run where the draft proposed the target's own token. `[..., K]` each -> `[...]`.

    The limit of the acceptance rule at temperature 0.
    """
    return _leading_run(target_tokens == tokens)


def sample(probs: Array, uniforms: Array) -> Array:
    """Draw tokens by inverting the cumulative distribution. `[..., V]`, `[...]` in [0, 1) -> int `[...]`.

    Never returns a token of probability zero, even where the cumulative sum rounds.
    """
    xp = array_namespace(probs, uniforms)
    cumulative = xp.cumulative_sum(probs, axis=-1)
    possible = probs > 0
    reached = possible & (cumulative > uniforms[..., None] * cumulative[..., -1:])
    # If rounding left nothing reached, the draw fell past the end: the last possible token.
    last = probs.shape[-1] - 1 - _first_true(xp, xp.flip(possible, axis=-1))
    return xp.where(xp.any(reached, axis=-1), _first_true(xp, reached), last)


def _ranked(xp: Any, logits: Array, count: int) -> Array:
    """The `count` best tokens in order; partial selection unless a tie crosses the edge (40x a full sort)."""
    if count < logits.shape[-1]:
        # One more than wanted: a gap between the last wanted and the next shows that the set is unique.
        candidates = xp.sort(_unordered_best(xp, logits, count + 1), axis=-1)
        values = xp.take_along_axis(logits, candidates, axis=-1)
        order = xp.argsort(values, axis=-1, descending=True, stable=True)
        values = xp.take_along_axis(values, order, axis=-1)
        if count == 0 or bool(xp.all(values[..., count - 1] > values[..., count])):
            return xp.take_along_axis(candidates, order[..., :count], axis=-1)
    return xp.argsort(logits, axis=-1, descending=True, stable=True)[..., :count]


def _unordered_best(xp: Any, logits: Array, count: int) -> Array:
    if hasattr(xp, "topk"):
        return xp.topk(logits, count, dim=-1, sorted=False).indices
    return xp.argpartition(logits, -count, axis=-1)[..., -count:]


def _leading_run(passed: Array) -> Array:
    xp = array_namespace(passed)
    return xp.sum(xp.cumulative_prod(xp.astype(passed, xp.int64), axis=-1), axis=-1)


def _first_true(xp: Any, mask: Array) -> Array:
    return xp.argmax(xp.astype(mask, xp.int8), axis=-1)


def _same_vocabulary(left: Array, right: Array) -> None:
    if left.shape[-1] != right.shape[-1]:
        raise DomainError("vocabulary", f"must be the same for both, {left.shape[-1]}", right.shape[-1])
