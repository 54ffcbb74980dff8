"""The built-in pairs: what is committed is whole and behaves as its README says, and its training resumes exactly."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `executor`")
transformers = pytest.importorskip("transformers", reason="needs the extra `executor`")

from safetensors.torch import load_file, save_file  # noqa: E402

from executor.decoder import Decoder  # noqa: E402
from executor.models import load_model  # noqa: E402
from executor.pairs import BUILT_IN, PAIRS_DIR, pair_paths  # noqa: E402
from executor.pairs.corpus import Document, standard_library  # noqa: E402
from executor.pairs.distillation import agreement, distillation_loss  # noqa: E402
from executor.pairs.measure_tiny import held_out_rows  # noqa: E402
from executor.pairs.prompts import KINDS, read_prompts, select_prompts  # noqa: E402
from executor.pairs.reduced_head import build_reduced, load_reduced, save_reduced  # noqa: E402
from executor.pairs.self_chat import SelfChat  # noqa: E402
from executor.pairs.smollm2 import cache_dir  # noqa: E402
from executor.pairs.teacher import GREEDY, SAMPLED, TeacherLog, continuation, read_text, write_text  # noqa: E402
from executor.pairs.tokenizer import encode_all, load_tokenizer  # noqa: E402
from executor.pairs.train_smollm2 import head_tokens, onto_head  # noqa: E402
from executor.pairs.train_tiny import Recipe, build_model, encode_corpus, train_pair, train_target  # noqa: E402
from executor.pairs.training import scheduled  # noqa: E402
from ssdsim.errors import InputError  # noqa: E402

Model = Any
SMALL = Recipe(
    vocab_size=300,
    max_documents=60,
    target_hidden=16,
    target_intermediate=32,
    target_layers=2,
    target_heads=2,
    target_kv_heads=1,
    target_steps=8,
    draft_hidden=8,
    draft_intermediate=16,
    draft_layers=1,
    draft_heads=1,
    draft_kv_heads=1,
    draft_steps=3,
    distil_steps=3,
    row_tokens=320,
    rows_per_file=2,
    read_files=1,
    written_files=1,
    prompt_tokens=8,
    top_k=4,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny() -> tuple[Model, Model, Any]:
    """(target, draft, tokenizer) of the committed pair, as everyone loads them: bf16 on disk, fp32 in memory."""
    paths = pair_paths("tiny")
    load = transformers.AutoModelForCausalLM.from_pretrained
    models = [load(path, dtype=torch.float32).eval() for path in (paths.target, paths.draft)]
    return models[0], models[1], load_tokenizer(paths.tokenizer)


@pytest.fixture(scope="module")
def held_out(tiny: tuple[Model, Model, Any]) -> Any:
    """16 rows of 256 tokens that no model of the pair was trained on."""
    stream = encode_all(tiny[2], standard_library().held_out)
    return held_out_rows(stream)[::4]


class TestTiny:
    def test_all_files_together_stay_under_40_mb(self) -> None:
        root = pair_paths("tiny").tokenizer
        assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) < 40e6

    def test_both_models_and_the_tokenizer_share_one_vocabulary(self, tiny: tuple[Model, Model, Any]) -> None:
        target, draft, tokenizer = tiny
        assert target.config.vocab_size == draft.config.vocab_size == len(tokenizer)
        for model in (target, draft):
            assert model.config.eos_token_id == tokenizer.eos_token_id == 0

    def test_any_text_survives_the_tokenizer(self, tiny: tuple[Model, Model, Any]) -> None:
        text = "def f(x):\n\treturn  x + 1  # été 漢字 \U0001f600\n\n\n"
        assert tiny[2].decode(tiny[2](text)["input_ids"]) == text

    def test_logits_are_finite_up_to_the_longest_context(self, tiny: tuple[Model, Model, Any]) -> None:
        tokens = torch.arange(2048)[None] % 2000
        for model in tiny[:2]:
            assert model.config.max_position_embeddings == 2048
            with torch.inference_mode():
                assert torch.isfinite(model(tokens, use_cache=False, logits_to_keep=64).logits).all()

    def test_acceptance_on_held_out_text_lies_where_real_pairs_sit(
        self, tiny: tuple[Model, Model, Any], held_out: Any
    ) -> None:
        """The pair's stated band is .6 to .9; 3,328 positions give a standard error below .01 per position drawn."""
        seen = agreement(tiny[0], tiny[1], held_out, first=48)
        assert seen.num_positions == 16 * (256 - 48)
        assert 0.6 < seen.greedy < 0.9
        assert 0.6 < seen.sampled < 0.9

    def test_the_stored_measurements_are_those_of_the_stored_weights(
        self, tiny: tuple[Model, Model, Any], held_out: Any
    ) -> None:
        """A quarter of the rows of the stored measurement: within .05 (rows vary) of it."""
        facts = json.loads((pair_paths("tiny").tokenizer / "measured.json").read_text())
        seen = agreement(tiny[0], tiny[1], held_out, first=48)
        assert seen.greedy == pytest.approx(facts["held_out_text"]["greedy"], abs=0.05)
        assert seen.sampled == pytest.approx(facts["held_out_text"]["sampled"], abs=0.05)

    def test_the_draft_is_a_fraction_of_the_target_in_weights_and_in_depth(
        self, tiny: tuple[Model, Model, Any]
    ) -> None:
        """Times belong to a machine; a step's time follows the weights that it reads and the layers that it runs."""
        target, draft = tiny[:2]
        assert 10e6 < target.num_parameters() < 20e6
        assert draft.num_parameters() < target.num_parameters() / 10
        assert draft.config.num_hidden_layers <= target.config.num_hidden_layers / 5


