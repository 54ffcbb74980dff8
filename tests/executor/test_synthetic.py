"""With dummy weights, acceptance and hits follow the given law while everything else is done for real."""

from __future__ import annotations

import numpy as np
import pytest
from small_pairs import run, small_pair

from executor.config import DraftBehaviour, Request
from executor.synthetic import law_of
from ssdsim.profile import Behaviour
from ssdsim.records import Lookup, Source
from ssdsim.scenario import Drafting, FallbackChoice, FanOut
from ssdsim.theory.hit_curve import PowerLaw

K = 3
ACCEPTANCE = (0.8, 0.6, 0.7)
HITS = PowerLaw(exponent=0.5, prefactor=0.7)
HITS_ALL_ACCEPTED = PowerLaw(exponent=0.5, prefactor=0.2)
FAN_OUT = 4


def test_accepted_counts_and_hits_follow_the_behaviour() -> None:
    """Frequencies within 4 standard errors of their law: error rate below 1e-4 per comparison."""
    pair = small_pair(noise=0.3)
    behaviour = DraftBehaviour(acceptance_prob=ACCEPTANCE, rejection_curve=HITS, all_accepted_curve=HITS_ALL_ACCEPTED)
    requests = [Request(prompt=[1, 2, 3], max_tokens=120, seed=seed) for seed in range(24)]
    drafting = Drafting(num_speculative_tokens=K, fan_out=FanOut(policy="uniform", per_position=FAN_OUT))
    generation = run(pair, "ssd", requests, drafting, batch_size=8, behaviour=behaviour, synthetic=True)
    outcomes = generation.records.outcomes.columns()
    accepted = outcomes["num_accepted"]
    for position, prob in enumerate(ACCEPTANCE):
        reached = accepted >= position
        assert close(float((accepted[reached] > position).mean()), prob, int(reached.sum()))
    looked_up = (outcomes["lookup"] == Lookup.HIT) | (outcomes["lookup"] == Lookup.MISS)
    hit = outcomes["lookup"] == Lookup.HIT
    for curve, where in ((HITS, accepted < K), (HITS_ALL_ACCEPTED, accepted == K)):
        chosen = looked_up & where
        assert close(float(hit[chosen].mean()), float(curve.hit_prob(FAN_OUT)), int(chosen.sum()))
    assert (outcomes["bonus_rank"] == -1).all(), "a rank in random logits means nothing"


REDRAFTED = (PowerLaw(exponent=0.5, prefactor=0.9), PowerLaw(exponent=0.5, prefactor=0.5))
UNDRAFTED = (PowerLaw(exponent=0.5, prefactor=0.4), PowerLaw(exponent=0.5, prefactor=0.6))


@pytest.mark.parametrize("fallback", ["jit", "random", "ngram"])
def test_what_becomes_of_a_round_depends_on_who_proposed(fallback: str) -> None:
    """Random tokens are never accepted, looked-up ones by their own law, and each kind of round has its own hit
    curves; frequencies as above."""
    behaviour = DraftBehaviour(
        acceptance_prob=ACCEPTANCE,
        rejection_curve=HITS,
        all_accepted_curve=HITS_ALL_ACCEPTED,
        after_redraft=REDRAFTED,
        after_fallback=UNDRAFTED,
        ngram_acceptance_prob=0.3,
    )
    requests = [Request(prompt=[1, 2, 1, 2, 1], max_tokens=120, seed=seed) for seed in range(24)]
    drafting = Drafting(
        num_speculative_tokens=K,
        fan_out=FanOut(policy="uniform", per_position=FAN_OUT),
        fallback=FallbackChoice(kind=fallback),
    )
    pair = small_pair(noise=0.3)
    generation = run(pair, "ssd", requests, drafting, batch_size=8, behaviour=behaviour, synthetic=True)
    outcomes = generation.records.outcomes.columns()
    own = outcomes["source"] == Source[fallback.upper()]
    some = own & (outcomes["num_proposed"] > 0)
    assert own.sum() > 100
    first = {"jit": ACCEPTANCE[0], "random": 0.0, "ngram": 0.3}[fallback]
    if some.any():
        assert close(float((outcomes["num_accepted"][some] > 0).mean()), first, int(some.sum()))
    for curve, kind in zip(REDRAFTED if fallback == "jit" else UNDRAFTED, (False, True), strict=True):
        looked_up = np.isin(outcomes["lookup"], (Lookup.HIT, Lookup.MISS)) & own & (outcomes["fan_out_here"] > 0)
        chosen = looked_up & ((outcomes["num_accepted"] == outcomes["num_proposed"]) == kind)
        probs = curve.hit_prob(outcomes["fan_out_here"][chosen])
        if len(probs):
            hit = outcomes["lookup"][chosen] == Lookup.HIT
            assert abs(hit.sum() - probs.sum()) < 4 * np.sqrt((probs * (1 - probs)).sum())


def test_a_profile_tells_the_law_of_every_kind_of_round() -> None:
    pair = {"rejection": {"kind": "power", "miss_exponent": 0.5, "miss_prefactor": 0.4}}
    behaviour = Behaviour.model_validate(
        {
            "acceptance": {"per_position": 0.7},
            "ngram_acceptance": {"per_position": 0.2},
            "hit_curves": {"after_draft": pair, "after_redraft": pair, "after_fallback": pair},
        }
    )
    law = law_of(behaviour, K)
    assert law.ngram_acceptance_prob == (0.2,) * K
    assert law.after_redraft is not None
    assert law.after_fallback is not None
    assert law.after_fallback[0].hit_prob(4) == pytest.approx(0.8)


def close(frequency: float, prob: float, count: int) -> bool:
    return abs(frequency - prob) <= 4 * np.sqrt(prob * (1 - prob) / count)
