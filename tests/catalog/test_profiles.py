"""The embedded profiles: every number says where it comes from, and the files follow from the reference data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.published import profiles, rows
from ssdsim.catalog import load_profile, profile_names
from ssdsim.costs.models import ComponentCosts
from ssdsim.costs.terms import SumTerm, TableTerm
from ssdsim.profile import PairProfile
from ssdsim.scenario_files import load_scenario, value_at

NAMES = profile_names()
PUBLISHED = ("llama-3.1-70b", "qwen3-32b")
ABOUT_NUMBERS = {"schema_version", "provenance", "ranges"}
"""Parts of a profile that speak about its numbers."""

FOLDER = Path(profiles.__file__).parents[2] / "ssdsim" / "catalog" / "profiles"


def numeric_leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, str(key))
        yield from numeric_leaves(value, (*path, str(key)))


def costs_of(name: str) -> ComponentCosts:
    costs = load_scenario(pair=name).pair.costs
    assert isinstance(costs, ComponentCosts)
    return costs


def test_both_published_pairs_are_embedded() -> None:
    assert set(PUBLISHED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestEveryProfile:
    def test_it_is_a_valid_profile_under_its_own_name(self, name: str) -> None:
        assert load_scenario(pair=name).pair.name == name

    def test_every_number_has_a_provenance_of_its_own_or_from_above(self, name: str) -> None:
        data = load_profile(name)
        told = {tuple(path.split(".")) for path in data["provenance"]}
        leaves = [leaf for leaf in numeric_leaves(data) if leaf[0] not in ABOUT_NUMBERS]
        untold = [leaf for leaf in leaves if not any(leaf[:i] in told for i in range(1, len(leaf) + 1))]
        assert leaves
        assert untold == []

    def test_every_provenance_covers_a_number(self, name: str) -> None:
        data = load_profile(name)
        leaves = set(numeric_leaves(data))
        for path in data["provenance"]:
            parts = tuple(path.split("."))
            assert any(leaf[: len(parts)] == parts for leaf in leaves) or value_at(data, parts) is not None, path

    def test_every_assumed_number_has_a_range_that_contains_it(self, name: str) -> None:
        profile, data = PairProfile.model_validate(load_profile(name)), load_profile(name)
        assumed = {path for path, origin in profile.provenance.items() if origin.kind == "assumed"}
        assert assumed <= set(profile.ranges)
        for path, between in profile.ranges.items():
            assert between.low <= value_at(data, tuple(path.split("."))) <= between.high, path

    def test_provenance_names_no_place_on_somebodys_machine(self, name: str) -> None:
        sources = [origin["source"] for origin in load_profile(name)["provenance"].values()]
        assert not [source for source in sources if re.search(r"(^|[\s(])[/~]", source)]


@pytest.mark.parametrize("name", PUBLISHED)
class TestPublishedFiles:
    def test_the_file_is_small_and_shows_its_differences(self, name: str) -> None:
        text = (FOLDER / f"{name}.json").read_text()
        assert len(text) < 40_000
        assert text == profiles.serialise(json.loads(text))

    def test_the_builder_reproduces_the_file_from_the_reference_data(self, name: str, shared_data: Path) -> None:
        assert profiles.serialise(profiles.build(shared_data)[name]) == (FOLDER / f"{name}.json").read_text()


@pytest.mark.parametrize(("name", "published"), [("llama-3.1-70b", rows.LLAMA), ("qwen3-32b", rows.QWEN)])
class TestGrowth:
    """Verification grows from the published AR step."""

    def test_one_sequence_and_one_token_take_the_published_ar_step(self, name: str, published: rows.Rows) -> None:
        costs = costs_of(name)
        ar_step_s = float(costs.verify_s(1, 1, 512) + costs.host_s(1))
        assert ar_step_s == pytest.approx(len(published.ar) / sum(published.ar), rel=1e-4)

    def test_it_never_falls_with_width_batch_or_context(self, name: str, published: rows.Rows) -> None:
        costs = costs_of(name)
        assert np.all(np.diff(costs.verify_s(1, np.arange(1, 300), 1024)) >= 0)
        assert np.all(np.diff(costs.verify_s(np.arange(1, 129), 300, 1024)) >= 0)
        assert np.all(np.diff(costs.verify_s(16, 128, np.arange(1, 8192, 64))) >= 0)

    def test_a_verification_of_eight_tokens_costs_about_one_ar_step(self, name: str, published: rows.Rows) -> None:
        """Decoding is bound by reading weights: eight rows are read as fast as one."""
        costs = costs_of(name)
        assert 1.0 < float(costs.verify_s(1, 8, 512) / costs.verify_s(1, 1, 512)) < 1.05

    def test_limits_say_that_only_batch_one_was_published(self, name: str, published: rows.Rows) -> None:
        limits = load_scenario(pair=name).pair.limits
        assert limits.max_batch_size == 1
        assert limits.max_speculative_tokens == max(published.ssd)


def test_growth_with_batch_follows_the_composed_kernels(shared_data: Path) -> None:
    """Batch 64 over batch 1, relative to the same ratio of composed steps: within the scatter of picked kernels."""
    kernels = profiles.Kernels.read(shared_data)
    for target, name in ((profiles.LLAMA_TARGET, "llama-3.1-70b"), (profiles.QWEN_TARGET, "qwen3-32b")):
        parts = kernels.composed[target.name, target.tp, 64, 1024]
        composed = sum(parts.values()) / kernels.step_s(target)
        verify = costs_of(name).verify
        assert float(verify(64, 64, 1024) / verify(1, 1, 1024)) == pytest.approx(composed, rel=0.06)


def test_rows_of_a_matrix_product_never_cost_less_than_fewer(shared_data: Path) -> None:
    dense = TableTerm.model_validate(profiles.Kernels.read(shared_data).dense(profiles.LLAMA_TARGET))
    assert np.all(np.diff(dense.seconds) >= 0)


def test_branches_of_a_tree_read_one_context_per_sequence() -> None:
    """A tree step over the 24 branches of one sequence pays attention once, over those of two sequences twice."""
    costs = costs_of("llama-3.1-70b")
    assert isinstance(costs.tree_step, SumTerm)
    dense, attention = costs.tree_step.terms
    assert float(attention(profiles.TREE_BRANCHES, 0, 1024)) == pytest.approx(float(attention(1, 0, 1024)))
    assert float(dense(24, 24, 0)) > float(dense(1, 1, 0))
