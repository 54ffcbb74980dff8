"""What a prediction rests on: which numbers are assumed, and where a scenario leaves the calibrated range.

Used wherever a prediction is shown (tables, titles), so that no number looks better founded than it is.
"""

from __future__ import annotations

from typing import NamedTuple

from ssdsim.distributions import mean_length
from ssdsim.scenario import Scenario


class Caveats(NamedTuple):
    """What to keep in mind about a scenario's predictions."""

    assumed: tuple[str, ...]
    """Paths below `pair` whose numbers are assumed, not measured, fitted or published."""
    extrapolated: tuple[str, ...]
    """How the scenario lies outside the range for which the profile's numbers were obtained."""

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each kind that applies."""
        assumed = f"assumed: {', '.join(self.assumed)}" if self.assumed else ""
        extrapolated = f"extrapolated: {', '.join(self.extrapolated)}" if self.extrapolated else ""
        return tuple(filter(None, (assumed, extrapolated)))

    @property
    def title(self) -> str:
        """The shortest form, for a picture's title; empty where there is nothing to say."""
        words = [word for word, paths in (("assumed", self.assumed), ("extrapolated", self.extrapolated)) if paths]
        return f"partly {' and '.join(words)}" if words else ""


def caveats_of(scenario: Scenario) -> Caveats:
    """The caveats of one scenario."""
    provenance = scenario.pair.provenance
    assumed = tuple(sorted(path for path, origin in provenance.items() if origin.kind == "assumed"))
    return Caveats(assumed, tuple(_beyond_limits(scenario)))


def _beyond_limits(scenario: Scenario) -> list[str]:
    limits, drafting, workload = scenario.pair.limits, scenario.drafting, scenario.workload
    output = mean_length(workload.output_tokens) if workload.output_tokens is not None else 0.0
    positions = drafting.num_speculative_tokens + 1
    reached = (
        ("batch_size", workload.batch_size, limits.max_batch_size),
        ("num_speculative_tokens", drafting.num_speculative_tokens, limits.max_speculative_tokens),
        ("fan_out", drafting.fan_out.total(positions) / positions, limits.max_fan_out),
        ("context_tokens", mean_length(workload.prompt_tokens) + output, limits.max_context_tokens),
    )
    return [
        f"{name} {value:g} beyond {limit}" for name, value, limit in reached if limit is not None and value > limit
    ]
