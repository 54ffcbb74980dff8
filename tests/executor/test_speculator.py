"""The speculator's answers, message by message: from the cache what drafting now would say, else the fallback."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_pairs import small_pair

from executor.config import EngineConfig
from executor.inbox import Inbox
from executor.messages import Bytes, MessageKind, OutcomeMessage, SlotState, SpeculationMessage, send_outcome
from executor.sampling import Stream, uniforms
from executor.speculator import Speculator
from ssdsim.records import Lookup, Source
from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode

PAIR = small_pair()
K = 3
FAN_OUT = (4, 3, 2, 2)
PROMPT = [5, 9, 2, 5, 9]


class Scripted:
    """A speculator and the outcomes that a verifier might send it; slot 0 of two."""

    def __init__(self, mode: str = "ssd", fallback: str = "jit", on_late: str = "wait") -> None:
        self.config = EngineConfig(
            mode=Mode(mode),
            batch_size=2,
            max_context_tokens=60,
            vocab_size=PAIR.draft.vocab_size,
            drafting=Drafting(
                num_speculative_tokens=K,
                fan_out=FanOut(policy="explicit", values=FAN_OUT),
                fallback=FallbackChoice(kind=fallback),
                on_late=on_late,
            ),
        )
        self.speculator = Speculator(self.config, PAIR.draft)

    def admit(self, prompt: list[int]) -> list[int]:
        return self._answer(SlotState.ADMIT, -1, 0, prompt)

    def settle(self, num_accepted: int, bonus_token: int) -> list[int]:
        return self._answer(SlotState.CONTINUE, num_accepted, bonus_token, [])

    def build(self, inbox: Inbox | None = None) -> None:
        with torch.inference_mode():
            self.speculator.build(inbox)

    def slot(self) -> dict[str, int]:
        names = ("source", "lookup", "fan_out_here", "bonus_rank", "num_proposed")
        return {name: int(self.reply.slots[name][0]) for name in names}

    def outcome(self, state: SlotState, num_accepted: int, bonus_token: int, prompt: list[int]) -> OutcomeMessage:
        message = OutcomeMessage(self.config.layout)
        message.view["kind"] = MessageKind.ROUND
        message.slots["num_accepted"] = -1
        fields = message.slots[0]
        fields["state"], fields["num_accepted"], fields["bonus_token"] = state, num_accepted, bonus_token
        fields["num_prompt_tokens"] = len(prompt)
        return message

    def _answer(self, state: SlotState, num_accepted: int, bonus_token: int, prompt: list[int]) -> list[int]:
        message = self.outcome(state, num_accepted, bonus_token, prompt)
        with torch.inference_mode():
            self.reply: SpeculationMessage = self.speculator.answer(message, np.array(prompt, np.int32))
        return self.reply.slots["tokens"][0, : self.reply.slots["num_proposed"][0]].tolist()


def drafted_now(context: list[int]) -> list[int]:
    """What the draft says after `context`, by transformers."""
    from transformers import AutoModelForCausalLM

    model, tokens = AutoModelForCausalLM.from_pretrained(PAIR.draft_dir).eval(), list(context)
    for _ in range(K):
        with torch.inference_mode():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(context) :]


def ranked_after(context: list[int]) -> list[int]:
    """All tokens by the draft's logits after `context`, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(PAIR.draft_dir).eval()
    with torch.inference_mode():
        return model(torch.tensor([context])).logits[0, -1].argsort(descending=True).tolist()


@pytest.mark.parametrize("num_accepted", range(K + 1))
def test_the_cache_holds_the_best_candidates_of_each_position_and_answers_as_if_drafted_now(
    num_accepted: int,
) -> None:
    """The rejected token is no candidate; after a full acceptance the draft's favourite is one."""
    first = Scripted().admit(PROMPT)
    context = [*PROMPT, *first[:num_accepted]]
    candidates = [t for t in ranked_after(context) if num_accepted == K or t != first[num_accepted]]
    for rank, token in enumerate(candidates[: FAN_OUT[num_accepted] + 1], start=1):
        script = Scripted()
        script.admit(PROMPT)
        script.build()
        assert script.settle(num_accepted, token) == drafted_now([*context, token])
        is_cached = rank <= FAN_OUT[num_accepted]
        found = script.slot()
        assert found["lookup"] == (Lookup.HIT if is_cached else Lookup.MISS)
        assert found["source"] == (Source.HIT if is_cached else Source.JIT)
        assert found["fan_out_here"] == FAN_OUT[num_accepted]
        script.build()
        assert script.slot()["bonus_rank"] == rank


def test_the_first_round_is_drafted_from_the_prompt() -> None:
    script = Scripted()
    assert script.admit(PROMPT) == drafted_now(PROMPT)
    assert script.slot()["source"] == Source.FIRST


def test_sd_drafts_every_round_and_looks_nothing_up() -> None:
    script = Scripted(mode="sd")
    context, proposed = list(PROMPT), script.admit(PROMPT)
    for num_accepted, bonus_token in ((K, 11), (0, 12), (2, 13)):
        script.build()
        context += [*proposed[:num_accepted], bonus_token]
        proposed = script.settle(num_accepted, bonus_token)
        assert proposed == drafted_now(context)
        assert (script.slot()["source"], script.slot()["lookup"]) == (Source.SD, Lookup.NOT_MADE)


