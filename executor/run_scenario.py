"""A run described as a scenario without a pair: what a profile completes to a prediction of this very run.

Used by `executor.measure` and `executor.job`, whose records calibration and validation read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ssdsim.measurement import RunSetting
from ssdsim.records import Records


def scenario_of(name: str, setting: RunSetting, records: Records, seed: int) -> dict[str, Any]:
    """As plain data: what was asked, and the lengths that came of it."""
    requests = records.requests.columns()
    return {
        "name": name,
        "mode": setting.mode.value,
        "drafting": setting.drafting.model_dump(mode="json"),
        "workload": {
            "arrivals": "closed",
            "batch_size": setting.batch_size,
            "prompt_tokens": lengths_law(requests["prompt_tokens"]),
            "output_tokens": lengths_law(requests["output_tokens"]),
            "num_requests": len(requests["request_id"]),
            "temperature": setting.temperature,
        },
        "run": {"seed": seed, "warmup_rounds": 0, "warmup_requests": 0},
    }


def lengths_law(lengths: Sequence[int] | np.ndarray[Any, Any]) -> dict[str, Any]:
    """Measured lengths as the scenario's distribution."""
    values, counts = np.unique(np.asarray(lengths), return_counts=True)
    if len(values) == 1:
        return {"kind": "constant", "value": int(values[0])}
    return {"kind": "empirical", "values": values.tolist(), "weights": [float(count) for count in counts]}
