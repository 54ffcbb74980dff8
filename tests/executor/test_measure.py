"""Runs of a measurement: what lies on disk afterwards, what is skipped, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import start_python
from random_pair import write_random_pair

import executor.measure
from executor.engine import Generation
from executor.measure import measure
from executor.pairs import PAIRS_DIR
from executor.session import Session
from ssdsim.catalog import load_profile
from ssdsim.design_point import resolve
from ssdsim.errors import InputError, RunError
from ssdsim.exact import resolve_fallback
from ssdsim.measurement import (
    FinishedRun,
    MeasurementPlan,
    ModelSource,
    RunSetting,
    Texts,
    grid,
    read_run,
    read_runs,
    schedule,
)
from ssdsim.metrics import summarise
from ssdsim.profile import PairProfile
from ssdsim.rank_trace import rank_trace_of
from ssdsim.records import Source
from ssdsim.run_summary import drift, summarise_runs
from ssdsim.scenario import Drafting, FallbackChoice, FallbackKind, FanOut, Mode, Scenario
from ssdsim.schema import validate

pytestmark = pytest.mark.serial

TEXTS = Texts(num_prompts=4, max_tokens=12, seed=5)
"""One prompt of every kind."""


class Heard:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.total = self.finished = self.advanced = 0
        self.remarks: list[str] = []

    def start(self, total: int, finished: int) -> None:
        self.total, self.finished = total, finished

    def advance(self, count: int) -> None:
        self.advanced += count

    def remark(self, text: str) -> None:
        self.remarks.append(text)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    target, draft = write_random_pair(tmp_path_factory.mktemp("pair"))
    return ModelSource(target=str(target), draft=str(draft))


def settings(*modes: Mode, temperatures: tuple[float, ...] = (0.0,)) -> tuple[RunSetting, ...]:
    return grid(
        Drafting(),
        modes=modes,
        lookaheads=[3],
        fan_outs=[FanOut(policy="uniform", per_position=3)],
        fallbacks=[FallbackChoice()],
        downweights=[1.0],
        batch_sizes=[2],
        temperatures=temperatures,
    )


def plan_of(
    models: ModelSource, out: Path, *, modes: tuple[Mode, ...] = tuple(Mode), resume: bool = False
) -> MeasurementPlan:
    runs = schedule(settings(*modes, temperatures=(0.0, 1.0)))
    return MeasurementPlan(models=models, texts=TEXTS, runs=runs, out=out, resume=resume)


@pytest.fixture(scope="module")
def measured(models: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> MeasurementPlan:
    """All three modes at both temperatures."""
    plan = plan_of(models, tmp_path_factory.mktemp("measured"))
    measure(plan, Heard())
    return plan


@pytest.fixture(scope="module")
def runs(measured: MeasurementPlan) -> dict[str, FinishedRun]:
    return {run.setting.name: run for run in read_runs(measured.out)}


def test_every_planned_run_is_on_disk_and_says_what_made_it(
    measured: MeasurementPlan, runs: dict[str, FinishedRun]
) -> None:
    assert {run.setting.name for run in measured.runs} == set(runs)
    about = runs["ssd-K3-F3-jit-b2-T0"].records.about
    assert about["models"]["target"] == "target"
    assert len(about["models"]["target_sha256"]) == 64
    assert about["versions"].keys() >= {"python", "torch", "ssdsim"}
    assert about["machine"]["num_allowed_cores"] >= 1
    assert len(about["load_before"]["load_average"]) == 3
    assert about["prompt_kinds"] == ["chat", "code", "instructions", "maths"]


def test_no_path_of_this_machine_is_stored(measured: MeasurementPlan) -> None:
    for file in measured.out.glob("**/*.json"):
        assert str(measured.models.target) not in file.read_text()


def test_greedy_runs_of_all_modes_generate_the_same_tokens(runs: dict[str, FinishedRun]) -> None:
    digests = {run.records.about["outputs_sha256"] for run in runs.values() if run.setting.temperature == 0}
    assert len(digests) == 1


def test_ssd_with_jit_accepts_what_sd_accepts(runs: dict[str, FinishedRun]) -> None:
    """At temperature 1 too: a position's draw belongs to the position, not to the round that reaches it."""
    for temperature in ("T0", "T1"):
        sd, ssd = (runs[f"{name}-b2-{temperature}"].records for name in ("sd-K3", "ssd-K3-F3-jit"))
        accepted = [summarise(records)["mean_acceptance_length"].value for records in (sd, ssd)]
        assert accepted[0] == accepted[1]


