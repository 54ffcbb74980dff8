"""What a prediction rests on: which numbers are assumed, and where a scenario leaves the calibrated range.

Used wherever a prediction is shown (notes, tables, titles), so that no number looks better founded than it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ssdsim.design_point import behaviour_of
from ssdsim.scenario import FallbackKind, Scenario


class Caveats(NamedTuple):
    """What to keep in mind about a scenario's predictions."""

    assumed: tuple[str, ...]
    """Fields of the profile that are used here and whose numbers are assumed: not measured, fitted or published."""
    extrapolated: tuple[str, ...]
    """How the scenario lies outside the range for which the profile's numbers were obtained."""

    @property
    def title(self) -> str:
        """The shortest form, for a picture's title; empty where there is nothing to say."""
        kinds = (("assumed", self.assumed), ("extrapolated", self.extrapolated))
        words = [word for word, what in kinds if what]
        return f"partly {' and '.join(words)}" if words else ""


def caveats_of(scenario: Scenario) -> Caveats:
    """The caveats of one scenario."""
    beyond = beyond_limits(scenario)
    extrapolated = tuple(f"{what} {value} beyond {limit}" for what, (value, limit) in beyond.items())
    return Caveats(tuple(_assumed(scenario)), extrapolated)


def _assumed(scenario: Scenario) -> Iterator[str]:
    """Assumed numbers that the scenario uses, without the number of the behaviour."""
    pair = scenario.pair
    used = pair.behaviours.index(behaviour_of(scenario))
    for path, origin in sorted(pair.provenance.items()):
        behaviour = re.match(r"behaviours\.(\d+)\.", path)
        unused = behaviour is not None and int(behaviour[1]) != used
        unused |= "ngram" in path and scenario.drafting.fallback.kind is not FallbackKind.NGRAM
        if origin.kind == "assumed" and not unused:
            yield path[behaviour.end() :] if behaviour is not None else path


def beyond_limits(scenario: Scenario) -> dict[str, tuple[int, int]]:
    """What lies beyond the profile's limits, as {what: (value, limit)}."""
    limits, drafting, workload = scenario.pair.limits, scenario.drafting, scenario.workload
    positions = drafting.num_speculative_tokens + 1
    context = int(workload.prompt_tokens.pmf()[0].max())
    context += int(workload.output_tokens.pmf()[0].max()) if workload.output_tokens is not None else 0
    reached = {
        "batch size": (workload.batch_size, limits.max_batch_size),
        "lookahead": (drafting.num_speculative_tokens, limits.max_speculative_tokens),
        "fan-out": (-(-drafting.fan_out.total(positions) // positions), limits.max_fan_out),
        "context": (context, limits.max_context_tokens),
    }
    return {what: (value, limit) for what, (value, limit) in reached.items() if limit is not None and value > limit}
