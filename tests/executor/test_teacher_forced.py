"""Observations of texts against their definitions, enumerated token by token from transformers' own logits."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from random_pair import write_random_pair
from safetensors.torch import load_file, save_file

from executor.measure import measure
from executor.models import LoadedModel, load_model
from executor.teacher_forced import PairReader, Positions, Text, observe
from ssdsim.errors import DomainError, InputError
from ssdsim.measurement import MeasurementPlan, ModelSource, Texts, grid, schedule
from ssdsim.observation import ObservationPlan, Observed, read_observations
from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode

pytestmark = pytest.mark.serial

FloatArray = NDArray[np.float64]

VOCAB_SIZE = 24
TEXT = Text(prompt=(3, 4, 5), written=(7, 2, 9, 11, 5, 6))
MAX_FAN_OUT = 6
FAN_OUT = 2
"""Candidates that Saguaro's constant lowers."""


class _Reporter:
    def start(self, total: int, finished: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def remark(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_random_pair(tmp_path_factory.mktemp("small"), vocab_size=VOCAB_SIZE)


@pytest.fixture(scope="module")
def pair(folders: tuple[Path, Path]) -> tuple[LoadedModel, LoadedModel]:
    target, draft = (load_model(str(folder)) for folder in folders)
    return target, draft


@pytest.fixture(scope="module")
def logits(folders: tuple[Path, Path]) -> list[FloatArray]:
    """Of target and draft [written, V], by transformers."""
    from transformers import LlamaForCausalLM

    tokens = torch.tensor([[*TEXT.prompt, *TEXT.written[:-1]]])
    with torch.inference_mode():
        models = [LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in folders]
        return [m(tokens).logits[0, len(TEXT.prompt) - 1 :].double().numpy() for m in models]


def read(pair: tuple[LoadedModel, LoadedModel], temperature: float, downweight: float = 1.0) -> Positions:
    reader = PairReader(*pair, FAN_OUT, MAX_FAN_OUT)
    with torch.inference_mode():
        return reader.read(TEXT, temperature, [downweight])[0]


def softmax(values: FloatArray, temperature: float) -> FloatArray:
    weights = np.exp((values - values.max()) / temperature)
    return weights / weights.sum()


def by_definition(p: FloatArray, q: FloatArray, ranked: list[int], token: int) -> dict[str, FloatArray]:
    """One position, every (rejected token, bonus token) enumerated; `ranked` are the draft's tokens, best first."""
    excess, rejection_hits = np.maximum(p - q, 0), np.zeros(MAX_FAN_OUT)
    for drafted in range(len(q)):
        rejected = q[drafted] - min(p[drafted], q[drafted])
        candidates = [other for other in ranked if other != drafted]
        for fan_out in range(1, MAX_FAN_OUT + 1):
            if rejected > 0:
                rejection_hits[fan_out - 1] += rejected * excess[candidates[:fan_out]].sum() / excess.sum()
    return {
        "accept_given_token": np.array(min(1.0, q[token] / p[token])),
        "accept_prob": np.minimum(p, q).sum(),
        "rejection_hits": rejection_hits,
        "bonus_hits": np.cumsum(p[ranked])[:MAX_FAN_OUT],
        "ranks": np.array(ranked.index(token)),
    }


def check(found: Positions, expected: list[dict[str, FloatArray]]) -> None:
    """To the accuracy of float32 logits."""
    for name in Positions._fields:
        wanted = np.stack([position[name] for position in expected])
        np.testing.assert_allclose(getattr(found, name), wanted, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("downweight", [1.0, 0.3])
def test_every_position_follows_the_definitions(
    pair: tuple[LoadedModel, LoadedModel], logits: list[FloatArray], temperature: float, downweight: float
) -> None:
    expected = []
    for target_row, draft_row, token in zip(*logits, TEXT.written, strict=True):
        ranked = np.argsort(-draft_row).tolist()
        q = softmax(draft_row, temperature)
        q[ranked[:FAN_OUT]] *= downweight
        expected.append(by_definition(softmax(target_row, temperature), q / q.sum(), ranked, token))
    check(read(pair, temperature, downweight), expected)


def test_greedy_positions_are_certain(pair: tuple[LoadedModel, LoadedModel], logits: list[FloatArray]) -> None:
    """The written token stands for the target's choice, the draft's favourite for the draft's."""
    expected = []
    for draft_row, token in zip(logits[1], TEXT.written, strict=True):
        ranked = np.argsort(-draft_row).tolist()
        p, q = np.eye(VOCAB_SIZE)[[token, ranked[0]]]
        expected.append(by_definition(p, q, ranked, token))
    found = read(pair, 0.0)
    check(found, expected)
    assert set(np.unique(found.accept_prob)) <= {0.0, 1.0}


def test_tokens_outside_a_reduced_head_are_never_proposed(
    pair: tuple[LoadedModel, LoadedModel], folders: tuple[Path, Path], logits: list[FloatArray], tmp_path: Path
) -> None:
    """A head over the odd tokens: even ones have probability zero in the draft and rank behind all others."""
    odd = torch.arange(1, VOCAB_SIZE, 2)
    shutil.copytree(folders[1], tmp_path / "reduced")
    weights = load_file(tmp_path / "reduced" / "model.safetensors")
    weights |= {"lm_head.weight": weights["lm_head.weight"][odd], "head_token_ids": odd.int()}
    save_file(weights, tmp_path / "reduced" / "model.safetensors")
    found = read((pair[0], load_model(str(tmp_path / "reduced"))), 1.0)
    expected = []
    for target_row, draft_row, token in zip(*logits, TEXT.written, strict=True):
        q = np.zeros(VOCAB_SIZE)
        q[odd] = softmax(draft_row[odd], 1.0)
        ranked = odd[np.argsort(-draft_row[odd])].tolist()
        position = by_definition(softmax(target_row, 1.0), q, [*ranked, *range(0, VOCAB_SIZE, 2)], token)
        position["ranks"] = np.array(ranked.index(token) if token in ranked else len(odd))
        expected.append(position)
    check(found, expected)


def test_a_fan_out_beyond_the_vocabulary_is_refused(pair: tuple[LoadedModel, LoadedModel]) -> None:
    with pytest.raises(DomainError, match="max_fan_out: must be below the draft's 24 tokens"):
        PairReader(*pair, 2, VOCAB_SIZE)


@pytest.fixture(scope="module")
def observed(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> ObservationPlan:
    plan = ObservationPlan(
        models=ModelSource(target=str(folders[0]), draft=str(folders[1])),
        texts=Texts(num_prompts=4, max_tokens=12, seed=5),
        out=tmp_path_factory.mktemp("observed"),
        temperatures=(0.0, 1.0),
        downweights=(0.5, 1.0),
        fan_out=FAN_OUT,
        max_fan_out=MAX_FAN_OUT,
    )
    observe(plan, _Reporter())
    return plan


def test_every_condition_is_stored_with_what_it_is_of(observed: ObservationPlan) -> None:
    about, conditions = read_observations(observed.out)
    assert [condition.name for condition in conditions] == ["T0-C1", "T1-C1", "T1-C0.5"]
    assert about["kind_of_text"] == [1, 3, 0, 2]
    assert {len(condition.lengths) for condition in conditions} == {4}


def test_constants_are_observed_on_the_same_text(observed: ObservationPlan) -> None:
    by_name = {condition.name: condition for condition in read_observations(observed.out)[1]}
    np.testing.assert_array_equal(by_name["T1-C1"].ranks, by_name["T1-C0.5"].ranks)
    assert (by_name["T1-C1"].accept_prob != by_name["T1-C0.5"].accept_prob).any()


def test_observations_are_not_overwritten(observed: ObservationPlan) -> None:
    with pytest.raises(InputError, match="holds observations already"):
        observe(observed, _Reporter())


def test_a_plan_lowers_no_more_candidates_than_its_curves_hold(observed: ObservationPlan) -> None:
    with pytest.raises(DomainError, match="fan_out: must be at most max_fan_out, which is 6; got 7"):
        replace(observed, fan_out=MAX_FAN_OUT + 1)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("temperatures", (0.0, 0.7)),
        ("fan_out", FAN_OUT + 1),
        ("max_fan_out", MAX_FAN_OUT + 1),
        ("texts", Texts(num_prompts=4, max_tokens=12, seed=6)),
        ("texts", Texts(num_prompts=4, max_tokens=12, seed=5, ignore_eos=True)),
        ("texts", Texts(num_prompts=3, max_tokens=12, seed=5)),
    ],
)
def test_a_plan_resumes_its_own_observations_only(observed: ObservationPlan, name: str, other: object) -> None:
    """Other threads write the same texts."""
    observe(replace(observed, resume=True, num_threads=2), _Reporter())
    with pytest.raises(InputError, match="holds observations with other"):
        observe(replace(observed, resume=True, **{name: other}), _Reporter())


def test_the_engine_meets_the_ranks_that_were_foreseen(observed: ObservationPlan, tmp_path: Path) -> None:
    """Greedy SSD over the same prompts: its records give the texts' rank trace, all but the last round's rank."""
    settings = grid(
        Drafting(),
        modes=[Mode.SSD],
        lookaheads=[2],
        fan_outs=[FanOut(policy="uniform", per_position=2)],
        fallbacks=[FallbackChoice()],
        downweights=[1.0],
        batch_sizes=[2],
        temperatures=[0.0],
    )
    plan = MeasurementPlan(models=observed.models, texts=observed.texts, runs=schedule(settings), out=tmp_path)
    measure(plan, _Reporter())
    met = json.loads((plan.folder(plan.runs[0]) / "rank_trace.json").read_text())["requests"]
    foreseen = json.loads((observed.out / "rank_trace.json").read_text())["requests"]
    assert len(met) == len(foreseen)
    for ranks, wanted in zip(met, foreseen, strict=True):
        assert len(wanted) - 1 <= len(ranks) <= len(wanted)
        assert ranks == wanted[: len(ranks)]


def test_some_texts_can_be_taken_alone(observed: ObservationPlan) -> None:
    condition: Observed = read_observations(observed.out)[1][0]
    part = condition.of_texts(np.array([True, False, False, True]))
    np.testing.assert_array_equal(part.ranks, condition.ranks[[0, 3]])
    assert part.temperature == condition.temperature
