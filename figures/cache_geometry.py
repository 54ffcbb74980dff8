"""How three policies spend one speculation budget over the accepted counts (Figure 2), and what each hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

from figures import model, ours
from figures.drawing import Drawing
from figures.inputs import Results
from ssdsim.design_point import resolve
from ssdsim.plotting.style import AMBER, BLUE, GREEN, GREY, ORANGE, lighter
from ssdsim.policies import FanOutPolicy
from ssdsim.scenario import Mode
from ssdsim.theory.acceptance import outcome_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_LOOKAHEAD, _BRANCHES_PER_POSITION = 7, 3
_COLOURS = {"uniform": BLUE, "geometric": AMBER, "optimal": GREEN}
_TITLES = {"uniform": "uniform", "geometric": "geometric (Theorem 12, rounded)", "optimal": "optimal (integers)"}


class Position(NamedTuple):
    """One accepted count under one policy."""

    policy: str
    num_accepted: int
    fan_out: int
    outcome_prob: float
    """P(exactly so many are accepted)"""
    hit_prob: float
    """P(bonus token cached | so many accepted)"""


def draw(results: Results) -> Drawing:
    """One panel per policy: a square for every cached bonus token, above the chain that is being verified."""
    from matplotlib.figure import Figure

    profile = ours.profile_of(results)
    pair = "llama-3.1-70b" if profile is None else profile.model_dump(mode="json")
    lookahead = _MAX_LOOKAHEAD if profile is None else model.known_lookahead(profile, _MAX_LOOKAHEAD)
    data = [position for policy in _policies(profile is not None) for position in _positions(pair, policy, lookahead)]
    figure = Figure(figsize=(8.6, 3.7), layout="constrained")
    chosen = list(dict.fromkeys(position.policy for position in data))
    panels = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    for axes, policy in zip(panels, chosen, strict=True):
        _draw(axes, [position for position in data if position.policy == policy])
    panels[0].set_ylabel("bonus tokens cached (fan-out)")
    name = "Llama-3.1-70B / 3.2-1B" if profile is None else f"{profile.target} / {profile.draft}"
    return Drawing(figure=figure, data=data, caption=_caption(data, name))


def _policies(measured: bool) -> tuple[str, ...]:
    """Theorem 12 knows one power law only, which a measured curve need not be."""
    return tuple(policy for policy in get_args(FanOutPolicy) if not (measured and policy == "geometric"))


def _positions(pair: model.Pair, policy: str, lookahead: int) -> list[Position]:
    overrides = {
        "num_speculative_tokens": lookahead,
        "drafting.fan_out": {"policy": policy, "budget": _BRANCHES_PER_POSITION * (lookahead + 1)},
        "mode": Mode.SSD.value,
    }
    row = resolve(model.scenario(pair, overrides)).drafted
    weights = outcome_weights(row.acceptance)
    return [
        Position(policy, k, row.fan_out[k], float(weights[k]), row.hit_probs[k]) for k in range(row.num_proposed + 1)
    ]


def _draw(axes: Axes, positions: list[Position]) -> None:
    policy, colour = positions[0].policy, _COLOURS[positions[0].policy]
    for position in positions:
        k = position.num_accepted
        for i in range(position.fan_out):
            axes.bar(k, 0.86, 0.8, bottom=i + 0.57, color=lighter(colour, 0.15 + 0.5 * i / 6), linewidth=0)
        token = ORANGE if k < len(positions) - 1 else lighter(GREY, 0.6)
        axes.plot([k], [0], marker="o", markersize=9, color=token)
        axes.annotate(
            f"{100 * position.outcome_prob:.0f}", (k, -0.75), ha="center", va="center", fontsize="x-small", color=GREY
        )
    axes.plot([p.num_accepted for p in positions], [0] * len(positions), color=ORANGE, linewidth=1.0, zorder=0)
    axes.annotate("%", (len(positions) - 0.35, -0.75), va="center", fontsize="x-small", color=GREY)
    axes.set_xticks(range(len(positions)))
    axes.set_yticks(range(1, max(8, max(p.fan_out for p in positions) + 1)))
    axes.set_ylim(-1.2, None)
    axes.set_xlabel("accepted draft tokens k")
    axes.grid(visible=False)
    axes.set_title(f"{_TITLES[policy]}\nhits {100 * _hit_rate(positions):.1f} %", fontsize="medium")


def _hit_rate(positions: list[Position]) -> float:
    return sum(p.outcome_prob * p.hit_prob for p in positions)


def _caption(data: list[Position], name: str) -> str:
    rates = {
        policy: _hit_rate([p for p in data if p.policy == policy]) for policy in dict.fromkeys(p.policy for p in data)
    }
    misses = ", ".join(f"{policy} {100 * (1 - rate):.2f} %" for policy, rate in rates.items())
    wasted = (
        " Theorem 12 boosts the last position; under greedy decoding its curve is higher by itself (nothing was "
        "rejected there), so the boost is wasted and the integer optimum spends it further in front."
    )
    positions = 1 + max(p.num_accepted for p in data)
    budget = _BRANCHES_PER_POSITION * positions
    return (
        f"A budget of {budget} branches over the {positions} possible accepted counts of a K={positions - 1} "
        f"chain, {name}. Every square is a bonus token that is prepared for; grey numbers are how often the round "
        f"ends there, in per cent. Misses after a drafted round: {misses}.{wasted if 'geometric' in rates else ''}"
    )
