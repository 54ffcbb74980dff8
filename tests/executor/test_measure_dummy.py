"""Weights that cannot be had: the timeline of a pair is measured with random weights and drawn outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dummy_pair import write_dummy_pair
from typer.testing import CliRunner

from executor.measure import measure
from ssdsim.cli.app import app
from ssdsim.evaluate import Method, evaluate
from ssdsim.measurement import MeasurementPlan, ModelSource, RunSetting, Texts, grid, read_run, schedule
from ssdsim.profile import Behaviour
from ssdsim.records import Lookup
from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode
from ssdsim.scenario_files import scenario_from

pytestmark = pytest.mark.serial


@pytest.fixture
def shapes(tmp_path: Path) -> tuple[str, str]:
    """Sources of a target and a smaller draft with random weights."""
    return write_dummy_pair(tmp_path)


def test_measure_draws_the_outcomes_of_a_dummy_pair(shapes: tuple[str, str], tmp_path: Path) -> None:
    """The default law accepts 7 of 10: over some 300 rounds the share lies within 4.5 standard errors of it."""
    target, draft = shapes
    arguments = ["measure", "--target", target, "--draft", draft, "--mode", "ssd", "-K", "3", "--num-prompts", "8"]
    result = CliRunner().invoke(app, [*arguments, "--max-tokens", "64", "--out", str(tmp_path / "runs"), "--quiet"])
    assert result.exit_code == 0, result.output
    (about,) = (json.loads(path.read_text()) for path in (tmp_path / "runs").rglob("about.json"))
    assert about["synthetic"] is True
    from ssdsim.records import Records

    (folder,) = {path.parent for path in (tmp_path / "runs").rglob("outcomes.parquet")}
    outcomes = Records.read(folder).outcomes.columns()
    share = (outcomes["num_accepted"] > 0).mean()
    assert abs(share - 0.7) < 4.5 * (0.21 / len(outcomes["num_accepted"])) ** 0.5
    assert (outcomes["lookup"] == 1).any()


def test_a_plan_may_draw_the_outcomes_of_any_pair_from_a_law(shapes: tuple[str, str], tmp_path: Path) -> None:
    """12 requests of 48 tokens with three of four tokens accepted: some 140 first positions, and all bonus tokens."""
    law = Behaviour.model_validate(
        {
            "acceptance": {"per_position": 0.75},
            "hit_curves": {"after_draft": {"rejection": {"kind": "table", "hit_probs": [0.0, 0.0, 1.0]}}},
        }
    )
    plan = MeasurementPlan(
        models=ModelSource(target=shapes[0], draft=shapes[1]),
        texts=Texts(num_prompts=12, max_tokens=48, ignore_eos=True),
        runs=schedule(settings_of(fan_out=1)),
        out=tmp_path / "runs",
        synthetic=law,
    )
    measure(plan, Unheard())
    records = read_run(plan.folder(plan.runs[0])).records
    assert Behaviour.model_validate(records.about["synthetic"]) == law
    outcomes = records.outcomes.columns()
    share, count = (outcomes["num_accepted"] > 0).mean(), len(outcomes["num_accepted"])
    assert abs(share - 0.75) < 4.5 * (0.75 * 0.25 / count) ** 0.5
    # With one branch per position no rejection is ever found, with all accepted (4 in 5 of the best guess) most are.
    looked_up = outcomes["lookup"] != Lookup.NOT_MADE
    rejected = looked_up & (outcomes["num_accepted"] < outcomes["num_proposed"])
    assert not (outcomes["lookup"][rejected] == Lookup.HIT).any()
    assert (outcomes["lookup"][looked_up & ~rejected] == Lookup.HIT).any()


def settings_of(fan_out: int) -> tuple[RunSetting, ...]:
    """One greedy SSD setting."""
    return grid(
        Drafting(),
        modes=[Mode.SSD],
        lookaheads=[3],
        fan_outs=[FanOut(policy="uniform", per_position=fan_out)],
        fallbacks=[FallbackChoice()],
        downweights=[1.0],
        batch_sizes=[2],
        temperatures=[0.0],
    )


class Unheard:
    """A reporter that nobody hears."""

    def start(self, total: int, finished: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def remark(self, text: str) -> None: ...


def test_the_real_method_gives_a_dummy_pair_its_profiles_law(shapes: tuple[str, str]) -> None:
    target, draft = shapes
    seconds = {"kind": "constant", "seconds": 0.01}
    curve = {"kind": "power", "miss_exponent": 1.0, "miss_prefactor": 0.3}
    scenario = scenario_from(
        {
            "pair": {
                "name": "shapes",
                "target": target,
                "draft": draft,
                "hardware": {"target_device": "cpu", "draft_device": "cpu"},
                "behaviours": [
                    {
                        "acceptance": {"per_position": 0.9},
                        "hit_curves": {"after_draft": {"rejection": curve}},
                    }
                ],
                "costs": {"kind": "components", "verify": seconds, "draft_step": seconds, "tree_step": seconds},
            },
            "drafting": {"num_speculative_tokens": 3, "fan_out": {"policy": "uniform", "per_position": 2}},
            "workload": {"prompt_tokens": 16, "output_tokens": 64, "num_requests": 12, "batch_size": 2},
        }
    )
    measured = evaluate(scenario, Method.REAL, Mode.SSD).quantities
    expected = evaluate(scenario, Method.EXACT, Mode.SSD).quantities
    # 12 requests of about 19 rounds: an acceptance length of 3.4 is known to about 1.06 / sqrt(228) = .07.
    assert measured["mean_acceptance_length"].value == pytest.approx(
        expected["mean_acceptance_length"].value, abs=4.5 * 0.07
    )
    assert measured["cache_hit_rate"].value == pytest.approx(expected["cache_hit_rate"].value, abs=4.5 * 0.03)