class TestPairPaths:
    def test_an_unknown_name_is_refused_with_the_names_there_are(self) -> None:
        with pytest.raises(InputError, match="smollm2, tiny"):
            pair_paths("huge")

    def test_smollm2_without_its_package_names_the_extra(self, monkeypatch: Any, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
        with pytest.raises(InputError, match=r"ssdsim\[smollm2\]"):
            pair_paths("smollm2")
        assert not list(tmp_path.iterdir())

    def test_smollm2_without_its_draft_names_the_script_that_makes_it(self, monkeypatch: Any, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr("executor.pairs.smollm2.DRAFT_DIR", tmp_path / "draft")
        cache_dir().mkdir(parents=True)
        (cache_dir() / "model.safetensors").touch()
        with pytest.raises(InputError, match="train_smollm2"):
            pair_paths("smollm2")

    def test_importing_the_package_imports_no_torch(self) -> None:
        code = "import sys, executor.pairs.prompts; print('torch' in sys.modules, 'transformers' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["False", "False"]

    def test_every_pair_is_described(self) -> None:
        assert set(BUILT_IN) == {"tiny", "smollm2"}


class TestTraining:
    def test_an_interrupted_run_ends_with_the_very_same_weights(self, tmp_path: Path) -> None:
        stream, _ = encode_corpus(SMALL, standard_library(SMALL.max_documents), tmp_path)
        whole = train_target(SMALL, stream, tmp_path / "whole")
        train_target(SMALL, stream, tmp_path / "parts", until=3)
        resumed = train_target(SMALL, stream, tmp_path / "parts")
        for (name, a), b in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
            assert torch.equal(a, b), name

    def test_the_script_makes_a_pair_that_loads_and_learns(self, tmp_path: Path) -> None:
        train_pair(SMALL, tmp_path / "work", tmp_path / "out")
        facts = json.loads((tmp_path / "out" / "measured.json").read_text())
        fresh = torch.log(torch.tensor(float(SMALL.vocab_size))).item()  # a model that knows nothing: log V nats
        assert 0 < facts["target_nats_per_token"] < fresh
        assert {"target", "draft", "tokenizer.json"} <= {path.name for path in (tmp_path / "out").iterdir()}

    def test_a_pass_visits_every_row_once(self) -> None:
        visits = torch.cat([scheduled(step, 4, 12, seed=5) for step in range(3)])
        assert sorted(visits.tolist()) == list(range(12))

    def test_the_held_out_text_is_disjoint_and_stable(self) -> None:
        corpus = standard_library()
        assert not {d.name for d in corpus.train} & {d.name for d in corpus.held_out}
        assert Document("ast.py", "").name in {d.name for d in (*corpus.train, *corpus.held_out)}
        assert 0.01 < len(corpus.held_out) / len(corpus.train) < 0.1


class TestTeacher:
    def test_written_text_is_logged_as_if_it_had_been_read(self) -> None:
        model = build_model(SMALL, "target").eval()
        scripts = [continuation([5, 6, 7], choice) for choice in (GREEDY, SAMPLED)]  # 70: several blocks of the cache
        written = write_text(model, scripts, 70, torch.Generator().manual_seed(0), k=4)
        read = read_text(model, written.tokens, k=4)
        assert torch.equal(written.top_ids, read.top_ids)
        assert torch.allclose(written.top_probs.float(), read.top_probs.float(), atol=1e-3)

    def test_a_greedy_row_takes_the_most_likely_token_and_keeps_its_prompt(self) -> None:
        model = build_model(SMALL, "target").eval()
        log = write_text(model, [continuation([5, 6, 7], GREEDY)], 20, torch.Generator(), k=1)
        assert log.tokens[0, :3].tolist() == [5, 6, 7]
        assert torch.equal(log.tokens[0, 3:], log.top_ids[0, 2:-1, 0])

    def test_the_loss_is_least_where_the_draft_says_what_the_target_says(self) -> None:
        torch.manual_seed(0)
        logits = torch.randn(6, 10)
        top = torch.softmax(logits, -1).topk(4)
        least = distillation_loss(logits, top.indices, top.values, overlap_weight=1.0)
        for _ in range(20):
            other = logits + 0.3 * torch.randn(6, 10)
            assert distillation_loss(other, top.indices, top.values, overlap_weight=1.0) > least


class TestReducedHead:
    @pytest.fixture
    def embedding(self) -> Any:
        """[50, 8], exact in bf16, as a target's stored embedding is."""
        return torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).bfloat16().float()

    @pytest.fixture
    def stored(self, tmp_path: Path, embedding: Any) -> Path:
        """A draft with a head over the tokens 3, 7 and 20 of 50, stored beside the embedding of its target."""
        config = transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
        (tmp_path / "target").mkdir()
        config.save_pretrained(tmp_path / "target")
        save_file({"model.embed_tokens.weight": embedding}, tmp_path / "target" / "model.safetensors")
        save_reduced(build_reduced(config, embedding, torch.tensor([3, 7, 20])), tmp_path / "draft")
        return tmp_path

    def test_tokens_without_a_row_in_the_head_are_impossible(self, stored: Path, embedding: Any) -> None:
        draft = load_reduced(stored / "draft", embedding, torch.float32)
        with torch.inference_mode():
            probs = torch.softmax(draft(torch.arange(50)[None], use_cache=False).logits, -1)
        assert probs.shape == (1, 50, 50)
        assert torch.allclose(probs[..., [3, 7, 20]].sum(-1), torch.ones(1, 50))

    def test_the_file_holds_nothing_of_the_target(self, stored: Path) -> None:
        names = set(load_file(stored / "draft" / "model.safetensors"))
        assert "head_token_ids" in names
        assert not {name for name in names if "embed_tokens" in name or "lm_head" in name}

    def test_the_executor_reads_the_same_draft(self, stored: Path, embedding: Any) -> None:
        ours = load_model(str(stored / "draft"), embedding_source=str(stored / "target"))
        theirs = load_reduced(stored / "draft", embedding, torch.float32)
        assert ours.head_token_ids is not None
        tokens = np.array([[4, 9, 20, 31]])
        with torch.inference_mode():
            logits = Decoder(ours.model, 1, 8).extend(np.array([0]), tokens, np.array([4]))
            expected = theirs(torch.from_numpy(tokens), use_cache=False).logits[..., ours.head_token_ids]
        assert torch.allclose(logits, expected, atol=1e-4)


class TestDistillationOfSmollm2:
    LOG = TeacherLog(
        tokens=torch.tensor([[1, 2]], dtype=torch.int32),
        top_ids=torch.tensor([[[5, 9], [7, 5]]], dtype=torch.int32),
        top_probs=torch.tensor([[[0.6, 0.2], [0.5, 0.25]]], dtype=torch.float16),
    )

    def test_the_head_keeps_the_tokens_with_the_most_mass_and_never_changes(self, tmp_path: Path) -> None:
        file = tmp_path / "head.pt"
        assert head_tokens(self.LOG, 2, 12, file).tolist() == [5, 7]  # .6 + .25 and .5, against .2
        other = TeacherLog(self.LOG.tokens, self.LOG.top_ids + 1, self.LOG.top_probs)
        assert head_tokens(other, 2, 12, file).tolist() == [5, 7]

    def test_the_log_is_put_in_terms_of_the_head(self) -> None:
        seen = onto_head(self.LOG, torch.tensor([5, 7]), 12)
        assert seen.top_ids[0, 1].tolist() == [1, 0]
        assert seen.top_probs[0, 0].tolist() == pytest.approx([1, 0])  # 9 has no row: all mass to 5
        assert seen.top_probs[0, 1].tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-3)


