"""What Llama's rows cannot tell: an SD round and the acceptance that goes with it cannot be told apart.

- `rows_ridge`: the eight rates alone, with nothing but E_K(a) / round between acceptance and rate
- `model_ridge`: the same in the model, with the hit rate that each SD round implies
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from experiments.published import rates, rows
from experiments.published.profiles import SD_STEPS
from experiments.published.rates import Profile
from experiments.published.study import LLAMA, assuming
from ssdsim.planning.scalar_fit import calibrate_scalar

FloatArray = NDArray[np.float64]

ALWAYS_HITS = 1e-9
"""A prefactor that leaves no misses but those of first rounds."""

LATENCIES = ("look-up", "accepting", "messages")


@dataclass(frozen=True, kw_only=True)
class RowsRidgePoint:
    """The best fit of the eight rates under one SD round."""

    sd_round_s: float
    ssd_round_s: float
    acceptance_prob: tuple[float, ...]
    """By kind of prompt."""
    rms_error: float


def rows_ridge(sd_rounds_s: Iterable[float]) -> list[RowsRidgePoint]:
    """Fit four acceptances and an SSD round to Llama's eight SD and SSD rates, for each given SD round."""
    return [_rows_ridge_point(seconds) for seconds in sd_rounds_s]


def _rows_ridge_point(sd_round_s: float) -> RowsRidgePoint:
    from scipy.optimize import least_squares

    sd, ssd = np.array(rows.LLAMA.sd), np.array(rows.LLAMA.ssd[7])

    def residuals(unknown: FloatArray) -> FloatArray:
        a, ssd_round_s = unknown[:4], unknown[4] * sd_round_s
        sd_errors = _tokens_per_round(a, rows.SD_LOOKAHEAD) / sd_round_s / sd - 1
        return np.concatenate([sd_errors, _tokens_per_round(a, 7) / ssd_round_s / ssd - 1])

    fit = least_squares(residuals, [0.85, 0.85, 0.85, 0.85, 0.7], bounds=(0.01, 0.999), xtol=1e-12)
    return RowsRidgePoint(
        sd_round_s=sd_round_s,
        ssd_round_s=float(fit.x[4]) * sd_round_s,
        acceptance_prob=tuple(fit.x[:4].tolist()),
        rms_error=math.sqrt(fmean((fit.fun**2).tolist())),
    )


def _tokens_per_round(acceptance_prob: FloatArray, lookahead: int) -> FloatArray:
    return np.asarray((1 - acceptance_prob ** (lookahead + 1)) / (1 - acceptance_prob))


@dataclass(frozen=True, kw_only=True)
class ModelRidgePoint:
    """One SD round in the model: the prefactor that meets HumanEval's SSD row, and what follows from it."""

    sd_round_s: float
    miss_prefactor: float
    hit_rate: float
    errors: tuple[float, ...]
    """Of the four SSD rows."""


def model_ridge(sd_rounds_s: Iterable[float]) -> list[ModelRidgePoint]:
    """Acceptance from SD's rows and the prefactor from HumanEval's SSD row, for each given SD round.

    Raises DomainError for an SD round below `shortest_sd_round_s`.
    """
    return [_model_ridge_point(seconds) for seconds in sd_rounds_s]


def _model_ridge_point(sd_round_s: float) -> ModelRidgePoint:
    profile = LLAMA.calibrated_profile()
    _set_sd_round(profile, sd_round_s)
    rates.fit_acceptance(profile, rows.LLAMA)
    rates.calibrate_prefactor(profile, rows.LLAMA, *LLAMA.calibrated_on)
    curve = profile["behaviours"][0]["hit_curves"]["after_draft"]["rejection"]
    predicted = [rates.ssd_rate(profile, 7, kind) for kind in rows.PROMPT_KINDS]
    return ModelRidgePoint(
        sd_round_s=sd_round_s,
        miss_prefactor=curve["miss_prefactor"],
        hit_rate=rates.hit_rate(profile, 7),
        errors=tuple(rate / known - 1 for rate, known in zip(predicted, rows.LLAMA.ssd[7], strict=True)),
    )


def shortest_sd_round_s(*, low_latencies: bool) -> float:
    """The SD round below which not even a cache that always hits reaches HumanEval's SSD row, in the model.

    With the latencies that nobody published (look-up, accepting, messages) as assumed, or at their low ends.
    """
    profile = assuming(LLAMA, dict.fromkeys(LATENCIES, 0)) if low_latencies else LLAMA.uncalibrated_profile()
    rates.set_prefactor(profile, ALWAYS_HITS)
    profile["behaviours"] = [b for b in profile["behaviours"] if b["when"].get("prompt_kind") == "humaneval"]

    def best_rate(sd_round_s: float) -> float:
        _set_sd_round(profile, sd_round_s)
        rates.fit_acceptance(profile, rows.LLAMA)
        return rates.ssd_rate(profile, 7, "humaneval")

    return calibrate_scalar(best_rate, rows.LLAMA.ssd_rate(7, "humaneval"), 24e-3, 32e-3, relative_tolerance=1e-4)


def _set_sd_round(profile: Profile, sd_round_s: float) -> None:
    """Give SD's draft step, and the speculator's chain with it, the length that makes SD's round last so long."""
    seven, six = ({**rates.SD_DRAFTING, "sd_extra_step": extra} for extra in (True, False))
    kind = profile["behaviours"][0]["when"].get("prompt_kind")
    now_s, shorter_s = (rates.columns(profile, "sd", drafting, kind)["round_s"] for drafting in (seven, six))
    step_s = now_s - shorter_s
    for phase in ("draft_step", "jit_step"):
        profile["costs"][phase]["scale"] *= 1 + (sd_round_s - now_s) / SD_STEPS / step_s
