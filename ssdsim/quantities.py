"""The reported quantities: their names, what they are called where people read them, and in which unit.

Used by the command line's tables and by the pictures, so that a quantity looks the same everywhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Quantity(NamedTuple):
    """A reported number with its bounds, which are absent until they are known."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Quantity:
        """The quantity times a positive number."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Quantity(self.value * factor, low, high)

    def text(self, digits: int = 3) -> str:
        """Value and bounds with so many decimals: `0.73 [0.66, 0.79]`."""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class Label(NamedTuple):
    """How a quantity is shown."""

    text: str
    unit: str
    scale: float = 1.0
    """Shown value = value * scale."""

    @property
    def title(self) -> str:
        """Text and unit, for a table's head or an axis."""
        return f"{self.text} ({self.unit})" if self.unit else self.text

    def show(self, value: float | None) -> str:
        """The value with four significant digits; a dash where it is unknown."""
        if value is None or math.isnan(value):
            return "-"
        shown = value * self.scale
        digits = 3 - math.floor(math.log10(abs(shown))) if shown and math.isfinite(shown) else 0
        return f"{shown:,.{min(max(digits, 0), 5)}f}"


LABELS: dict[str, Label] = {
    "tokens_per_s": Label("output", "tokens/s"),
    "tokens_per_s_per_request": Label("output per request", "tokens/s"),
    "tokens_per_s_per_device": Label("output per device", "tokens/s"),
    "speedup_over_ar": Label("speed-up over AR", "x"),
    "speedup_over_sd": Label("speed-up over SD", "x"),
    "mean_acceptance_length": Label("mean acceptance length", "tokens"),
    "cache_hit_rate": Label("cache hit rate", ""),
    "hit_rate_after_draft": Label("hit rate after a draft", ""),
    "hit_rate_after_fallback": Label("hit rate after a fallback", ""),
    "prob_all_hit": Label("P(all hit)", ""),
    "round_s": Label("round", "ms", 1e3),
    "window_s": Label("verification window", "ms", 1e3),
    "build_wait_s": Label("wait for the build", "ms", 1e3),
    "build_s": Label("cache build", "ms", 1e3),
    "fallback_s": Label("drafting per round", "ms", 1e3),
    "overhead_s": Label("look-up and host", "ms", 1e3),
    "tpot_s": Label("time per output token", "ms", 1e3),
}


_LATENCIES = {
    "ttft_s": Label("time to first token", "ms", 1e3),
    "itl_s": Label("gap between bursts", "ms", 1e3),
    "e2e_s": Label("end to end", "ms", 1e3),
}
"""Quantities of requests, which only a run has."""


def label_of(name: str) -> Label:
    """The label of a quantity; one that is not listed is shown under its name, seconds as milliseconds."""
    if name in LABELS or name in _LATENCIES:
        return LABELS.get(name) or _LATENCIES[name]
    if name.endswith("_per_s"):
        return Label(name.removesuffix("_per_s").replace("_", " "), "1/s")
    if name.endswith("_s"):
        return Label(name.removesuffix("_s").replace("_", " "), "ms", 1e3)
    return Label(name.replace("_", " "), "")
