"""What the exact model predicts for plain profile data, and the fits to published rows: acceptance and one scalar.

Everything is predicted for one sequence of 512 tokens, with the official engine's options.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.published.kernels import significant
from experiments.published.rows import PROMPT_KINDS, SD_LOOKAHEAD, Rows
from ssdsim.design_point import resolve
from ssdsim.distributions import Constant
from ssdsim.errors import DomainError
from ssdsim.exact import batch_columns, setting_of, slot_numbers
from ssdsim.planning.scalar_fit import calibrate_scalar
from ssdsim.scenario_files import scenario_from
from ssdsim.theory.closed import slot_law
from ssdsim.theory.row_law import RowLaw

Profile = dict[str, Any]
FloatArray = NDArray[np.float64]

SD_DRAFTING: dict[str, Any] = {"num_speculative_tokens": SD_LOOKAHEAD, "sd_extra_step": True}
"""The engine's synchronous SD: seven draft steps for six tokens."""


OUTPUT_TOKENS = 512


def ssd_drafting(lookahead: int) -> dict[str, Any]:
    """The engine's SSD: uniform fan-out 3, just-in-time fallback, every request's first round a miss."""
    return {"num_speculative_tokens": lookahead, "first_round": "miss", "redraft_hits": True}


def columns(profile: Profile, mode: str, drafting: dict[str, Any], prompt_kind: str | None) -> dict[str, float]:
    """Rate and times of one sequence under the exact model, by column name (see `ssdsim.exact`)."""
    scenario = scenario_from(
        {
            "pair": profile,
            "mode": mode,
            "drafting": drafting,
            "workload": {"prompt_kind": prompt_kind, "output_tokens": OUTPUT_TOKENS},
        }
    )
    point, fallback = resolve(scenario), scenario.drafting.fallback.kind
    found = batch_columns(
        slot_numbers([point], scenario.mode, fallback),
        setting_of(point, scenario.mode, fallback),
        scenario.costs,
    )
    return {name: float(value[0]) for name, value in found.items()}


def ar_rate(profile: Profile) -> float:
    """AR's tokens per second."""
    return columns(profile, "ar", {}, None)["tokens_per_s"]


def sd_rate(profile: Profile, prompt_kind: str | None) -> float:
    """SD's tokens per second on one kind of prompt (absent: under the default behaviour)."""
    return columns(profile, "sd", SD_DRAFTING, prompt_kind)["tokens_per_s"]


def ssd_rate(profile: Profile, lookahead: int, prompt_kind: str | None) -> float:
    """SSD's tokens per second on one kind of prompt (absent: under the default behaviour)."""
    return columns(profile, "ssd", ssd_drafting(lookahead), prompt_kind)["tokens_per_s"]


def mean_ssd_rate(profile: Profile, lookahead: int, prompt_kinds: Iterable[str] = PROMPT_KINDS) -> float:
    """SSD's tokens per second, averaged over kinds of prompts as the published means are."""
    return fmean(ssd_rate(profile, lookahead, kind) for kind in prompt_kinds)


def hit_rate(profile: Profile, lookahead: int, prompt_kinds: Iterable[str] = PROMPT_KINDS) -> float:
    """Hit rate after a drafted round, averaged over kinds of prompts."""
    drafting = ssd_drafting(lookahead)
    return fmean(columns(profile, "ssd", drafting, kind)["hit_rate_after_draft"] for kind in prompt_kinds)


def fit_acceptance(profile: Profile, rows: Rows) -> None:
    """Set every behaviour's acceptance so that SD's row of its kind of prompt (default: the rows' mean) comes out.

    SD's rate is tokens per round over the round, and its round does not depend on acceptance.
    """
    for behaviour in profile["behaviours"]:
        kind = behaviour["when"].get("prompt_kind")
        tokens = rows.sd_rate(kind) * columns(profile, "sd", SD_DRAFTING, kind)["round_s"]
        behaviour["acceptance"]["per_position"] = significant(acceptance_of(tokens))


def acceptance_of(tokens_per_round: float) -> float:
    """The acceptance probability at which SD emits so many tokens per round, on average over a request."""
    acceptance_probs, tokens = _sd_tokens_per_round()
    if not tokens[0] <= tokens_per_round <= tokens[-1]:
        raise DomainError("tokens_per_round", f"must lie in [{tokens[0]:g}, {tokens[-1]:g}]", tokens_per_round)
    return float(np.interp(tokens_per_round, tokens, acceptance_probs))


@cache
def _sd_tokens_per_round() -> tuple[FloatArray, FloatArray]:
    """Acceptance probabilities and SD's tokens per round under each: finely enough to be interpolated linearly."""
    acceptance_probs = np.linspace(0.0, 0.999, 1000)
    drafted = RowLaw(
        acceptance_prob=np.repeat(acceptance_probs[:, None], SD_LOOKAHEAD, axis=1),
        hit_prob=np.zeros((acceptance_probs.size, SD_LOOKAHEAD + 1)),
    )
    law = slot_law(drafted, drafted, Constant(value=OUTPUT_TOKENS).pmf())
    return acceptance_probs, np.asarray(law.tokens_per_round)


def set_prefactor(profile: Profile, prefactor: float) -> None:
    """Give the rejection curve of every behaviour this prefactor."""
    for behaviour in profile["behaviours"]:
        behaviour["hit_curves"]["after_draft"]["rejection"]["miss_prefactor"] = prefactor


def calibrate_prefactor(profile: Profile, rows: Rows, lookahead: int, prompt_kinds: tuple[str, ...]) -> None:
    """The one scalar: the prefactor at which the mean rate over `prompt_kinds` is the published one.

    Raises DomainError where not even a cache that always hits (or one that misses at every rejection) explains it.
    """

    def predict(prefactor: float) -> float:
        set_prefactor(profile, prefactor)
        return mean_ssd_rate(profile, lookahead, prompt_kinds)

    published = fmean(rows.ssd_rate(lookahead, kind) for kind in prompt_kinds)
    set_prefactor(profile, significant(calibrate_scalar(predict, published, 1e-9, 1.0, relative_tolerance=1e-7)))