@pytest.mark.parametrize("mode", [Mode.AR, Mode.SD, Mode.SSD])
def test_the_terms_of_a_round_add_up_to_it(runs: dict[str, FinishedRun], mode: Mode) -> None:
    """Consecutive rounds share their edges; what no term explains is a build that came late, and never negative."""
    for run in (run for run in runs.values() if run.setting.mode is mode):
        rounds = run.records.rounds.columns()
        ends = rounds["start_s"] + rounds["round_s"]
        np.testing.assert_allclose(rounds["start_s"][1:], ends[:-1], atol=1e-9)
        names = ("lookup_s", "fallback_s", "prefill_s", "reply_s", "verify_s", "accept_s", "outcome_s", "host_s")
        rest = rounds["round_s"] - sum(rounds[name] for name in names)
        assert rest.min() > -1e-9
        if mode is Mode.AR:
            np.testing.assert_allclose(rest, 0.0, atol=1e-9)


def test_the_first_rounds_pay_for_reading_the_prompts(runs: dict[str, FinishedRun]) -> None:
    rounds = runs["ar-b2-T0"].records.rounds.columns()
    assert rounds["round"][0] == 0
    assert rounds["prefill_s"][0] > 0
    assert rounds["prefill_s"][1] == 0


def test_requests_carry_the_number_of_their_prompt(runs: dict[str, FinishedRun]) -> None:
    for run in runs.values():
        requests = run.records.requests.columns()
        kind_of = dict(zip(requests["request_id"].tolist(), requests["prompt_kind"].tolist(), strict=True))
        assert kind_of == {0: 1, 1: 3, 2: 0, 3: 2}  # code, maths, chat, instructions: the order of the built-in file


def test_hits_are_ranks_within_the_fan_out(runs: dict[str, FinishedRun]) -> None:
    outcomes = runs["ssd-K3-F3-jit-b2-T0"].records.outcomes.columns()
    looked_up = np.isin(outcomes["lookup"], (1, 2)) & (outcomes["bonus_rank"] >= 1)
    hit = outcomes["bonus_rank"] <= outcomes["fan_out_here"]
    assert looked_up.sum() > 5
    np.testing.assert_array_equal(hit[looked_up], outcomes["lookup"][looked_up] == 1)


def test_the_rank_trace_explains_every_round_of_its_run(
    measured: MeasurementPlan, runs: dict[str, FinishedRun]
) -> None:
    """Replaying the ranks with the same lookahead gives the accepted counts that were measured."""
    run = runs["ssd-K3-F3-jit-b2-T0"]
    stored = json.loads((measured.out / "runs" / run.name / "rank_trace.json").read_text())["requests"]
    outcomes = run.records.outcomes.columns()
    assert stored == rank_trace_of(outcomes)
    for request, ranks in enumerate(stored):
        accepted = outcomes["num_accepted"][outcomes["request_id"] == request].tolist()
        place = 0
        for count in accepted:
            if place + count >= len(ranks):
                break
            assert ranks[place : place + count] == [0] * count
            assert count == 3 or ranks[place + count] > 0
            place += count + 1


def test_runs_with_random_proposals_tell_no_trace(runs: dict[str, FinishedRun]) -> None:
    outcomes = {
        name: column.copy() for name, column in runs["ssd-K3-F3-jit-b2-T0"].records.outcomes.columns().items()
    }
    outcomes["source"][0] = Source.RANDOM
    assert rank_trace_of(outcomes) is None


