"""Requests through slots, and records that add up: what a reader of the three tables may rely on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_pairs import Pair, engine_config, prompts, run, small_pair

from executor.config import LARGEST_LOOKAHEAD, EngineConfig, Request
from executor.engine import Engine, Generation
from executor.local import LocalSpeculator
from executor.models import SPARE_POSITIONS
from ssdsim.errors import DomainError
from ssdsim.records import Lookup, Source
from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode

K = 3
NUM_REQUESTS, BATCH_SIZE = 7, 3
DRAFTING = Drafting(num_speculative_tokens=K, fan_out=FanOut(policy="explicit", values=(4, 3, 2, 3)))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


def requests(pair: Pair) -> list[Request]:
    found = prompts(NUM_REQUESTS, pair.target.vocab_size)
    return [Request(prompt=p, max_tokens=20 + 5 * i, prompt_kind=i % 2) for i, p in enumerate(found)]


@pytest.fixture(scope="module", params=["ar", "sd", "ssd"])
def generation(request: pytest.FixtureRequest, pair: Pair) -> Generation:
    return run(pair, request.param, requests(pair), DRAFTING, BATCH_SIZE)


def test_models_keep_positions_for_the_longest_branches() -> None:
    assert 2 * LARGEST_LOOKAHEAD + 1 < SPARE_POSITIONS
    with pytest.raises(DomainError, match="num_speculative_tokens"):
        EngineConfig(
            mode=Mode.SD,
            batch_size=1,
            max_context_tokens=8,
            vocab_size=9,
            drafting=Drafting(num_speculative_tokens=LARGEST_LOOKAHEAD + 1),
        )


def columns(generation: Generation, table: str) -> dict[str, Any]:
    return getattr(generation.records, table).columns()


def test_every_request_gets_its_tokens_and_its_row(generation: Generation, pair: Pair) -> None:
    table = columns(generation, "requests")
    order = np.argsort(table["request_id"])
    assert table["request_id"][order].tolist() == list(range(NUM_REQUESTS))
    assert table["output_tokens"][order].tolist() == [20 + 5 * i for i in range(NUM_REQUESTS)]
    assert table["output_tokens"][order].tolist() == [len(o.tokens) for o in generation.outputs]
    assert table["prompt_tokens"][order].tolist() == [len(r.prompt) for r in requests(pair)]
    assert table["prompt_kind"][order].tolist() == [i % 2 for i in range(NUM_REQUESTS)]
    assert (table["admitted_s"] <= table["first_token_s"]).all()
    assert (table["first_token_s"] <= table["finish_s"]).all()


def test_outcomes_of_a_request_sum_to_its_row(generation: Generation) -> None:
    outcomes, table = columns(generation, "outcomes"), columns(generation, "requests")
    for row, request_id in enumerate(table["request_id"]):
        mine = outcomes["request_id"] == request_id
        assert outcomes["num_emitted"][mine].sum() == table["output_tokens"][row]
        assert outcomes["num_accepted"][mine].sum() == table["num_accepted"][row]
        assert outcomes["num_proposed"][mine].sum() == table["num_proposed"][row]
        assert mine.sum() == table["num_rounds"][row]
        assert tuple(outcomes["num_accepted"][mine]) == generation.outputs[request_id].accepted_lengths


def test_a_round_lists_what_its_outcomes_list(generation: Generation) -> None:
    rounds, outcomes = columns(generation, "rounds"), columns(generation, "outcomes")
    for row, index in enumerate(rounds["round"]):
        mine = outcomes["round"] == index
        assert mine.sum() == rounds["batch_size"][row]
        assert outcomes["num_proposed"][mine].sum() + mine.sum() == rounds["num_query_tokens"][row]
        assert (outcomes["source"][mine] == Source.FIRST).sum() == rounds["num_first"][row]
        assert (outcomes["source"][mine] == Source.HIT).sum() == rounds["num_hits"][row]
        assert (outcomes["source"][mine] == Source.JIT).sum() == rounds["num_misses"][row]


def test_a_slot_goes_to_the_next_request_as_soon_as_it_is_free(generation: Generation) -> None:
    """The batch is full until fewer requests are left than slots."""
    sizes = columns(generation, "rounds")["batch_size"]
    assert sizes[0] == BATCH_SIZE
    assert (np.diff(sizes) <= 0).all()
    assert sizes[-1] >= 1


def test_rounds_follow_each_other_and_their_terms_are_times(generation: Generation) -> None:
    rounds = columns(generation, "rounds")
    assert (np.diff(rounds["start_s"]) > 0).all()
    for name, values in rounds.items():
        if name.endswith("_s"):
            assert np.isfinite(values).all(), name
            assert (values >= 0).all(), name
    assert (rounds["verify_s"] > 0).all()
    assert (rounds["verify_s"] <= rounds["round_s"]).all()


def test_a_look_up_hits_exactly_where_the_rank_is_within_the_fan_out(pair: Pair) -> None:
    outcomes = columns(run(pair, "ssd", requests(pair), DRAFTING, BATCH_SIZE), "outcomes")
    decided = (outcomes["lookup"] == Lookup.HIT) | (outcomes["lookup"] == Lookup.MISS)
    ranked = decided & (outcomes["bonus_rank"] > 0)
    assert ranked.sum() > 0.9 * decided.sum()
    within = outcomes["bonus_rank"][ranked] <= outcomes["fan_out_here"][ranked]
    assert (within == (outcomes["lookup"][ranked] == Lookup.HIT)).all()
    assert (outcomes["lookup"] == Lookup.FINAL).sum() == NUM_REQUESTS


def test_the_next_rounds_source_tells_how_the_last_look_up_ended(pair: Pair) -> None:
    outcomes = columns(run(pair, "ssd", requests(pair), DRAFTING, BATCH_SIZE), "outcomes")
    for request_id in range(NUM_REQUESTS):
        mine = outcomes["request_id"] == request_id
        sources, lookups = outcomes["source"][mine], outcomes["lookup"][mine]
        assert sources[0] == Source.FIRST
        expected = np.where(lookups[:-1] == Lookup.HIT, Source.HIT, Source.JIT)
        assert (sources[1:] == expected).all()
        assert lookups[-1] == Lookup.FINAL


def test_an_engine_can_generate_again(pair: Pair) -> None:
    asked = requests(pair)[:2]
    config = engine_config(pair, "ssd", asked, DRAFTING, batch_size=2)
    engine = Engine(config, pair.target, LocalSpeculator(config, pair.draft))
    first, second = (engine.generate(asked) for _ in range(2))
    engine.close()
    assert [o.tokens for o in first.outputs] == [o.tokens for o in second.outputs]
    assert columns(second, "requests")["request_id"].min() == 2


def test_policies_of_the_official_engine_write_the_same_tokens(pair: Pair) -> None:
    """A first round that counts as a miss, and a miss that re-drafts the hits beside it, cost time only."""
    plain = run(pair, "ssd", requests(pair), DRAFTING, BATCH_SIZE)
    official = DRAFTING.model_copy(update={"first_round": "miss", "redraft_hits": True})
    other = run(pair, "ssd", requests(pair), official, BATCH_SIZE)
    assert [o.tokens for o in other.outputs] == [o.tokens for o in plain.outputs]
    assert Source.FIRST not in columns(other, "outcomes")["source"]


class TestRefusals:
    def config(self, **changes: Any) -> EngineConfig:
        return EngineConfig(
            **({"mode": Mode.SSD, "batch_size": 1, "max_context_tokens": 32, "vocab_size": 96} | changes)
        )

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"batch_size": 0}, "batch_size"),
            ({"batch_size": True}, "batch_size"),
            ({"max_context_tokens": 2.5}, "max_context_tokens"),
            ({"drafting": Drafting(num_speculative_tokens=0)}, "num_speculative_tokens"),
            ({"drafting": Drafting(drafter="eagle")}, "drafter"),
            ({"drafting": Drafting(fallback=FallbackChoice(kind="threshold"))}, "threshold"),
            ({"drafting": Drafting(fallback=FallbackChoice(kind="auto"))}, "critical_batch_size"),
        ],
    )
    def test_an_arrangement_that_cannot_run(self, changes: dict[str, Any], field: str) -> None:
        with pytest.raises(DomainError) as caught:
            self.config(**changes)
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"prompt": []}, "prompt"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"temperature": -1.0}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"seed": -1}, "seed"),
        ],
    )
    def test_a_request_that_means_nothing(self, changes: dict[str, Any], field: str) -> None:
        with pytest.raises(DomainError) as caught:
            Request(**({"prompt": [1], "max_tokens": 3} | changes))
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("request_", "field"),
        [
            (Request(prompt=[1] * 30, max_tokens=3), "max_context_tokens"),
            (Request(prompt=[96], max_tokens=3), "prompt"),
            (Request(prompt=[1], max_tokens=3, temperature=1.0), "sampled"),
        ],
    )
    def test_a_request_that_this_engine_cannot_serve(self, pair: Pair, request_: Request, field: str) -> None:
        config = self.config(mode=Mode.AR)
        with pytest.raises(DomainError) as caught:
            Engine(config, pair.target).generate([request_])
        assert caught.value.field == field

    def test_a_speculator_where_the_mode_has_none(self, pair: Pair) -> None:
        with pytest.raises(DomainError, match="speculator: needed in modes sd and ssd, and only there"):
            Engine(self.config(mode=Mode.SD), pair.target)
