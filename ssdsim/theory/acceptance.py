"""How many tokens a round yields: acceptance probabilities, outcome weights, mean acceptance length.

Three quantities are often confused, and engines report any of them. Given that the tokens before it were
accepted, token i is accepted with `acceptance_prob` a_i; it is reached and accepted with
`acceptance_rate_per_pos` A_i = a_1...a_i; and `draft_acceptance_rate` is accepted over proposed, (E - 1)/K:
0.538 where a = 0.8 and K = 5.

Position is always the last axis. The number of accepted tokens k has the weights w_k = A_k - A_{k+1}, w_K =
A_K, and a round emits k + 1 tokens: E = sum_k A_k.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ssdsim import verification
from ssdsim.errors import DomainError
from ssdsim.theory import domain
from ssdsim.theory.domain import FloatArray, Real


def acceptance_prob(p_target: npt.ArrayLike, p_draft: npt.ArrayLike) -> Real:
    """Theorem 1: probability that a drafted token is accepted, one minus the total variation distance.

    Both are distributions over the last axis, `[..., V]`; returns `[...]`.
    """
    target, draft = domain.distribution("p_target", p_target), domain.distribution("p_draft", p_draft)
    return domain.as_real(verification.acceptance_prob(target, draft))


def per_position(acceptance_prob: npt.ArrayLike, num_speculative_tokens: int) -> FloatArray:
    """a_1..a_K, `[K]`: a scalar is shorthand for the same acceptance at every position."""
    num_tokens = domain.count("num_speculative_tokens", num_speculative_tokens, 0)
    checked = domain.probability("acceptance_prob", acceptance_prob)
    if isinstance(checked, float):
        return np.full(num_tokens, checked)
    return domain.vector("acceptance_prob", checked, num_tokens)


def survival(acceptance_prob: npt.ArrayLike) -> FloatArray:
    """A_0 = 1, A_1, ..., A_K: probability that at least k tokens are accepted. `[..., K]` -> `[..., K+1]`.

    Without its leading 1 this is what engines report as `acceptance_rate_per_pos`.
    """
    checked = _positions("acceptance_prob", acceptance_prob)
    leading = np.ones((*checked.shape[:-1], 1))
    return np.concatenate([leading, np.cumprod(checked, axis=-1)], axis=-1)


def outcome_weights(acceptance_prob: npt.ArrayLike) -> FloatArray:
    """w_0, ..., w_K: probability that exactly k tokens are accepted. `[..., K]` -> `[..., K+1]`."""
    reached = survival(acceptance_prob)
    weights = reached.copy()
    weights[..., :-1] -= reached[..., 1:]
    return weights


def mean_acceptance_length(acceptance_prob: npt.ArrayLike, num_speculative_tokens: npt.ArrayLike) -> Real:
    """Tokens per round if every position has the same acceptance: E = (1 - a^(K+1)) / (1 - a), K+1 at a = 1.

    Arguments broadcast. Where acceptance differs by position use `mean_acceptance_length_per_position`.
    """
    a = np.asarray(domain.probability("acceptance_prob", acceptance_prob))
    num_tokens = domain.integer("num_speculative_tokens", num_speculative_tokens, 0)
    emitted = np.asarray(num_tokens, dtype=np.float64) + 1.0
    below_one = a < 1.0
    with np.errstate(divide="ignore"):
        # expm1 keeps the digits that 1 - a^(K+1) loses where a is near 1.
        rejected_somewhere = -np.expm1(emitted * np.log(a))
    return domain.as_real(np.where(below_one, rejected_somewhere / np.where(below_one, 1.0 - a, 1.0), emitted))


def mean_acceptance_length_per_position(acceptance_prob: npt.ArrayLike) -> Real:
    """Tokens per round, E = sum_k A_k, for conditional acceptances a_1..a_K. `[..., K]` -> `[...]`."""
    return domain.as_real(survival(acceptance_prob).sum(axis=-1))


def acceptance_prob_from_rates(acceptance_rate_per_pos: npt.ArrayLike) -> FloatArray:
    """Conditional a_i from unconditional A_i, `[..., K]` each. Where A_{i-1} = 0, a_i is taken as 0."""
    reached = _positions("acceptance_rate_per_pos", acceptance_rate_per_pos)
    before = np.concatenate([np.ones((*reached.shape[:-1], 1)), reached[..., :-1]], axis=-1)
    domain.refuse_where(reached > before, "acceptance_rate_per_pos", "must never increase", reached)
    conditional = np.zeros_like(reached)
    np.divide(reached, before, out=conditional, where=before > 0)
    return conditional


def draft_acceptance_rate(mean_acceptance_length: npt.ArrayLike, num_speculative_tokens: npt.ArrayLike) -> Real:
    """Accepted over drafted, (E - 1)/K: what engines log, and not an `acceptance_prob`."""
    length = np.asarray(domain.at_least("mean_acceptance_length", mean_acceptance_length, 1.0))
    num_tokens = np.asarray(domain.integer("num_speculative_tokens", num_speculative_tokens, 1))
    domain.refuse_where(length > num_tokens + 1, "mean_acceptance_length", "must be at most K + 1", length)
    return domain.as_real((length - 1.0) / num_tokens)


def acceptance_prob_from_draft_acceptance_rate(
    draft_acceptance_rate: npt.ArrayLike, num_speculative_tokens: npt.ArrayLike
) -> Real:
    """The homogeneous acceptance probability that yields this accepted-over-drafted rate at this K.

    Inverts E(a, K) = 1 + K rate; E rises with a, so bisection finds it to machine precision. Arguments
    broadcast.
    """
    rate = np.asarray(domain.probability("draft_acceptance_rate", draft_acceptance_rate))
    num_tokens = np.asarray(domain.integer("num_speculative_tokens", num_speculative_tokens, 1))
    wanted, num_tokens = np.broadcast_arrays(1.0 + num_tokens * rate, num_tokens)
    low, high = np.zeros(wanted.shape), np.ones(wanted.shape)
    for _ in range(60):  # 2^-60 is below the spacing of floats near 1
        middle = 0.5 * (low + high)
        too_short = np.asarray(mean_acceptance_length(middle, num_tokens)) < wanted
        low, high = np.where(too_short, middle, low), np.where(too_short, high, middle)
    return domain.as_real(0.5 * (low + high))


class BetaShape(NamedTuple):
    """Parameters of a Beta distribution of acceptance."""

    alpha: float
    beta: float


def beta_shape(mean: float, spread: float) -> BetaShape:
    """The Beta distribution with this mean and standard deviation, 0 < spread^2 < mean (1 - mean)."""
    m = domain.scalar("mean", domain.probability("mean", mean))
    sd = domain.scalar("spread", domain.positive("spread", spread))
    if sd * sd >= m * (1.0 - m):
        raise DomainError("spread", f"must stay below sqrt(mean (1 - mean)) = {(m * (1 - m)) ** 0.5:.4g}", spread)
    size = m * (1.0 - m) / (sd * sd) - 1.0
    return BetaShape(m * size, (1.0 - m) * size)


def acceptance_at_quantiles(mean: FloatArray, spread: float, quantiles: FloatArray) -> FloatArray:
    """Acceptance [quantiles, K] of requests at `quantiles` of a Beta law with `mean` [K] and sd `spread`.

    A request lies at the same quantile at every position (THEORY 7.1, per request). Positions that never or always
    accept stay as they are. `spread` must be below sqrt(mean (1 - mean)), see `beta_shape`.
    """
    from scipy.special import betaincinv

    result = np.broadcast_to(mean, (quantiles.size, mean.size)).copy()
    if spread == 0:
        return result
    inner = (mean > 0) & (mean < 1)
    size = mean[inner] * (1 - mean[inner]) / spread**2 - 1
    result[:, inner] = betaincinv(mean[inner] * size, (1 - mean[inner]) * size, quantiles[:, None])
    return result


def mean_acceptance_length_beta(alpha: npt.ArrayLike, beta: npt.ArrayLike, num_speculative_tokens: int) -> Real:
    """Tokens per round if each ROUND draws its acceptance from Beta(alpha, beta) (THEORY 7.1).

    E = sum_k prod_{i<k} (alpha + i)/(alpha + beta + i): above the plug-in value at the mean. `alpha` and
    `beta` broadcast.
    """
    a, b = np.asarray(domain.positive("alpha", alpha)), np.asarray(domain.positive("beta", beta))
    steps = np.arange(domain.count("num_speculative_tokens", num_speculative_tokens, 0))
    moments = (a[..., None] + steps) / (a[..., None] + b[..., None] + steps)
    return domain.as_real(1.0 + np.cumprod(moments, axis=-1).sum(axis=-1))


def harmonic_mean_acceptance_length_beta(alpha: float, beta: float, num_speculative_tokens: int) -> float:
    """Tokens per round if each REQUEST keeps one acceptance from Beta(alpha, beta) (THEORY 7.1).

    Requests of equal length take rounds in proportion to 1/E(a), so the long-run value is harmonic,
    1 / E[1 / E(a)]: below the plug-in value at the mean.
    """
    nodes, weights = beta_quadrature(alpha, beta)
    return float(1.0 / np.sum(weights / mean_acceptance_length(nodes, num_speculative_tokens)))


def beta_quadrature(alpha: float, beta: float, num_nodes: int = 48) -> tuple[FloatArray, FloatArray]:
    """Gauss-Jacobi nodes in (0, 1) and weights (sum 1) that integrate against Beta(alpha, beta)."""
    from scipy.special import roots_jacobi  # costs a tenth of a second to import

    a = domain.scalar("alpha", domain.positive("alpha", alpha))
    b = domain.scalar("beta", domain.positive("beta", beta))
    nodes, weights = roots_jacobi(domain.count("num_nodes", num_nodes, 1), b - 1.0, a - 1.0)
    return np.asarray(0.5 * (1.0 + nodes)), np.asarray(weights / weights.sum())


def mean_acceptance_length_regimes(
    acceptance_prob: npt.ArrayLike, transition: npt.ArrayLike, num_speculative_tokens: int
) -> float:
    """Tokens per round where a hidden regime, moving once per token, sets the acceptance (THEORY 7.1).

    `acceptance_prob` `[S]` by regime; `transition` `[S, S]`, rows sum to 1. With D = diag(a) and P the
    transition, k accepted tokens and the bonus token move the regime k + 1 times: E = nu sum_{k<=K} (D P)^k
    1, where nu is the stationary regime at the start of a round. Raises DomainError where the chain has
    several closed classes.
    """
    a = domain.vector("acceptance_prob", domain.probability("acceptance_prob", acceptance_prob))
    moves = domain.distribution("transition", transition)
    if moves.shape != (a.size, a.size):
        raise DomainError("transition", f"must be {a.size} x {a.size}", moves.shape)
    accept_and_move = a[:, None] * moves
    reach = np.eye(a.size)
    per_round, lengths = np.zeros_like(moves), np.zeros(a.size)
    for _ in range(domain.count("num_speculative_tokens", num_speculative_tokens, 0)):
        lengths += reach.sum(axis=1)
        per_round += reach @ (moves - accept_and_move)  # rejected here, then the bonus token moves the regime
        reach = reach @ accept_and_move
    lengths += reach.sum(axis=1)
    per_round += reach @ moves
    return float(_stationary(per_round) @ lengths)


def _stationary(kernel: FloatArray) -> FloatArray:
    size = kernel.shape[0]
    balance = np.vstack([kernel.T - np.eye(size), np.ones(size)])
    if np.linalg.matrix_rank(balance[:-1], tol=1e-12) < size - 1:
        raise DomainError("transition", "must reach one closed class of regimes", kernel.tolist())
    goal = np.append(np.zeros(size), 1.0)
    return np.asarray(np.linalg.lstsq(balance, goal, rcond=None)[0])


def _positions(name: str, value: npt.ArrayLike) -> FloatArray:
    checked = np.asarray(domain.probability(name, value), dtype=np.float64)
    if checked.ndim == 0:
        raise DomainError(name, "must list one value per position", value)
    return checked