def missed(fallback: str) -> tuple[Scripted, list[int]]:
    """A script in which the outcome (0, the draft's last choice) was not prepared, and its answer."""
    script = Scripted(fallback=fallback)
    script.admit(PROMPT)
    script.build()
    return script, script.settle(0, ranked_after(PROMPT)[-1])


def test_a_miss_proposes_nothing_where_that_is_the_fallback() -> None:
    script, answer = missed("none")
    assert answer == []
    assert script.slot()["source"] == Source.NONE


def test_a_miss_proposes_what_followed_before_where_the_fallback_looks_it_up() -> None:
    unlikely = next(t for t in reversed(ranked_after(PROMPT)) if t not in PROMPT)
    prompt = [unlikely, 40, 41, 42, *PROMPT]
    last = ranked_after(prompt).index(unlikely)
    assert last > max(FAN_OUT), "the token must not be among the candidates"
    script = Scripted(fallback="ngram")
    script.admit(prompt)
    script.build()
    assert script.settle(0, unlikely) == [40, 41, 42]
    assert script.slot()["source"] == Source.NGRAM


def test_a_miss_proposes_the_requests_own_random_tokens_where_the_fallback_is_random() -> None:
    script, answer = missed("random")
    positions = np.array([[len(PROMPT) + 1 + i for i in range(K)]])
    draws = uniforms(np.zeros(1, np.uint64), positions, Stream.RANDOM)[0]
    assert answer == (draws * PAIR.draft.vocab_size).astype(int).tolist()
    assert script.slot()["source"] == Source.RANDOM


def test_after_an_empty_proposal_every_candidate_stands_at_the_one_position() -> None:
    script, _ = missed("none")
    script.build()
    context = [*PROMPT, ranked_after(PROMPT)[-1]]
    best = ranked_after(context)
    answer = script.settle(0, best[sum(FAN_OUT) - 1])
    assert script.slot()["lookup"] == Lookup.HIT
    assert script.slot()["fan_out_here"] == sum(FAN_OUT)
    assert answer == drafted_now([*context, best[sum(FAN_OUT) - 1]])


class Overtaken:
    """A channel on which the next outcome has arrived before the build is done."""

    def __init__(self, script: Scripted, num_accepted: int, bonus_token: int) -> None:
        self._sent: list[Bytes] = []
        send_outcome(self, script.outcome(SlotState.CONTINUE, num_accepted, bonus_token, []), ())

    def send(self, message: Bytes) -> None:
        self._sent.append(message.copy())

    def recv(self) -> Bytes:
        return self._sent.pop(0)

    def poll(self) -> bool:
        return bool(self._sent)

    def close(self) -> None:
        self._sent.clear()


class TestLateBuilds:
    def answer(self, on_late: str, bonus_token: int) -> tuple[Scripted, list[int]]:
        script = Scripted(on_late=on_late, fallback="none")
        script.admit(PROMPT)
        channel = Overtaken(script, 0, bonus_token)
        inbox = Inbox(channel, script.config.layout)
        script.build(inbox)
        delivery = inbox.take()
        assert delivery is not None
        return script, script.settle(0, bonus_token)

    def test_waiting_gives_whole_chains(self) -> None:
        second = ranked_after(PROMPT)[1]
        assert self.answer("wait", second)[1] == drafted_now([*PROMPT, second])

    def test_truncating_gives_the_tokens_that_were_ready(self) -> None:
        second = ranked_after(PROMPT)[1]
        script, answer = self.answer("truncate", second)
        assert answer == drafted_now([*PROMPT, second])[:1]
        assert script.slot()["source"] == Source.HIT

    def test_aborting_gives_up_a_build_that_nothing_hits(self) -> None:
        script, answer = self.answer("abort", ranked_after(PROMPT)[-1])
        assert answer == []
        assert script.slot()["lookup"] == Lookup.MISS
        assert script.slot()["fan_out_here"] == 0

    def test_aborting_finishes_a_build_that_is_hit(self) -> None:
        second = ranked_after(PROMPT)[1]
        assert self.answer("abort", second)[1] == drafted_now([*PROMPT, second])


def test_draws_are_uniform_and_differ_between_seeds_positions_and_streams() -> None:
    """Kolmogorov-Smirnov distance below 1.95/sqrt(n), error rate 1e-3 each; adjacent draws uncorrelated."""
    n = 20_000
    by_position = uniforms(np.array([7], np.uint64), np.arange(n)[None], Stream.DRAFT)[0]
    by_seed = uniforms(np.arange(n, dtype=np.uint64), np.zeros((n, 1), np.int64), Stream.DRAFT)[:, 0]
    other = uniforms(np.array([7], np.uint64), np.arange(n)[None], Stream.ACCEPT)[0]
    for draws in (by_position, by_seed, other):
        assert np.abs(np.sort(draws) - (np.arange(n) + 0.5) / n).max() < 1.95 / np.sqrt(n)
    for left, right in ((by_position[:-1], by_position[1:]), (by_seed[:-1], by_seed[1:]), (by_position, other)):
        assert abs(np.corrcoef(left, right)[0, 1]) < 3.3 / np.sqrt(n)
