"""The comparison with the published rows: what is predicted before and after one scalar is calibrated.

- `sensitivities`: what each assumption contributes to the uncalibrated band
- `compare`: every SSD row with its uncalibrated band and its calibrated prediction
- `anatomy`: where a round's time goes, and what it would be if the build were hidden
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.published import rates, rows
from experiments.published.profiles import ASSUMED_PREFACTOR
from experiments.published.rates import Profile
from ssdsim.catalog import load_profile

Row = tuple[int, str | None]
"""Lookahead and kind of prompt; no kind stands for the mean over all of them."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One embedded profile and the rows it answers to."""

    name: str
    rows: rows.Rows
    calibrated_on: tuple[int, tuple[str, ...]]
    """Lookahead and kinds of prompts of the one figure that the scalar was calibrated on."""

    @property
    def ssd_rows(self) -> tuple[Row, ...]:
        """All published SSD rows, each lookahead's mean last."""
        return tuple((k, kind) for k in sorted(self.rows.ssd) for kind in (*rows.PROMPT_KINDS, None))

    def published(self) -> dict[Row, float]:
        """Published SSD rates."""
        return {(k, kind): self.rows.ssd_rate(k, kind) for k, kind in self.ssd_rows}

    def knobs(self) -> list[str]:
        """The assumptions that this profile's ranges leave open."""
        ranges = self.calibrated_profile()["ranges"]
        return [name for name, endings in KNOBS.items() if any(path.endswith(endings) for path in ranges)]

    def calibrated_profile(self) -> Profile:
        """The embedded profile, as plain data."""
        return load_profile(self.name)

    def uncalibrated_profile(self) -> Profile:
        """The same before its scalar was calibrated: the hit curve as assumed, acceptance from AR and SD alone."""
        profile = self.calibrated_profile()
        rates.set_prefactor(profile, ASSUMED_PREFACTOR)
        return profile


LLAMA = Case(name="llama-3.1-70b", rows=rows.LLAMA, calibrated_on=(7, ("humaneval",)))
QWEN = Case(name="qwen3-32b", rows=rows.QWEN, calibrated_on=(4, rows.PROMPT_KINDS))

KNOBS: dict[str, tuple[str, ...]] = {
    "SD's draft step, and the speculator's chain": ("costs.draft_step.scale", "costs.jit_step.scale"),
    "hit curve: miss_prefactor": ("miss_prefactor",),
    "hit curve: miss_exponent": ("miss_exponent",),
    "tree step": ("costs.tree_step.scale",),
    "glue forward": ("costs.glue.scale",),
    "look-up": ("costs.lookup.seconds",),
    "accepting": ("costs.accept.seconds",),
    "storing": ("costs.store.seconds",),
    "messages": ("costs.reply.base_s", "costs.outcome.seconds"),
    "host time within AR's step": ("costs.host.seconds",),
}
"""Assumptions that move together; each stands for the fields whose paths end so."""


@dataclass(frozen=True)
class Effect:
    """Relative changes of the SSD rows."""

    changes: dict[Row, float]

    @property
    def mean(self) -> float:
        """Mean over the rows."""
        return fmean(self.changes.values())


Effects = dict[str, tuple[Effect, Effect]]
"""Assumption to what its low and its high end change."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One published SSD rate (tokens per second) and what is predicted for it."""

    row: Row
    published: float
    low: float
    uncalibrated: float
    high: float
    calibrated: float

    @property
    def error(self) -> float:
        """Relative error of the calibrated prediction."""
        return self.calibrated / self.published - 1


def predict(profile: Profile, wanted: Collection[Row]) -> dict[Row, float]:
    """SSD's rates; a mean is the mean of the rates, as the published one is."""
    found: dict[Row, float] = {}
    for k in {k for k, _ in wanted}:
        each = {kind: rates.ssd_rate(profile, k, kind) for kind in rows.PROMPT_KINDS}
        found |= {(k, kind): rate for kind, rate in each.items()}
        found[k, None] = fmean(each.values())
    return {row: found[row] for row in wanted}


