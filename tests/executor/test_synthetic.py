"""With dummy weights, acceptance and hits follow the given law while everything else is done for real."""

from __future__ import annotations

import numpy as np
from small_pairs import run, small_pair

from executor.config import DraftBehaviour, Request
from ssdsim.records import Lookup
from ssdsim.scenario import Drafting, FanOut
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


def close(frequency: float, prob: float, count: int) -> bool:
    return abs(frequency - prob) < 4 * np.sqrt(prob * (1 - prob) / count)
