"""Acceptance per position and its spread between requests, by maximum likelihood.

The model is the simulator's and the exact model's: a request sits at a quantile u of the spread, and accepts every
position with the u-quantile of a Beta law around that position's mean. Pooled shares would not estimate those means:
slow requests fill more rounds, and late positions are reached by fast ones. The likelihood of the counts, integrated
over u, needs no such correction, and when a request stops does not matter to it. Errors are robust ("sandwich", a
request being the unit), so that what the model leaves out widens them instead of going unnoticed.
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
_LEAST_SPREAD, _MOST_SPREAD = 2e-3, 0.45
_FIRST_GUESS = 0.08
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
    alike = (trials.accepted.sum(axis=0) + 0.5) / (trials.reached.sum(axis=0) + 1)
    model = _Spread(trials)
    parameters = np.append(alike, 0.0)
    if trials.num_requests >= FEW_REQUESTS:
        spread_out = model.maximise(alike)
        gain = 2 * (model.log_likelihood(spread_out) - model.log_likelihood(parameters))
        parameters = spread_out if gain > _ONE_SIDED_5_PERCENT else parameters
    return AcceptanceFit(
        lookahead=trials.lookahead,
        position=trials.position,
        mean=parameters[:-1],
        spread=float(parameters[-1]),
        covariance=model.covariance(parameters),
        num_trials=trials.reached.sum(axis=0),
        num_requests=trials.num_requests,
    )


class _Spread:
    """Likelihood of the counts; parameters are the means and, last, the spread."""

    def __init__(self, trials: Trials) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        self._quantiles, self._weights = (nodes + 1) / 2, weights / 2
        self._accepted, self._rejected = trials.accepted, trials.reached - trials.accepted

    def maximise(self, start: FloatArray) -> FloatArray:
        """The maximum with a positive spread, from the means `start`."""
        from scipy.optimize import minimize

        best = minimize(
            self._negative,
            np.append(start, _FIRST_GUESS),
            jac=True,
            method="L-BFGS-B",
            bounds=[(_LEAST, _MOST)] * len(start) + [(_LEAST_SPREAD, _MOST_SPREAD)],
        )
        found: FloatArray = best.x
        return found

    def log_likelihood(self, parameters: FloatArray) -> float:
        """Of all requests, with Jeffreys' prior on the means: half a trial each way keeps them off 0 and 1."""
        means = parameters[:-1]
        return float(self._by_request(parameters)[0].sum() + 0.5 * np.log(means * (1 - means)).sum())

    def covariance(self, parameters: FloatArray) -> FloatArray:
        """Robust covariance; a spread of 0 is taken as certain."""
        free = len(parameters) if parameters[-1] > 0 else len(parameters) - 1
        scores = self.scores(parameters)[:, :free]
        bread = np.linalg.pinv(-self._curvature(parameters, free))
        small_sample = len(scores) / max(len(scores) - 1, 1)
        result = np.zeros((len(parameters), len(parameters)))
        result[:free, :free] = bread @ (scores.T @ scores * small_sample) @ bread
        if len(scores) == 1:  # one request says nothing of others: all that is left is binomial noise
            result[:free, :free] = bread
        return result

    def scores(self, parameters: FloatArray) -> FloatArray:
        """[requests, parameters]: derivative of each request's log likelihood."""
        return self._by_request(parameters)[1]

    def _negative(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        return -self.log_likelihood(parameters), -self._gradient(parameters)

    def _gradient(self, parameters: FloatArray) -> FloatArray:
        means = parameters[:-1]
        gradient: FloatArray = self.scores(parameters).sum(axis=0)
        gradient[:-1] += 0.5 / means - 0.5 / (1 - means)
        return gradient

    def _curvature(self, parameters: FloatArray, free: int) -> FloatArray:
        """Second derivative of the log likelihood, from differences of its first."""
        rows = []
        for i in range(free):
            step = min(_STEP, parameters[i] / 2) if i == len(parameters) - 1 else _STEP
            there, back = parameters.copy(), parameters.copy()
            there[i], back[i] = there[i] + step, back[i] - step
            change = self._gradient(there) - self._gradient(back)
            rows.append(change[:free] / (2 * step))
        curvature: FloatArray = np.array(rows)
        return (curvature + curvature.T) / 2

    def _by_request(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Log likelihood [requests] and its derivatives [requests, parameters]."""
        mean, spread = parameters[:-1], float(parameters[-1])
        if spread == 0:
            by_mean = self._accepted / mean - self._rejected / (1 - mean)
            value = self._accepted @ np.log(mean) + self._rejected @ np.log1p(-mean)
            return value, np.append(by_mean, np.zeros((len(value), 1)), axis=1)
        probs = self._quantile_probs(mean, spread)
        log_terms = self._accepted @ np.log(probs) + self._rejected @ np.log1p(-probs)  # [requests, nodes]
        top = log_terms.max(axis=1, keepdims=True)
        mass = np.exp(log_terms - top) * self._weights
        total = mass.sum(axis=1, keepdims=True)
        share = mass / total
        by_prob = self._accepted[:, :, None] / probs - self._rejected[:, :, None] / (1 - probs)
        by_mean = (self._quantile_probs(mean + _STEP, spread) - self._quantile_probs(mean - _STEP, spread)) / (
            2 * _STEP
        )
        step = min(_STEP, spread / 2)
        by_spread = (self._quantile_probs(mean, spread + step) - self._quantile_probs(mean, spread - step)) / (
            2 * step
        )
        scores = np.einsum("rn,rcn,cn->rc", share, by_prob, by_mean)
        last = np.einsum("rn,rcn,cn->r", share, by_prob, by_spread)
        return top[:, 0] + np.log(total[:, 0]), np.append(scores, last[:, None], axis=1)

    def _quantile_probs(self, mean: FloatArray, spread: float) -> FloatArray:
        """[columns, nodes]: acceptance of the kinds of requests, kept off 0 and 1."""
        from scipy.special import betaincinv

        largest = 0.98 * np.sqrt(mean * (1 - mean))
        concentration = (mean * (1 - mean) / np.minimum(spread, largest) ** 2 - 1)[:, None]
        probs = betaincinv(mean[:, None] * concentration, (1 - mean)[:, None] * concentration, self._quantiles)
        inner: FloatArray = np.clip(probs, 1e-12, 1 - 1e-12)
        return inner