def test_the_summary_compares_with_ar_and_sd_of_the_same_load(runs: dict[str, FinishedRun]) -> None:
    summaries = {summary.setting.name: summary for summary in summarise_runs(runs.values())}
    rates = {name: summary.quantities["tokens_per_s"].value for name, summary in summaries.items()}
    ssd = summaries["ssd-K3-F3-jit-b2-T1"].quantities
    assert ssd["speedup_over_ar"].value == pytest.approx(rates["ssd-K3-F3-jit-b2-T1"] / rates["ar-b2-T1"])
    assert ssd["speedup_over_sd"].value == pytest.approx(rates["ssd-K3-F3-jit-b2-T1"] / rates["sd-K3-b2-T1"])
    assert "speedup_over_ar" not in summaries["ar-b2-T1"].quantities


def test_a_resumed_measurement_makes_the_missing_runs_only(
    measured: MeasurementPlan, models: ModelSource, tmp_path: Path
) -> None:
    out = tmp_path / "half"
    shutil.copytree(measured.out, out)
    plan = plan_of(models, out, resume=True)
    missing, kept = plan.folder(plan.runs[0]), plan.folder(plan.runs[1])
    shutil.rmtree(missing)
    missing.with_name(f"{missing.name}.partial").mkdir()  # what a killed run leaves behind
    before = (kept / "about.json").stat().st_mtime_ns
    heard = Heard()
    measure(plan, heard)
    tokens_per_run = TEXTS.num_prompts * TEXTS.max_tokens
    assert (heard.finished, heard.advanced) == (5 * tokens_per_run, tokens_per_run)
    assert read_run(missing).records.about["run"]["name"] == plan.runs[0].name
    assert (kept / "about.json").stat().st_mtime_ns == before
    assert not list(out.glob("runs/*.partial"))


def test_a_finished_measurement_is_not_overwritten(measured: MeasurementPlan, models: ModelSource) -> None:
    with pytest.raises(InputError, match="add --resume"):
        measure(plan_of(models, measured.out), Heard())


def test_other_options_are_not_mixed_into_a_measurement(measured: MeasurementPlan, models: ModelSource) -> None:
    longer = Texts(num_prompts=4, max_tokens=13, seed=5)
    plan = MeasurementPlan(models=models, texts=longer, runs=measured.runs, out=measured.out, resume=True)
    with pytest.raises(InputError, match="other max_tokens"):
        measure(plan, Heard())


def test_two_processes_do_not_write_into_one_folder(measured: MeasurementPlan, models: ModelSource) -> None:
    program = f"""
import time
from pathlib import Path
from executor.folder_lock import only_writer
with only_writer(Path({str(measured.out)!r})):
    print("held", flush=True)
    time.sleep(600)
"""
    other = start_python(program)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="out: another process is writing into"):
            measure(plan_of(models, measured.out, resume=True), Heard())
    finally:
        other.kill()
        other.communicate()
    measure(plan_of(models, measured.out, resume=True), Heard())


def test_speculation_without_a_draft_is_refused_before_anything_runs(models: ModelSource, tmp_path: Path) -> None:
    alone = ModelSource(target=models.target)
    with pytest.raises(InputError, match="draft: modes sd and ssd need one"):
        measure(plan_of(alone, tmp_path / "out"), Heard())
    assert not (tmp_path / "out").exists()


