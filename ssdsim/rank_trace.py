"""The rank trace of a greedy run, from its records: what replays any lookahead, fan-out and fallback exactly.

A trace holds, per emitted token, the rank of the target's token in the draft's logits on the true prefix (0: they
agree). The records have it in pieces: an accepted token agreed, and a round's bonus token is ranked among the
candidates of its position, without the token that was rejected there, which was the draft's favourite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.records import Source

Columns = Mapping[str, NDArray[Any]]

_REVEALING = (Source.FIRST, Source.HIT, Source.JIT, Source.NONE)
"""Sources whose rounds tell the ranks: the draft's own tokens, or none."""


def rank_trace_of(outcomes: Columns) -> list[list[int]] | None:
    """One list of ranks per request, in order of request ids; None where the outcome table does not tell them.

    `outcomes` are the columns of a greedy SSD run's outcome table. A request's list ends before the first token whose
    rank is not known (the last round of a run is not ranked). Requests of which nothing is known are left out.
    """
    source = outcomes["source"]
    if not len(source) or not np.isin(source, _REVEALING).all() or (outcomes["bonus_rank"] < 1).all():
        return None
    order = np.lexsort((outcomes["round"], outcomes["request_id"]))
    rows = {name: outcomes[name][order].astype(np.int64) for name in outcomes}
    everything = rows["num_accepted"] == rows["num_proposed"]
    bonus = rows["bonus_rank"] - everything
    edges = np.flatnonzero(np.diff(rows["request_id"])) + 1
    traces = [
        _trace(rows["num_accepted"][part], rows["num_emitted"][part], bonus[part], rows["bonus_rank"][part] >= 1)
        for part in np.split(np.arange(len(order)), edges)
    ]
    return [trace for trace in traces if trace]


def _trace(
    num_accepted: NDArray[np.int64],
    num_emitted: NDArray[np.int64],
    bonus: NDArray[np.int64],
    known: NDArray[np.bool_],
) -> list[int]:
    ranks: list[int] = []
    for accepted, emitted, rank, is_known in zip(num_accepted, num_emitted, bonus, known, strict=True):
        ranks += [0] * int(min(accepted, emitted))
        if emitted > accepted:
            if not is_known:
                break
            ranks.append(int(rank))
    return ranks