def compare(case: Case, effects: Effects) -> list[Comparison]:
    """Every published SSD row beside its uncalibrated band and its calibrated prediction.

    The band takes every assumption at the end of its range that is worse (better) on its own, by `effects`.
    """
    published = case.published()
    worse = {name: 0 if low.mean <= high.mean else 1 for name, (low, high) in effects.items()}
    better = {name: 1 - end for name, end in worse.items()}
    profiles = (
        assuming(case, worse),
        case.uncalibrated_profile(),
        assuming(case, better),
        case.calibrated_profile(),
    )
    predictions = [predict(profile, published) for profile in profiles]
    return [
        Comparison(
            row=row,
            published=rate,
            low=predictions[0][row],
            uncalibrated=predictions[1][row],
            high=predictions[2][row],
            calibrated=predictions[3][row],
        )
        for row, rate in published.items()
    ]


def sensitivities(case: Case) -> Effects:
    """How the rows change with one assumption at the low and at the high end of its range; SD's rows are kept."""
    central = predict(case.uncalibrated_profile(), case.ssd_rows)
    found = {}
    for name in case.knobs():
        low, high = (predict(assuming(case, {name: end}), case.ssd_rows) for end in (0, 1))
        found[name] = Effect(_changes(low, central)), Effect(_changes(high, central))
    return found


def assuming(case: Case, ends: dict[str, int]) -> Profile:
    """The uncalibrated profile with the named assumptions at an end (0 low, 1 high) of their ranges.

    Rows that are inputs are kept: host time is a part of AR's step, and acceptance is fitted to SD's rows anew.
    """
    profile = case.uncalibrated_profile()
    ar_s, sd_rate = 1 / rates.ar_rate(profile), rates.sd_rate(profile, None)
    for name, end in ends.items():
        for path, between in profile["ranges"].items():
            if path.endswith(KNOBS[name]):
                _set(profile, path, between["low" if end == 0 else "high"])
    _keep_ar(profile, ar_s)
    if abs(rates.sd_rate(profile, None) / sd_rate - 1) > 1e-6:
        rates.fit_acceptance(profile, case.rows)
    return profile


def _changes(rates_now: dict[Row, float], rates_before: dict[Row, float]) -> dict[Row, float]:
    return {row: rate / rates_before[row] - 1 for row, rate in rates_now.items()}


def _keep_ar(profile: Profile, ar_s: float) -> None:
    """Host time is a part of AR's step: what one gains, the other loses."""
    costs = profile["costs"]
    forward_s = 1 / rates.ar_rate(profile) - costs["host"]["seconds"]
    costs["verify"]["scale"] *= (ar_s - costs["host"]["seconds"]) / forward_s


def _set(profile: Profile, path: str, value: float) -> None:
    *parents, last = path.split(".")
    node: Any = profile
    for part in parents:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[last] = value


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """One lookahead's round for Qwen, averaged over the kinds of prompts; seconds."""

    lookahead: int
    window_s: float
    """From the reply's leaving to the outcomes' arrival: what hides the build."""
    build_s: float
    target_wait_s: float
    """What the target waits for the draft in one round: look-up, fallback, and the build beyond the window."""
    hit_rate: float
    rate: float
    rate_if_build_were_hidden: float


def anatomy(profile: Profile, lookahead: int) -> Anatomy:
    """Where the time of a Qwen round goes, and the rate with a build that takes no time."""
    found = [rates.columns(profile, "ssd", rates.ssd_drafting(lookahead), kind) for kind in rows.PROMPT_KINDS]
    hidden = deepcopy(profile)
    for phase in ("glue", "tree_step"):
        hidden["costs"][phase]["scale"] = 0.0
    return Anatomy(
        lookahead=lookahead,
        window_s=fmean(c["window_s"] for c in found),
        build_s=fmean(c["build_s"] for c in found),
        target_wait_s=profile["costs"]["lookup"]["seconds"]
        + fmean(c["fallback_s"] + c["build_wait_s"] for c in found),
        hit_rate=rates.hit_rate(profile, lookahead),
        rate=rates.mean_ssd_rate(profile, lookahead),
        rate_if_build_were_hidden=rates.mean_ssd_rate(hidden, lookahead),
    )
