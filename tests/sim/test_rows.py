"""Row laws: what the simulator draws from is what the design point says."""

from __future__ import annotations

import numpy as np
from runs import run_of

from ssdsim.design_point import resolve
from ssdsim.sim.rows import DRAFTED, REDRAFTED, TRUNCATED, UNDRAFTED, RowLaws


def laws_of(**fields: object) -> RowLaws:
    return RowLaws(resolve(run_of(**fields)))


def test_kinds_of_a_truncating_scenario() -> None:
    laws = laws_of(on_late="truncate")
    assert laws.num_proposed.tolist() == [5, 5, 0, 0, 1, 2, 3, 4]
    assert laws.num_proposed[[DRAFTED, REDRAFTED, UNDRAFTED, TRUNCATED + 3]].tolist() == [5, 5, 0, 3]
    assert laws.num_branches[DRAFTED] == 12


def test_ar_and_sd_have_nothing_in_the_cache() -> None:
    for mode, proposed in (("ar", 0), ("sd", 5)):
        laws = laws_of(mode=mode)
        assert not laws.looks_up
        assert laws.num_proposed.tolist() == [proposed]
        assert laws.num_branches.tolist() == [0]


def test_survival_multiplies_conditional_acceptance() -> None:
    laws = laws_of(acceptance=[0.9, 0.8, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(laws.survival(DRAFTED, np.array([0.1]))[0][:3], [0.9, 0.72, 0.36])


def test_a_lucky_request_accepts_more_at_every_position() -> None:
    laws = laws_of(spread=0.2, workload__output_tokens=50)
    unlucky, lucky = laws.survival(DRAFTED, np.array([0.1, 0.9]))
    assert np.all(lucky > unlucky)
