"""How far times scatter around their means: completion time, gaps between bursts, late builds under jitter.

The mean rate cares only for long-run averages, the spread also for what happens together: the tokens of a
round depend on the look-up before it, its duration on the look-up after it, so a slow row is short of tokens
one round after it waited (THEORY 7.5). Used by `evaluate` for percentiles of batches of one; the spread of a
larger batch's completion times is left to the simulator (THEORY 2.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ssdsim.errors import DomainError
from ssdsim.theory.domain import FloatArray, Real, as_real, non_negative, probability, refuse_where
from ssdsim.theory.joint_law import joint_counts
from ssdsim.theory.renewal import SlotChain, round_durations
from ssdsim.theory.round_time import RoundTimes
from ssdsim.theory.row_law import RowLaw, end_kernel, slot_chain


@dataclass(frozen=True, kw_only=True)
class CompletionTime:
    """The time in which one sequence emits N tokens, approximately normal for N of many rounds, per design
    point."""

    seconds_per_token: Real
    variance_per_token: Real
    """Growth of the variance per token emitted, in s^2."""

    def mean_s(self, output_tokens: Real) -> Real:
        """Mean time of N tokens, as on a long run (a first round of its own is not included)."""
        return as_real(np.asarray(self.seconds_per_token) * output_tokens)

    def sd_s(self, output_tokens: Real) -> Real:
        """Standard deviation of the time of N tokens: sqrt(N sigma^2 / E X)."""
        return as_real(np.sqrt(np.asarray(self.variance_per_token) * non_negative("output_tokens", output_tokens)))

    def quantile_s(self, output_tokens: Real, quantile: Real) -> Real:
        """The normal quantile, 0 < quantile < 1; quantile = 0.99 is the p99."""
        from scipy.special import ndtri

        level = np.asarray(probability("quantile", quantile))
        refuse_where((level == 0.0) | (level == 1.0), "quantile", "must lie strictly between 0 and 1", level)
        return as_real(self.mean_s(output_tokens) + ndtri(level) * self.sd_s(output_tokens))


def completion_time(drafted: RowLaw, fallback: RowLaw, times: RoundTimes) -> CompletionTime:
    """Mean and variance of the time one sequence (b = 1) takes per token (THEORY 7.5).

    With lambda the rate, Z = duration - tokens / lambda is a round's lag behind the mean. Lags of successive
    rounds are correlated through the source of the row; adding g(next source) - g(source), where g solves the
    Poisson equation, makes them uncorrelated: sigma^2 = E[(Z + g' - g)^2].
    """
    if times.batch_size != 1:
        raise DomainError("times", "must be those of one sequence (larger batches: simulate)", times.batch_size)
    chain = slot_chain(drafted, fallback)
    kernel = end_kernel(drafted, fallback)
    # [..., source, end]: a hit is m = 0, a drafted row n = 1
    duration_s = round_durations(times)[..., ::-1, :]
    tokens = np.arange(1.0, kernel.shape[-2] + 1)
    share = np.stack([chain.cache_hit_rate, 1.0 - chain.cache_hit_rate], axis=-1)
    mean_round_s = np.einsum("...s,...ske,...se->...", share, kernel, duration_s)
    seconds_per_token = mean_round_s / chain.tokens_per_round
    lag_s = duration_s[..., None, :] - (seconds_per_token[..., None] * tokens)[..., None, :, None]
    mean_lag_s = (kernel * lag_s).sum(axis=(-2, -1))
    hit_rate = kernel[..., 0].sum(axis=-1)
    ahead_s = (mean_lag_s[..., 0] - mean_lag_s[..., 1]) / (1.0 - hit_rate[..., 0] + hit_rate[..., 1])
    step = np.array([[0.0, -1.0], [1.0, 0.0]])  # g(next) - g(now) over [source, end], in units of g(drafted)
    innovation_s = lag_s + ahead_s[..., None, None, None] * step[:, None, :]
    variance = np.einsum("...s,...ske->...", share, kernel * innovation_s**2)
    return CompletionTime(
        seconds_per_token=as_real(seconds_per_token),
        variance_per_token=as_real(variance / chain.tokens_per_round),
    )


@dataclass(frozen=True, kw_only=True)
class BurstGaps:
    """Law of the time between a sequence's bursts of tokens (ITL), for one design point."""

    gap_s: FloatArray
    """[values], ascending."""
    prob: FloatArray
    """[values]"""

    @property
    def mean_s(self) -> float:
        return float(self.gap_s @ self.prob)

    def quantile_s(self, quantile: float) -> float:
        """The smallest gap that at least this share of the gaps does not exceed."""
        level = float(np.asarray(probability("quantile", quantile)))
        index = int(np.searchsorted(np.cumsum(self.prob), level - 1e-12))
        return float(self.gap_s[min(index, self.gap_s.size - 1)])


def burst_gaps(chain: SlotChain, times: RoundTimes) -> BurstGaps:
    """The long-run law of a round's duration, which is the gap between bursts of every sequence in the batch.

    One design point: raises DomainError where `chain` or `times` hold several.
    """
    if chain.law.ndim != 2 or times.points_shape:
        raise DomainError("times", "must describe one design point", np.broadcast_shapes(times.points_shape))
    drafted_and_missed = joint_counts(times.batch_size, chain.law[None, :, :2].reshape(1, 4), [[0, 1], [1, 3]])[0]
    gap_s, where = np.unique(round_durations(times), return_inverse=True)
    prob = np.bincount(where.ravel(), weights=np.maximum(drafted_and_missed, 0.0).ravel())
    possible = prob > 0.0
    return BurstGaps(gap_s=gap_s[possible], prob=prob[possible] / prob.sum())


def mean_max_of_normals(
    first_mean: Real, first_sd: Real, second_mean: Real, second_sd: Real, correlation: Real = 0.0
) -> Real:
    """E max(X, Y) of two jointly normal times (Clark 1961; THEORY 7.6).

    Never below max(E X, E Y): with jitter a build that is on time on average is late in some rounds.
    Arguments broadcast; `correlation` in [-1, 1].
    """
    from scipy.special import ndtr

    sd_1, sd_2 = (
        np.asarray(non_negative(name, sd)) for name, sd in (("first_sd", first_sd), ("second_sd", second_sd))
    )
    means = [np.asarray(non_negative(n, m)) for n, m in (("first_mean", first_mean), ("second_mean", second_mean))]
    rho = np.asarray(correlation, dtype=np.float64)
    refuse_where(~(np.abs(rho) <= 1.0), "correlation", "must lie in [-1, 1]", rho)
    spread = np.sqrt(np.maximum(sd_1**2 + sd_2**2 - 2.0 * rho * sd_1 * sd_2, 0.0))
    jittery = spread > 0.0
    apart = np.where(jittery, means[0] - means[1], 0.0) / np.where(jittery, spread, 1.0)
    density = np.exp(-0.5 * apart**2) / np.sqrt(2.0 * np.pi)
    mean = means[0] * ndtr(apart) + means[1] * ndtr(-apart) + spread * density
    return as_real(np.where(jittery, mean, np.maximum(means[0], means[1])))
