"""Acceptance and hit curves from the target's own text, against speculative decoding enumerated exactly.

The pair is a table: over three tokens, p and q of the next token depend on the last one. All texts of four tokens
are enumerated with their probability; so is every course of speculative decoding with lookahead 2. What the
estimator says of the texts, averaged, must be what the courses count.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from ssdsim.calibration.forced import _sums_by_text, _visits, estimate
from ssdsim.observation import Observed

FloatArray = NDArray[np.float64]

V, N, K = 3, 4, 2
_generator = np.random.default_rng(11)
P = _generator.dirichlet(np.ones(V), size=V)
Q = _generator.dirichlet(np.ones(V), size=V)
FIRST = 0
"""The token before the first one."""


def order(last: int) -> list[int]:
    return np.argsort(-Q[last]).tolist()


def observed_text(text: tuple[int, ...]) -> dict[str, FloatArray]:
    """What two forward passes say of one text, computed token by token from the definitions."""
    accept, prob, rejected, bonus, ranks = [], [], [], [], []
    for last, token in zip((FIRST, *text), text, strict=False):
        p, q = P[last], Q[last]
        accept.append(min(1.0, q[token] / p[token]))
        prob.append(np.minimum(p, q).sum())
        rejected.append([_rejection_hit(last, fan_out) for fan_out in range(1, V)])
        bonus.append([p[order(last)[:fan_out]].sum() for fan_out in range(1, V)])
        ranks.append(order(last).index(token))
    return {
        "accept_given_token": np.array(accept),
        "accept_prob": np.array(prob),
        "rejection_hits": np.array(rejected),
        "bonus_hits": np.array(bonus),
        "ranks": np.array(ranks),
    }


def _rejection_hit(last: int, fan_out: int) -> float:
    """P(rejected, and the bonus token among the first `fan_out` without the rejected one), by enumeration."""
    p, q = P[last], Q[last]
    total = 0.0
    for drafted, bonus in product(range(V), repeat=2):
        rejection = q[drafted] * (1 - min(1.0, p[drafted] / q[drafted]))
        residual = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
        candidates = [token for token in order(last) if token != drafted][:fan_out]
        total += rejection * residual[bonus] * (bonus in candidates)
    return float(total)


def probability(text: tuple[int, ...]) -> float:
    return float(np.prod([P[last][token] for last, token in zip((FIRST, *text), text, strict=False)]))


def all_texts() -> tuple[Observed, FloatArray]:
    """Every text, and its probability."""
    texts = list(product(range(V), repeat=N))
    columns = [observed_text(text) for text in texts]
    arrays = {name: np.stack([column[name] for column in columns]) for name in columns[0]}
    observed = Observed(temperature=1.0, downweight=1.0, lengths=np.full(len(texts), N), **arrays)
    return observed, np.array([probability(text) for text in texts])


def counted_courses() -> dict[str, FloatArray]:
    """Expected counts of speculative decoding until N tokens are out: every draft, verdict and bonus token."""
    counts: dict[str, FloatArray] = defaultdict(lambda: np.zeros(V - 1))
    reached, accepted = np.zeros(K), np.zeros(K)

    def play(context: tuple[int, ...], start: int, weight: float) -> None:
        """A round that starts when `start` tokens are out."""
        if start < N:
            counts["starts"] = counts["starts"] + weight
            test(context, start, 0, weight)

    def test(context: tuple[int, ...], start: int, place: int, weight: float) -> None:
        if start + place == N:
            return
        last = context[-1]
        if place == K:
            for bonus in range(V):
                hit = [bonus in order(last)[:fan_out] for fan_out in range(1, V)]
                counts["bonus_hits"] = counts["bonus_hits"] + weight * P[last][bonus] * np.array(hit)
                play((*context, bonus), start + K + 1, weight * P[last][bonus])
            counts["all_accepted"] = counts["all_accepted"] + weight
            return
        reached[place] += weight
        residual = np.maximum(P[last] - Q[last], 0)
        residual = residual / residual.sum()
        for drafted in range(V):
            accept = min(1.0, P[last][drafted] / Q[last][drafted])
            accepted[place] += weight * Q[last][drafted] * accept
            test((*context, drafted), start, place + 1, weight * Q[last][drafted] * accept)
            rejection = weight * Q[last][drafted] * (1 - accept)
            counts["rejected"] = counts["rejected"] + rejection
            for bonus in range(V):
                candidates = [token for token in order(last) if token != drafted]
                hit = [bonus in candidates[:fan_out] for fan_out in range(1, V)]
                counts["rejection_hits"] = counts["rejection_hits"] + rejection * residual[bonus] * np.array(hit)
                play((*context, bonus), start + place + 1, rejection * residual[bonus])

    play((FIRST,), 0, 1.0)
    return {**counts, "reached": reached, "accepted": accepted}


@pytest.mark.parametrize(
    "name", ["reached", "accepted", "rejected", "all_accepted", "rejection_hits", "bonus_hits", "starts"]
)
def test_expected_counts_are_those_of_speculative_decoding(name: str) -> None:
    observed, probabilities = all_texts()
    estimated = probabilities @ getattr(_sums_by_text(observed, K), name)
    np.testing.assert_allclose(estimated, counted_courses()[name][: len(estimated)], rtol=1e-12)


def test_every_token_has_one_place_in_its_round() -> None:
    observed, _ = all_texts()
    np.testing.assert_allclose(_visits(observed.accept_given_token, K).sum(axis=0), 1.0)


def test_greedy_text_is_replayed_not_averaged() -> None:
    """Agreement at tokens 1, 2, 3, 5, 7: with K = 2 the rounds are (1 2 | 3), (4 |), (5 6), (7 8)."""
    agree = np.array([[1, 1, 1, 0, 1, 0, 1, 0]], dtype=float)
    visits = _visits(agree, 2)[:, 0]
    assert visits.argmax(axis=0).tolist() == [0, 1, 2, 0, 0, 1, 0, 1]
    np.testing.assert_array_equal(visits.sum(axis=0), 1.0)


def greedy(agree: NDArray[np.bool_], ranks: NDArray[np.int64], max_fan_out: int) -> Observed:
    """Observations of greedy texts, from the ranks of the written tokens."""
    fan_outs = np.arange(1, max_fan_out + 1)
    return Observed(
        temperature=0.0,
        downweight=1.0,
        lengths=np.full(len(agree), agree.shape[1]),
        accept_given_token=agree.astype(float),
        accept_prob=agree.astype(float),
        rejection_hits=(~agree[..., None] & (ranks[..., None] <= fan_outs)).astype(float),
        bonus_hits=(ranks[..., None] < fan_outs).astype(float),
        ranks=ranks,
    )


def test_the_law_behind_the_ranks_is_found() -> None:
    """Misses .8 F^-.4 at a rejection, drawn independently in 40 texts of 500 tokens at agreement .5.

    About 10,000 rejections. The intervals are of 95 % each, so that one seed in ten misses one of the two; this one
    does not, and the estimates lie within four standard errors in any case (one seed in 16,000).
    """
    generator = np.random.default_rng(2)
    agree = generator.random((40, 500)) < 0.5
    ranks = np.where(agree, 0, np.ceil((generator.random(agree.shape) / 0.8) ** (-1 / 0.4)).clip(1, 10**6)).astype(
        int
    )
    found = estimate(greedy(agree, ranks, 32), 3)
    assert found.rejection is not None
    law = found.rejection.law
    assert law is not None
    assert not law.is_refuted
    for quantity, truth in ((law.miss_prefactor, 0.8), (law.miss_exponent, 0.4)):
        assert quantity.low is not None
        assert quantity.high is not None
        assert quantity.low < truth < quantity.high
        assert abs(quantity.value - truth) < quantity.high - quantity.low


def test_a_curve_that_is_no_law_is_refuted() -> None:
    """Every rejected token ranks 1 or 20: half the misses are gone at F = 1 and none more until F = 20."""
    generator = np.random.default_rng(3)
    agree = generator.random((40, 200)) < 0.5
    ranks = np.where(agree, 0, np.where(generator.random(agree.shape) < 0.5, 1, 20))
    found = estimate(greedy(agree, ranks, 32), 3)
    assert found.rejection is not None
    assert found.rejection.law is not None
    assert found.rejection.law.is_refuted
    assert found.rejection.law.largest_deviation > 0.1  # no power law is near both ends of such a step
    assert found.rejection.hit_probs[0].value == pytest.approx(0.5, abs=0.03)
    assert found.rejection.hit_probs[19].value == 1.0


def test_acceptance_by_position_of_independent_agreement_is_flat() -> None:
    """Agreement .7 everywhere, 12,000 tokens: every share lies within .03 (over four standard errors)."""
    generator = np.random.default_rng(4)
    agree = generator.random((40, 300)) < 0.7
    found = estimate(greedy(agree, np.where(agree, 0, 1), 4), 4)
    assert found.acceptance.value == pytest.approx(agree.mean())
    assert [q.value for q in found.per_position] == pytest.approx([0.7] * 4, abs=0.03)
    expected = sum(0.7**i for i in range(5))
    assert found.mean_acceptance_length.value == pytest.approx(expected, abs=0.1)


def test_one_text_gives_values_without_bounds() -> None:
    agree = np.array([[True, False, True, True]])
    found = estimate(greedy(agree, np.where(agree, 0, 2), 2), 1)
    assert found.acceptance == (0.75, None, None)
