"""Two forward passes over text that the target writes: what of a draft would be accepted, what a cache would hit.

The entry point `teacher_forced` of the group `ssdsim.verbs`. The target writes by plain decoding; then each model
reads the texts once, and at every written position the two distributions and the draft's ranking say all that
`ssdsim.observation.Observed` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from executor.config import EngineConfig
from executor.decoder import Decoder
from executor.folder_lock import only_writer
from executor.machine import describe_load, describe_machine, software_versions
from executor.measure import prompt_kinds, read_token_prompts, requests_of
from executor.models import LoadedModel, vocab_size_of
from executor.pair_source import NamedPair, resolve_pair
from executor.prompts_input import TokenPrompt, prompts_digest
from executor.ranks import bonus_ranks
from executor.sampling import probabilities
from executor.session import Arrangement, open_engine
from executor.vocabulary import HeadVocabulary
from ssdsim.errors import DomainError, InputError
from ssdsim.measurement import Reporter
from ssdsim.observation import ObservationPlan, Observed, check_same_observations, claim, write_observations
from ssdsim.scenario import Mode
from ssdsim.verification import acceptance_prob, saguaro_reweight, top_tokens

_ROWS_AT_ONCE = 8
"""Texts written side by side."""
_POSITIONS_AT_ONCE = 64
"""Positions whose distributions over the whole vocabulary are held at once."""


class Text(NamedTuple):
    """A prompt and what the target wrote after it."""

    prompt: tuple[int, ...]
    written: tuple[int, ...]


def observe(plan: ObservationPlan, reporter: Reporter) -> None:
    """Write, read and store, unless an earlier attempt did; raises InputError for what cannot be used."""
    is_finished = claim(plan.out, resume=plan.resume)
    with only_writer(plan.out):
        _observe(plan, reporter, is_finished=is_finished)


def _observe(plan: ObservationPlan, reporter: Reporter, *, is_finished: bool) -> None:
    pair = resolve_pair(plan.models)
    if pair.models.draft is None:
        raise InputError("draft: there is nothing to observe without one; give --draft SOURCE")
    prompts = read_token_prompts(plan.texts, pair)
    asked = _asked(plan, pair, prompts)
    if is_finished:
        check_same_observations(plan.out, asked)
        return
    draft = pair.models.load_draft()
    head_of(draft, plan.max_fan_out)
    tokens = len(prompts) * plan.texts.max_tokens
    reporter.start(tokens * len(plan.temperatures), 0)
    observed: list[Observed] = []
    for temperature in plan.temperatures:
        texts = write_texts(plan, pair, prompts, temperature)
        observed += observe_texts(plan, pair, draft, texts, temperature)
        reporter.advance(tokens)
    write_observations(plan.out, {**asked, **_circumstances(plan, prompts)}, observed)


def write_texts(
    plan: ObservationPlan, pair: NamedPair, prompts: Sequence[TokenPrompt], temperature: float
) -> list[Text]:
    """One text per prompt, by plain decoding of the target."""
    config = EngineConfig(
        mode=Mode.AR,
        batch_size=min(_ROWS_AT_ONCE, len(prompts)),
        max_context_tokens=max(len(prompt.tokens) for prompt in prompts) + plan.texts.max_tokens,
        vocab_size=vocab_size_of(pair.models.target),
        sampled=temperature > 0,
    )
    with open_engine(config, pair.models, Arrangement(num_threads=plan.num_threads)) as session:
        stop_tokens = frozenset(session.target.eos_token_ids)
        outputs = session.engine.generate(requests_of(prompts, plan.texts, temperature, stop_tokens)).outputs
    return [Text(prompt.tokens, output.tokens) for prompt, output in zip(prompts, outputs, strict=True)]


def observe_texts(
    plan: ObservationPlan, pair: NamedPair, draft: LoadedModel, texts: Sequence[Text], temperature: float
) -> list[Observed]:
    """All conditions at one temperature, from one pass of each model over the texts."""
    reader = PairReader(pair.models.load_target(), draft, plan.fan_out, plan.max_fan_out)
    constants = plan.conditions(temperature)
    parts: list[list[Positions]] = [[] for _ in constants]
    with torch.inference_mode():
        for text in texts:
            for part, positions in zip(parts, reader.read(text, temperature, constants), strict=True):
                part.append(positions)
    return [_observed(temperature, c, part) for c, part in zip(constants, parts, strict=True)]


class Positions(NamedTuple):
    """What is known at the written positions of one text; see `Observed`."""

    accept_given_token: NDArray[np.float64]  # [n]
    accept_prob: NDArray[np.float64]  # [n]
    rejection_hits: NDArray[np.float64]  # [n, F]
    bonus_hits: NDArray[np.float64]  # [n, F]
    ranks: NDArray[np.int64]  # [n]


def head_of(draft: LoadedModel, max_fan_out: int) -> HeadVocabulary:
    """The tokens that the draft can propose; raises DomainError where they are too few for `max_fan_out`."""
    vocabulary = HeadVocabulary(draft.vocab_size, draft.head_token_ids)
    if max_fan_out >= vocabulary.size:
        raise DomainError("max_fan_out", f"must be below the draft's {vocabulary.size} tokens", max_fan_out)
    return vocabulary


class PairReader:
    """Both models over one text at a time."""

    def __init__(self, target: LoadedModel, draft: LoadedModel, fan_out: int, max_fan_out: int) -> None:
        self._target, self._draft = target, draft
        self._vocabulary = head_of(draft, max_fan_out)
        self._fan_out, self._max_fan_out = fan_out, max_fan_out

    def read(self, text: Text, temperature: float, downweights: Sequence[float]) -> list[Positions]:
        """The written positions, once per Saguaro constant."""
        target_logits, draft_logits = (_written_logits(m, text) for m in (self._target, self._draft))
        tokens = torch.tensor(text.written, device=target_logits.device)
        pieces: list[list[Positions]] = [[] for _ in downweights]
        for start in range(0, len(tokens), _POSITIONS_AT_ONCE):
            part = slice(start, start + _POSITIONS_AT_ONCE)
            seen = self._positions(target_logits[part], draft_logits[part], tokens[part], temperature, downweights)
            for piece, positions in zip(pieces, seen, strict=True):
                piece.append(positions)
        return [Positions(*map(np.concatenate, zip(*piece, strict=True))) for piece in pieces]

    def _positions(
        self,
        target_logits: Tensor,
        draft_logits: Tensor,
        tokens: Tensor,
        temperature: float,
        downweights: Sequence[float],
    ) -> list[Positions]:
        p_target = _distribution(target_logits, temperature)  # [n, V]
        if temperature == 0:  # What was written is what the target says, also at a near-tie.
            p_target = torch.zeros_like(p_target).scatter_(-1, tokens[:, None], 1.0)
        p_draft = _distribution(draft_logits.to(p_target.device), temperature)  # [n, H]
        ranked = top_tokens(draft_logits, self._max_fan_out + 1)  # [n, F + 1] columns
        none = torch.full_like(tokens, -1)
        ranks = bonus_ranks(draft_logits, self._vocabulary.to_columns(tokens), none) - 1
        found = []
        for downweight in downweights:
            lowered = self._reweighted(p_draft, draft_logits, downweight)
            found.append(self._compare(p_target, self._vocabulary.widen(lowered), ranked, tokens, ranks))
        return found

    def _reweighted(self, p_draft: Tensor, draft_logits: Tensor, downweight: float) -> Tensor:
        if downweight == 1.0:
            return p_draft
        cached = torch.zeros_like(p_draft, dtype=torch.bool)
        cached.scatter_(-1, top_tokens(draft_logits, self._fan_out), True)
        reweighted: Tensor = saguaro_reweight(p_draft, cached, downweight)
        return reweighted

    def _compare(
        self, p_target: Tensor, p_draft: Tensor, ranked: Tensor, tokens: Tensor, ranks: NDArray[np.int64]
    ) -> Positions:
        """Acceptance and hits of n positions; `p_*` [n, V], `ranked` [n, F + 1] best columns, `tokens` [n]."""
        written = tokens[:, None]
        target_here, draft_here = p_target.gather(-1, written)[:, 0], p_draft.gather(-1, written)[:, 0]
        candidates = self._vocabulary.to_tokens(ranked)
        bonus_hits = p_target.gather(-1, candidates).cumsum(-1)[:, :-1]
        return Positions(
            accept_given_token=_floats((draft_here / target_here).clamp(max=1.0)),
            accept_prob=_floats(acceptance_prob(p_target, p_draft)),
            rejection_hits=_floats(_rejection_hits(p_target, p_draft, candidates)),
            bonus_hits=_floats(bonus_hits),
            ranks=ranks,
        )


def _rejection_hits(p_target: Tensor, p_draft: Tensor, candidates: Tensor) -> Tensor:
    """Probability [n, F] of a rejection whose bonus token is among the first F candidates without the rejected one.

    The rejected token y follows (q - p)+ and the bonus token x, independently, (p - q)+; leaving y out moves the
    candidate behind the first F up exactly where y is one of them.
    """
    gain = (p_target - p_draft).clamp(min=0.0).gather(-1, candidates)  # [n, F + 1]
    loss = (p_draft - p_target).clamp(min=0.0)
    rejected = loss.sum(-1, keepdim=True)
    ahead = loss.gather(-1, candidates).cumsum(-1)[:, :-1] / rejected.clamp(min=torch.finfo(loss.dtype).tiny)
    return gain.cumsum(-1)[:, :-1] + gain[:, 1:] * ahead


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    """Probabilities [n, V] in double precision, so that differences of nearly equal ones keep their sign."""
    if temperature == 0:
        return probabilities(logits[None], np.zeros(1))[0].double()
    return torch.softmax(logits.double() / temperature, dim=-1)


def _written_logits(loaded: LoadedModel, text: Text) -> Tensor:
    """Logits [n, H] that predict each written token."""
    tokens = np.array([*text.prompt, *text.written[:-1]], np.int64)
    decoder, row, num_known = Decoder(loaded.model, 1, len(tokens)), np.array([0]), len(text.prompt) - 1
    if num_known:
        decoder.feed(row, tokens[None, :num_known], np.array([num_known]))
    return decoder.extend(row, tokens[None, num_known:], np.array([len(text.written)]))[0]


def _observed(temperature: float, downweight: float, texts: Sequence[Positions]) -> Observed:
    lengths = np.array([len(text.ranks) for text in texts])
    padded: dict[str, Any] = {}
    for name in Positions._fields:
        columns = [getattr(text, name) for text in texts]
        padded[name] = np.zeros((len(texts), lengths.max(), *columns[0].shape[1:]), columns[0].dtype)
        for row, column in zip(padded[name], columns, strict=True):
            row[: len(column)] = column
    return Observed(temperature=temperature, downweight=downweight, lengths=lengths, **padded)


def _asked(plan: ObservationPlan, pair: NamedPair, prompts: list[TokenPrompt]) -> dict[str, Any]:
    """What the observations answer to; those in a folder that is resumed must have the same."""
    return {
        "models": pair.describe(),
        "prompts": {"sha256": prompts_digest(prompts), "num_prompts": len(prompts)},
        "conditions": plan.condition_names(),
        "fan_out": plan.fan_out,
        "max_fan_out": plan.max_fan_out,
        "max_tokens": plan.texts.max_tokens,
        "ignore_eos": plan.texts.ignore_eos,
        "seed": plan.texts.seed,
    }


def _circumstances(plan: ObservationPlan, prompts: list[TokenPrompt]) -> dict[str, Any]:
    kinds = prompt_kinds(prompts)
    return {
        "producer": "executor.teacher_forced",
        "prompt_kinds": kinds,
        "kind_of_text": [kinds.index(prompt.kind) for prompt in prompts],
        "num_threads": plan.num_threads,
        "machine": describe_machine(),
        "load": describe_load(),
        "versions": software_versions(),
    }


def _floats(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()
