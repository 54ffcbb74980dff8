"""Fan-out: uniform against geometric (Theorem 12) against optimal, at one budget and several temperatures.

A first run per temperature calibrates the curves; the vectors follow from them, are run as they are, and the observed
hit rate stands beside the predicted one.
"""

from __future__ import annotations

from experiments.common import (
    Row,
    calibrated,
    explicit,
    observed,
    per_position,
    predicted,
    setting,
    start,
    study_from_arguments,
)
from ssdsim.errors import DomainError
from ssdsim.policies import FanOutPolicy, allocate_fan_out
from ssdsim.profile import PairProfile
from ssdsim.scenario import Mode

TEMPERATURES = (0.0, 1.0)
LOOKAHEAD = 4
PER_POSITION = 3
POLICIES: tuple[FanOutPolicy, ...] = ("uniform", "geometric", "optimal")


def main() -> None:
    """Run the study."""
    study = study_from_arguments("fan_out", __doc__ or "")
    pilots = [
        setting(Mode.SSD, lookahead=LOOKAHEAD, fan_out=per_position(size), temperature=t)
        for t in TEMPERATURES
        for size in (2, 8)
    ]
    profile = calibrated(study.run([setting(Mode.AR), setting(Mode.SD), *pilots], "pilot"))
    vectors = {(t, p): v for t in TEMPERATURES for p in POLICIES if (v := _vector(profile, t, p)) is not None}
    wanted = {
        key: setting(Mode.SSD, lookahead=LOOKAHEAD, fan_out=explicit(vector), temperature=key[0])
        for key, vector in vectors.items()
    }
    runs = {run.setting.name: run for run in study.run(list(wanted.values()), "policies")}
    rows: list[Row] = []
    for (temperature, policy), chosen in wanted.items():
        run = runs[chosen.name]
        seen, expected = observed(run), predicted(run, profile)
        rows.append(
            {
                "T": temperature,
                "policy": policy,
                "fan-out": "+".join(map(str, vectors[temperature, policy])),
                "hit rate": seen["cache_hit_rate"].value,
                "predicted": expected["cache_hit_rate"].value,
                "tokens/s": seen["tokens_per_s"].value,
                "predicted tokens/s": expected["tokens_per_s"].value,
            }
        )
    study.save(rows, gain_of_optimal_over_uniform=_gains(rows))


def _vector(profile: PairProfile, temperature: float, policy: FanOutPolicy) -> tuple[int, ...] | None:
    """The vector of a policy; None where the curve is no power law and the policy needs one."""
    behaviour = profile.behaviour(temperature=temperature, saguaro_downweight=1.0, prompt_kind=None, drafter="model")
    acceptance = behaviour.acceptance.at(LOOKAHEAD)
    curves = behaviour.hit_curves.after_draft
    rejection, bonus = curves.rejection.curve(), curves.all_accepted_curve(acceptance[-1])
    budget = PER_POSITION * (LOOKAHEAD + 1)
    try:
        return allocate_fan_out(policy, LOOKAHEAD, budget, acceptance, rejection, bonus)
    except DomainError:
        return None


def _gains(rows: list[Row]) -> str:
    """Observed and predicted gain in hit rate, in points."""
    by_key = {(row["T"], row["policy"]): row for row in rows}
    parts = []
    for temperature in TEMPERATURES:
        best, plain = by_key[temperature, "optimal"], by_key[temperature, "uniform"]
        seen, expected = (100 * (best[key] - plain[key]) for key in ("hit rate", "predicted"))
        parts.append(f"T={temperature:g} {seen:+.1f} points observed, {expected:+.1f} predicted")
    return "; ".join(parts)


if __name__ == "__main__":
    start(main)
