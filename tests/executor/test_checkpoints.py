"""A configuration, a tokenizer or stop tokens that cannot be used are refused with the file and the remedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_pairs import small_pair
from test_models import write_tokenizer

from executor.checkpoints import has_tokenizer, read_config
from executor.models import check_same_vocabulary, load_model, load_tokenizer
from ssdsim.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(small_pair().draft_dir, tmp_path / "model")
    return tmp_path / "model"


def edit(file: Path, **changes: Any) -> None:
    """Change fields of a JSON file; a value of `...` takes the field out."""
    raw = (json.loads(file.read_text()) if file.is_file() else {}) | changes
    file.write_text(json.dumps({name: value for name, value in raw.items() if value is not ...}))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"vocab_size": None}, "vocab_size: is a positive integer, got None"),
            ({"hidden_size": "abc"}, "hidden_size: is a positive integer, got 'abc'"),
            ({"hidden_size": "abc", "rope_parameters": ...}, "'hidden_size' expected int, got str"),
            ({"num_attention_heads": 0}, "num_attention_heads: is a positive integer, got 0"),
            ({"num_attention_heads": 0, "rope_parameters": ...}, "not a usable model configuration"),
            ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide 4 heads"),
            ({"head_dim": "x"}, "head_dim: is a positive integer, got 'x'"),
            ({"rms_norm_eps": None}, "rms_norm_eps: is a positive number, got None"),
            ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta: is a positive number"),
            ({"rope_parameters": {"rope_type": "foo", "rope_theta": 1e4}}, "rope_type: 'foo' is not one of default"),
            ({"rope_parameters": {"rope_type": "yarn"}}, "Missing required keys"),
            ({"rope_parameters": [1]}, "not a usable model configuration"),
        ],
    )
    def test_a_field_that_cannot_be_used(self, folder: Path, changes: dict[str, Any], match: str) -> None:
        edit(folder / "config.json", **changes)
        with pytest.raises(InputError, match=rf"config\.json: .*{match}"):
            read_config(str(folder))

    def test_a_factor_that_is_no_number(self, folder: Path) -> None:
        edit(folder / "config.json", rope_parameters={"rope_type": "linear", "factor": "x"})
        with pytest.raises(InputError, match=r"rope_parameters: .* copy config"):
            load_model(str(folder))

    def test_a_file_that_holds_no_object(self, folder: Path) -> None:
        (folder / "config.json").write_text("[1]")
        with pytest.raises(InputError, match="not a usable model configuration"):
            read_config(str(folder))

    @pytest.mark.parametrize("top_level", [{}, {"rope_theta": 77.0}])
    def test_plain_rotary_embeddings_without_a_base_have_that_of_transformers(
        self, folder: Path, top_level: dict[str, float]
    ) -> None:
        edit(folder / "config.json", rope_parameters={"rope_type": "default"}, **top_level)
        assert read_config(str(folder)).rope_parameters["rope_theta"] == top_level.get("rope_theta", 10_000.0)
        load_model(str(folder))

    def test_a_dummy_is_checked_too(self, folder: Path) -> None:
        edit(folder / "config.json", vocab_size=None)
        with pytest.raises(InputError, match="vocab_size"):
            load_model(f"dummy:{folder}")


class TestStopTokens:
    @pytest.mark.parametrize(
        ("ours", "preferred", "expected"),
        [
            (1, 5, (5,)),
            (1, [5, 7], (5, 7)),
            ([1, 2], ..., (1, 2)),
            (1, None, (1,)),
            (None, 5, (5,)),
            (None, ..., ()),
        ],
    )
    def test_those_of_the_generation_configuration_win(
        self, folder: Path, ours: Any, preferred: Any, expected: tuple[int, ...]
    ) -> None:
        edit(folder / "config.json", eos_token_id=ours)
        edit(folder / "generation_config.json", eos_token_id=preferred)
        assert load_model(str(folder)).eos_token_ids == expected

    def test_without_a_generation_configuration_they_are_the_model_s(self, folder: Path) -> None:
        edit(folder / "config.json", eos_token_id=3)
        (folder / "generation_config.json").unlink()
        assert load_model(str(folder)).eos_token_ids == (3,)

    @pytest.mark.parametrize("eos", ["a", [1, None], 1.5, True])
    def test_what_is_no_token_is_refused(self, folder: Path, eos: Any) -> None:
        edit(folder / "generation_config.json", eos_token_id=eos)
        with pytest.raises(InputError, match=r"generation_config\.json: eos_token_id: "):
            load_model(str(folder))

    def test_an_unreadable_generation_configuration_is_refused(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text("{")
        with pytest.raises(InputError, match=r"generation_config\.json: is not a usable"):
            load_model(str(folder))


class TestTokenizers:
    @pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]", ""])
    def test_one_that_is_there_but_unusable_is_refused(self, folder: Path, content: str) -> None:
        target = folder.with_name("target")
        shutil.copytree(folder, target)
        write_tokenizer(target, ["a", "b"])
        (folder / "tokenizer.json").write_text(content)
        with pytest.raises(InputError, match=r"tokenizer: none usable in .*copy its tokenizer files again"):
            load_tokenizer(str(folder))
        with pytest.raises(InputError, match="none usable"):
            check_same_vocabulary(str(target), str(folder))

    def test_one_that_is_absent_is_not_compared(self, folder: Path) -> None:
        target = folder.with_name("target")
        shutil.copytree(folder, target)
        write_tokenizer(target, ["a", "b"])
        assert (has_tokenizer(str(target)), has_tokenizer(str(folder))) == (True, False)
        check_same_vocabulary(str(target), str(folder))
        with pytest.raises(InputError, match="none usable"):
            load_tokenizer(str(folder))
