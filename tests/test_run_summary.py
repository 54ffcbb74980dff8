"""What several runs come to: intervals that repeats do not narrow, and speed-ups with those of shared prompts."""

from __future__ import annotations

import pytest
from toy_scenarios import toy, toy_pair

from ssdsim.measurement import FinishedRun, RunSetting
from ssdsim.run_summary import summarise_runs
from ssdsim.scenario import Mode
from ssdsim.sim import simulate

NUM_REQUESTS = 48


def run_of(mode: Mode, seed: int, repeat: int = 0, num_requests: int = NUM_REQUESTS) -> FinishedRun:
    """A simulated run, its requests unlike each other in how well they are drafted."""
    scenario = toy(
        toy_pair(spread=0.3),
        mode=mode,
        workload__output_tokens=60,
        workload__num_requests=num_requests,
        run__seed=seed,
        run__warmup_requests=0,
    )
    setting = RunSetting(mode=mode, drafting=scenario.drafting, batch_size=1, temperature=0.0)
    records = simulate(scenario).records
    return FinishedRun(name=f"{mode}.r{repeat}", setting=setting, repeat=repeat, is_anchor=False, records=records)


def summaries_of(*runs: FinishedRun) -> dict[Mode, dict[str, tuple[float, float | None, float | None]]]:
    return {summary.setting.mode: dict(summary.quantities) for summary in summarise_runs(runs)}


def test_the_same_prompts_again_narrow_no_interval() -> None:
    once = summaries_of(run_of(Mode.SD, 1), run_of(Mode.SSD, 1))[Mode.SSD]
    thrice = [run_of(mode, 1, repeat) for repeat in range(3) for mode in (Mode.SD, Mode.SSD)]
    again = summaries_of(*thrice)[Mode.SSD]
    for name in ("tokens_per_s", "cache_hit_rate", "speedup_over_sd"):
        assert again[name] == pytest.approx(once[name]), name


def test_repeats_that_differ_widen_it() -> None:
    pairs = [(run_of(Mode.SD, seed, seed), run_of(Mode.SSD, seed, seed)) for seed in (1, 2, 3)]
    each = [summaries_of(*pair)[Mode.SSD]["speedup_over_sd"] for pair in pairs]
    together = summaries_of(*(run for pair in pairs for run in pair))[Mode.SSD]["speedup_over_sd"]
    values = sorted(speedup[0] for speedup in each)
    assert together[0] == values[1]
    assert together[1] is not None
    assert together[2] is not None
    assert together[1] <= values[0] < values[2] <= together[2]


def test_few_requests_tell_no_spread() -> None:
    few = summaries_of(run_of(Mode.SD, 1, num_requests=4), run_of(Mode.SSD, 1, num_requests=4))
    assert few[Mode.SSD]["speedup_over_sd"][1:] == (None, None)


@pytest.mark.parametrize("base", [Mode.AR, Mode.SD])
def test_the_interval_of_a_speed_up_covers_the_true_one(base: Mode) -> None:
    """95 % of 100 runs of 48 requests: from 89 to 100 but once in a hundred times. Seeds are fixed."""
    name = f"speedup_over_{base}"
    long = summaries_of(run_of(base, 10_000, num_requests=6_000), run_of(Mode.SSD, 10_000, num_requests=6_000))
    truth = long[Mode.SSD][name][0]
    covered = 0
    for seed in range(100):
        _, low, high = summaries_of(run_of(base, seed), run_of(Mode.SSD, seed))[Mode.SSD][name]
        assert low is not None
        assert high is not None
        covered += low <= truth <= high
    assert covered >= 89
    assert covered < 100, "so wide that it says nothing"
