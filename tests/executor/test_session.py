"""A session arranges the roles as its mode wants them, says how, and leaves this process as it was."""

from __future__ import annotations

import os

import pytest
import torch
from processes import is_alive
from small_pairs import Pair, engine_config, prompts, small_pair

from executor.config import Request
from executor.placement import CoreReservation, allowed_cores
from executor.roles import ModelPair
from executor.session import Arrangement, open_engine
from executor.transport import Transport, best_transport
from ssdsim.errors import InputError

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def small() -> Pair:
    return small_pair()


@pytest.fixture(scope="module")
def requests(small: Pair) -> list[Request]:
    return [Request(prompt=p, max_tokens=16) for p in prompts(3, small.target.vocab_size)]


def source(small: Pair) -> ModelPair:
    return ModelPair(target=small.target_dir, draft=small.draft_dir)


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_where_the_roles_take_turns_there_is_one_process(small: Pair, requests: list[Request], mode: str) -> None:
    with open_engine(engine_config(small, mode, requests), source(small)) as session:
        assert session.speculator is None
        assert session.about["transport"] is None
        assert session.about["speculator_placement"] is None
        assert len(session.engine.generate(requests).outputs) == 3


def test_ssd_has_two_processes_and_all_is_undone_at_the_end(small: Pair, requests: list[Request]) -> None:
    cores, num_threads = allowed_cores(), torch.get_num_threads()
    arrangement = Arrangement(num_threads=1)
    with open_engine(engine_config(small, "ssd", requests), source(small), arrangement) as session:
        assert session.speculator is not None
        pid = session.speculator.pid
        assert is_alive(pid)
        assert session.about["transport"] == str(best_transport())
        placed = [session.about[f"{role}_placement"] for role in ("verifier", "speculator")]
        assert placed[0].startswith("cores") == placed[1].startswith("cores")
        if placed[0].startswith("cores"):
            assert not os.sched_getaffinity(0) & os.sched_getaffinity(pid)
        assert len(session.engine.generate(requests).outputs) == 3
    assert not is_alive(pid)
    assert (allowed_cores(), torch.get_num_threads()) == (cores, num_threads)


def test_pinning_can_be_left_to_the_scheduler(small: Pair, requests: list[Request]) -> None:
    cores = allowed_cores()
    with open_engine(engine_config(small, "ar", requests), source(small), Arrangement(pin=False)) as session:
        assert allowed_cores() == cores
        assert session.about["verifier_placement"] == "not pinned, 1 thread"


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_cores_given_by_name_are_used_although_another_engine_holds_them(
    small: Pair, requests: list[Request]
) -> None:
    cores = allowed_cores()
    others = [CoreReservation([1]) for _ in cores]
    arrangement = Arrangement(cores=(cores[1], cores[0]))
    with open_engine(engine_config(small, "ssd", requests), source(small), arrangement) as session:
        assert session.about["verifier_placement"] == f"cores {cores[1]}, 1 thread"
        assert session.about["speculator_placement"] == f"cores {cores[0]}, 1 thread"
        assert len(session.engine.generate(requests).outputs) == 3
    assert allowed_cores() == cores
    for other in others:
        other.release()


def test_a_mode_that_drafts_needs_a_draft(small: Pair, requests: list[Request]) -> None:
    config = engine_config(small, "ssd", requests)
    for transport in (Transport.LOCAL, None):
        opened = open_engine(config, ModelPair(target=small.target_dir), Arrangement(transport=transport))
        with pytest.raises(InputError, match="draft: needed in modes sd and ssd"):
            opened.__enter__()