def test_a_start_that_fails_does_not_keep_its_folder(models: ModelSource, tmp_path: Path) -> None:
    """The corrected call goes through, without --resume."""
    too_long = Texts(num_prompts=4, max_tokens=100_000, seed=5)
    failed = MeasurementPlan(models=models, texts=too_long, runs=schedule(settings(Mode.AR)), out=tmp_path)
    with pytest.raises(InputError, match="max_context_tokens"):
        measure(failed, Heard())
    plan = MeasurementPlan(models=models, texts=TEXTS, runs=failed.runs, out=tmp_path)
    measure(plan, Heard())
    assert read_runs(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(models: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="out: cannot write"):
        measure(plan_of(models, tmp_path / "file"), Heard())


def test_a_run_that_lost_its_speculator_is_not_kept(
    models: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It measured plain decoding; the runs before it are kept."""

    def generate_alone(session: Session, *rest: Any) -> Generation:
        if session.speculator is not None:
            os.kill(session.speculator.pid, signal.SIGKILL)
        return _generate(session, *rest)

    _generate = executor.measure._generate
    monkeypatch.setattr(executor.measure, "_generate", generate_alone)
    plan = MeasurementPlan(
        models=models, texts=TEXTS, runs=schedule([*settings(Mode.SD), *settings(Mode.SSD)]), out=tmp_path
    )
    with pytest.raises(RunError, match="the speculator was lost"):
        measure(plan, Heard())
    assert [run.setting.mode for run in read_runs(tmp_path)] == [Mode.SD]


def test_a_profile_decides_fan_out_and_fallback(models: ModelSource, tmp_path: Path) -> None:
    """As the exact model would: the same policies without one are decided for a typical draft."""
    profile = validate(PairProfile, load_profile("llama-3.1-70b"))
    wanted = RunSetting(
        mode=Mode.SSD,
        drafting=Drafting(
            num_speculative_tokens=3,
            fan_out=FanOut(policy="optimal", per_position=3),
            fallback=FallbackChoice(kind=FallbackKind.AUTO),
        ),
        batch_size=2,
        temperature=0.0,
    )
    plan = MeasurementPlan(
        models=models, texts=TEXTS, runs=schedule([wanted]), out=tmp_path, profile=profile, resume=False
    )
    measure(plan, Heard())
    run = read_run(plan.folder(plan.runs[0]))
    point = resolve(validate(Scenario, {"pair": profile, "drafting": wanted.drafting, "workload": {"batch_size": 2}}))
    asked = run.records.about["scenario"]["drafting"]
    assert tuple(asked["fan_out"]["values"]) == point.drafted.fan_out
    assert asked["fallback"]["kind"] == resolve_fallback(point)[0]
    assert run.setting == wanted
    outcomes = run.records.outcomes.columns()
    after_hit = (outcomes["source"] == Source.HIT) & (outcomes["num_proposed"] == 3)
    prepared = np.asarray(point.drafted.fan_out)[outcomes["num_accepted"][after_hit]]
    assert outcomes["fan_out_here"][after_hit].tolist() == prepared.tolist()
    other = replace(plan, profile=None, runs=schedule(settings(Mode.AR)), resume=True)
    with pytest.raises(InputError, match="other profile"):
        measure(other, Heard())


def test_few_prompts_for_a_large_batch_are_remarked(models: ModelSource, tmp_path: Path) -> None:
    one = grid(
        Drafting(),
        modes=[Mode.AR],
        lookaheads=[1],
        fan_outs=[FanOut(policy="uniform", per_position=1)],
        fallbacks=[FallbackChoice()],
        downweights=[1.0],
        batch_sizes=[4],
        temperatures=[0.0],
    )
    texts = Texts(num_prompts=4, max_tokens=2)
    heard = Heard()
    measure(MeasurementPlan(models=models, texts=texts, runs=schedule(one), out=tmp_path), heard)
    assert heard.remarks == ["4 prompts fill a batch of 4 for a small part of a run only; give more"]


def test_the_built_in_pair_is_measured_under_its_own_name(tmp_path: Path) -> None:
    if not (PAIRS_DIR / "tiny" / "target" / "model.safetensors").is_file():
        pytest.skip("the weights of the pair `tiny` are not in this checkout")
    texts = Texts(num_prompts=2, max_tokens=6)
    plan = MeasurementPlan(
        models=ModelSource(pair="tiny"), texts=texts, runs=schedule(settings(Mode.SD)), out=tmp_path
    )
    measure(plan, Heard())
    about = read_run(plan.folder(plan.runs[0])).records.about
    assert (about["models"]["target"], about["models"]["draft"]) == ("tiny/target", "tiny/draft")


def test_anchors_stand_apart_from_the_combinations() -> None:
    chosen = settings(Mode.AR, Mode.SD)
    planned = schedule(chosen, repeats=2, anchor_every=3)
    assert [run.name for run in planned] == [
        "ar-b2-T0.anchor0",
        "ar-b2-T0.r0",
        "sd-K3-b2-T0.r0",
        "ar-b2-T0.r1",
        "ar-b2-T0.anchor1",
        "sd-K3-b2-T0.r1",
    ]
    assert drift([]) is None