class FakeTokenizer:
    """One id per character, but for the end mark (id 0)."""

    eos_token_id = 0

    def apply_chat_template(self, turns: list[dict[str, str]], tokenize: bool) -> str:
        return f"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n{turns[0]['content']}<|im_end|>\n"

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) for character in text]}


def test_a_self_chat_ends_every_question_and_opens_the_next_after_every_answer() -> None:
    rng, writer = random.Random(0), random.Random(1)
    for _ in range(20):
        script = SelfChat(FakeTokenizer(), plain_share=0.25).script(rng)
        wanted, text = next(script), ""
        for _ in range(600):
            token = wanted if wanted >= 0 else writer.choice([0, *map(ord, "abcdefghij")])
            text += chr(token)
            wanted = script.send(token)
        if "<|im_start|>" in text:
            ends = text.split("\0")
            assert all(turn.startswith("\n<|im_start|>assistant\n") for turn in ends[1:-1:2])
            assert all(turn.startswith("\n<|im_start|>user\n") for turn in ends[2:-1:2])


class TestPrompts:
    def test_four_kinds_of_at_least_sixteen_each_with_ids_of_their_own(self) -> None:
        prompts = read_prompts()
        assert len({p.id for p in prompts}) == len({p.prompt for p in prompts}) == len(prompts)
        for kind in KINDS:
            assert sum(p.kind == kind for p in prompts) >= 16

    def test_a_few_prompts_cover_the_kinds_evenly(self) -> None:
        assert [p.kind for p in select_prompts(read_prompts(), 8)] == [*KINDS, *KINDS]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("not json\n", "line 1: not JSON"),
            ('{"prompt": "a"}\n{"prompt": ""}\n', "line 2: needs a non-empty"),
            ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', "line 2: the id 'x' repeats"),
            ("\n", "holds none"),
            ('{"prompt": "a"}\n{"prompt": "\\ud800"}\n', "line 2: .*half a character"),
            ("[" * 100_000, "line 1: not JSON"),
        ],
    )
    def test_a_bad_file_is_refused_by_line(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_prompts(path)

    def test_a_users_file_needs_the_text_only(self, tmp_path: Path) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text('{"prompt": "Hello"}\n')
        assert read_prompts(path)[0] == ("1", "other", "Hello")


def test_a_stored_draft_of_smollm2_stays_under_16_mb() -> None:
    weights = PAIRS_DIR / "smollm2_draft" / "model.safetensors"
    if not weights.is_file():
        pytest.skip("this checkout holds no distilled draft for smollm2")
    assert weights.stat().st_size < 16e6
