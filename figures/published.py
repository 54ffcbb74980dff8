"""Published numbers that the pictures show beside the model, and the band of what the model had to assume.

The rows themselves live in `experiments.published.rows`; here is what else was printed. What only a picture of the
paper shows (Figures 3 to 7, 10 to 13) has no number, so no point of ours stands for it.
"""

from __future__ import annotations

from functools import cache

from experiments.published import study
from experiments.published.rates import Profile
from experiments.published.study import Case, Comparison, Effects

CASES = (study.LLAMA, study.QWEN)

TITLES = {"llama-3.1-70b": "Llama-3.1-70B / 3.2-1B", "qwen3-32b": "Qwen3-32B / 0.6B"}

FIGURE_1 = {"SGLang SD": 169.3, "vLLM SD": 109.4, "vLLM AR": 65.9, "SGLang AR": 65.4}
"""Llama's baselines, tokens per second, means over the data sets; read from Figure 1's bars, +-0.7."""

QWEN_PAPER = {
    "ar": (88.8, 88.8, 88.8, 88.8),
    "sd": (146.0, 122.0, 127.0, 152.0),
    "ssd": (222.0, 174.0, 185.0, 234.0),
}
"""Table B.3 for Qwen3-32B, in the order of `rows.PROMPT_KINDS`: another engine run than the profile is built on."""

AUTHORS_HIT_RATE, AUTHORS_SAGUARO_HIT_RATE = 0.79, 0.87
"""Of the authors' development run: Llama-3.2-1B drafts for itself, K=6, F=3, temperature 1; without and with Saguaro
sampling (its constant was not published)."""

QWEN_TARGET_WAITS_S = 11.4e-3
"""How long the target waits for the draft in one round at K=7 (look-up, misses, build), by the reproduction."""


@cache
def comparisons(name: str) -> tuple[Comparison, ...]:
    """Every published SSD rate of a pair with the model's band and prediction (`experiments.published.study`)."""
    return tuple(study.compare(_case(name), _effects(name)))


@cache
def extremes(name: str) -> tuple[Profile, Profile]:
    """The profile with every assumption at its worse and at its better end, its input rows kept."""
    effects = _effects(name)
    worse = {knob: 0 if low.mean <= high.mean else 1 for knob, (low, high) in effects.items()}
    better = {knob: 1 - end for knob, end in worse.items()}
    return study.assuming(_case(name), worse), study.assuming(_case(name), better)


@cache
def _effects(name: str) -> Effects:
    return study.sensitivities(_case(name))


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)
