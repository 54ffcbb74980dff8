"""The exact model of a scenario: from the numbers of a design point to long-run rates, for many points at once.

- `slots`: what one sequence does from round to round (law of its rows, tokens per round)
- `rounds`: the rounds of a saturated batch in seconds, in arrays over points that share a `Setting`
- `static`: a batch that starts together and runs to its last request
- `fallbacks`: `auto` and `threshold` resolved, and the batch size at which the fast fallback overtakes

`evaluate` is the door for one scenario, `planning` for many. What only simulation can answer is refused with a
`DomainError` that says so.
"""

from ssdsim.exact.fallbacks import ResolvedFallback, critical_batch_sizes, resolve_fallback
from ssdsim.exact.rounds import Columns, Setting, batch_columns, setting_of
from ssdsim.exact.slots import SlotNumbers, slot_numbers
from ssdsim.exact.static import static_columns

__all__ = [
    "Columns",
    "ResolvedFallback",
    "Setting",
    "SlotNumbers",
    "batch_columns",
    "critical_batch_sizes",
    "resolve_fallback",
    "setting_of",
    "slot_numbers",
    "static_columns",
]
