"""Acceptance per position and its spread between requests.

The model is the simulator's and the exact model's: a request sits at a quantile u of the spread, and accepts every
position with the u-quantile of a Beta law around that position's mean. Pooled shares would not estimate those
means: slow requests fill more rounds, and late positions are reached by fast ones. So the means are those at which
the model brings about the shares that were seen, which keeps the mean acceptance length right even where the Beta
law is not (a few prompts that the draft knows nothing of are enough to bend the likelihood's own means). The spread
is that of the greatest likelihood of the counts, integrated over u, the means following it.

Errors are robust ("sandwich" around these estimating equations, a request being the unit), so that what the model
leaves out widens them instead of going unnoticed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ssdsim.calibration.trials import Trials
from ssdsim.errors import InputError

FloatArray = NDArray[np.float64]

FEW_REQUESTS = 8
_NODES = 24
"""Kinds of requests that the integral over the spread is taken at."""
_LEAST, _MOST = 1e-4, 1 - 1e-4
_STEP = 1e-5
_SPREADS = (2e-3, 0.35)
"""Smallest and largest spread that is looked for."""
_SPREAD_TOLERANCE = 1e-4
_MATCHED = 1e-9
_MOST_MATCHES = 200
_ONE_SIDED_5_PERCENT = 2.706
"""Chi-square quantile of a spread that can only be positive."""


class AcceptanceFit(NamedTuple):
    """Estimates with their covariance."""

    lookahead: NDArray[np.int64]
    """[columns]"""
    position: NDArray[np.int64]
    """[columns]"""
    mean: FloatArray
    """[columns]: mean acceptance over requests."""
    spread: float
    """Standard deviation between requests; 0 where the counts show none."""
    covariance: FloatArray
    """[columns + 1, columns + 1], the spread last."""
    num_trials: FloatArray
    """[columns]"""
    num_requests: int

    @property
    def standard_errors(self) -> FloatArray:
        """[columns + 1], the spread last."""
        return np.sqrt(np.clip(np.diagonal(self.covariance), 0.0, None))

    def of_lookahead(self, lookahead: int) -> NDArray[np.intp]:
        """The columns of one lookahead, in order of position."""
        return np.flatnonzero(self.lookahead == lookahead)


def fit_acceptance(trials: Trials) -> AcceptanceFit:
    """Fit means and spread to `trials`; raises `InputError` where there are none.

    Fewer than `FEW_REQUESTS` requests say too little of how they differ: they are taken as alike.
    """
    if not trials.num_requests:
        raise InputError("acceptance: these runs hold no drafted token; calibrate from runs in mode sd or ssd")
    model = _Spread(trials)
    spread = 0.0
    if trials.num_requests >= FEW_REQUESTS:
        found = model.likeliest_spread()
        gain = 2 * (model.log_likelihood(found) - model.log_likelihood(0.0))
        spread = found if gain > _ONE_SIDED_5_PERCENT else 0.0
    return AcceptanceFit(
        lookahead=trials.lookahead,
        position=trials.position,
        mean=model.means(spread),
        spread=spread,
        covariance=model.covariance(spread),
        num_trials=trials.reached.sum(axis=0),
        num_requests=trials.num_requests,
    )


class _Spread:
    """The model and its estimating equations; `probs` are [columns, nodes] throughout."""

    def __init__(self, trials: Trials) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        self._quantiles, self._weights = (nodes + 1) / 2, weights / 2
        self._reached, self._accepted = trials.reached, trials.accepted
        # Half a trial each way keeps shares off 0 and 1.
        self._shares = (trials.accepted.sum(axis=0) + 0.5) / (trials.reached.sum(axis=0) + 1)
        self._drafts = [np.flatnonzero(trials.lookahead == k) for k in trials.lookaheads]

    def likeliest_spread(self) -> float:
        """The positive spread of the greatest likelihood."""
        from scipy.optimize import minimize_scalar

        best = minimize_scalar(
            lambda spread: -self.log_likelihood(spread),
            bounds=_SPREADS,
            method="bounded",
            options={"xatol": _SPREAD_TOLERANCE},
        )
        return float(best.x)

    def means(self, spread: float) -> FloatArray:
        """[columns]: the means that bring about the observed shares."""
        means: FloatArray = self._shares.copy()
        if spread == 0:
            return means
        for _ in range(_MOST_MATCHES):
            missing = self._shares - self._model_shares(means, spread)
            means = np.clip(means + missing, _LEAST, _MOST)
            if np.abs(missing).max() < _MATCHED:
                break
        return means

    def log_likelihood(self, spread: float) -> float:
        """Of all requests' counts, at the means that go with `spread`."""
        return float(self._log_likelihoods(self.means(spread), spread).sum())

    def covariance(self, spread: float) -> FloatArray:
        """[columns + 1, columns + 1], robust; a spread of 0 is taken as certain."""
        count = len(self._shares)
        result = np.zeros((count + 1, count + 1))
        if len(self._reached) == 1:  # one request says nothing of others: all that is left is binomial noise
            result[:count, :count] = np.diag(self._shares * (1 - self._shares) / self._reached.sum(axis=0))
            return result
        free = count + 1 if spread > 0 else count
        parameters = np.append(self.means(spread), spread)
        follow = self._following(parameters) if spread > 0 else np.zeros(count)
        equations = self._equations(parameters, follow)[:, :free]
        steps = np.full(free, _STEP)
        if spread > 0:
            steps[-1] = min(_STEP, spread / 2)
        slopes = []
        for i in range(free):
            there, back = parameters.copy(), parameters.copy()
            there[i], back[i] = there[i] + steps[i], back[i] - steps[i]
            change = (self._equations(there, follow) - self._equations(back, follow)).sum(axis=0)
            slopes.append(change[:free] / (2 * steps[i]))
        influence = equations @ np.linalg.pinv(np.array(slopes))
        result[:free, :free] = influence.T @ influence * len(influence) / (len(influence) - 1)
        return result

    def _following(self, parameters: FloatArray) -> FloatArray:
        """[columns]: how the means move with the spread, so that the shares stay."""
        means, spread = parameters[:-1], float(parameters[-1])
        step = min(_STEP, spread / 2)
        by_spread = (self._model_shares(means, spread + step) - self._model_shares(means, spread - step)) / (2 * step)
        by_mean = np.stack(
            [
                (self._model_shares(means + move, spread) - self._model_shares(means - move, spread)) / (2 * _STEP)
                for move in _STEP * np.eye(len(means))
            ],
            axis=1,
        )
        found: FloatArray = -np.linalg.pinv(by_mean) @ by_spread
        return found

    def _equations(self, parameters: FloatArray, follow: FloatArray) -> FloatArray:
        """[requests, columns + 1]: what sums up to zero at the estimate.

        Accepted less expected at every column, and the derivative of the likelihood along the spread.
        """
        means, spread = parameters[:-1], float(parameters[-1])
        if spread == 0:
            return np.append(self._accepted - means * self._reached, np.zeros((len(self._reached), 1)), axis=1)
        balance = self._accepted - self._model_shares(means, spread) * self._reached
        step = min(_STEP, spread / 2)
        there, back = (self._log_likelihoods(means + move * follow, spread + move) for move in (step, -step))
        return np.append(balance, ((there - back) / (2 * step))[:, None], axis=1)

    def _model_shares(self, means: FloatArray, spread: float) -> FloatArray:
        """[columns]: share of accepted trials over all requests, who fill rounds by 1 / (mean acceptance length)."""
        probs, shares = self._quantile_probs(means, spread), np.empty(len(means))
        for draft in self._drafts:
            accepted = np.cumprod(probs[draft], axis=0)
            reached = (
                np.concatenate([np.ones((1, _NODES)), accepted[:-1]]) * self._weights / (1 + accepted.sum(axis=0))
            )
            shares[draft] = (reached * probs[draft]).sum(axis=1) / reached.sum(axis=1)
        return shares

    def _log_likelihoods(self, means: FloatArray, spread: float) -> FloatArray:
        """[requests]"""
        rejected = self._reached - self._accepted
        if spread == 0:
            alike: FloatArray = self._accepted @ np.log(means) + rejected @ np.log1p(-means)
            return alike
        probs = self._quantile_probs(means, spread)
        log_terms = self._accepted @ np.log(probs) + rejected @ np.log1p(-probs)  # [requests, nodes]
        top = log_terms.max(axis=1, keepdims=True)
        total: FloatArray = top[:, 0] + np.log(np.exp(log_terms - top) @ self._weights)
        return total

    def _quantile_probs(self, means: FloatArray, spread: float) -> FloatArray:
        """[columns, nodes]: acceptance of the kinds of requests, kept off 0 and 1."""
        from scipy.special import betaincinv

        means = np.clip(means, _LEAST, _MOST)
        largest = 0.98 * np.sqrt(means * (1 - means))
        concentration = (means * (1 - means) / np.minimum(spread, largest) ** 2 - 1)[:, None]
        probs = betaincinv(means[:, None] * concentration, (1 - means)[:, None] * concentration, self._quantiles)
        inner: FloatArray = np.clip(probs, 1e-12, 1 - 1e-12)
        return inner
