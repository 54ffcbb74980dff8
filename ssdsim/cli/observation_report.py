"""What `ssdsim measure --teacher-forced` says of a draft: acceptance, hit curves with their laws, the effect of C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ssdsim.cli.output import print_json, print_table

if TYPE_CHECKING:
    from ssdsim.calibration.forced import ForcedEstimate
    from ssdsim.calibration.hit_curves import CurveEstimate
    from ssdsim.observation import Observed

_ALL = "all"
SHOWN_FAN_OUTS = (1, 2, 4, 8, 16, 32, 64)
_CURVES = ("rejection", "all_accepted", "after_fallback")


class Row(NamedTuple):
    """One estimate and what it is of."""

    condition: Observed
    kind: str
    lookahead: int
    estimate: ForcedEstimate


def show(out: Path, lookaheads: Sequence[int]) -> None:
    """Three tables: acceptance, hit curves with their laws, and what Saguaro's constant does."""
    from ssdsim.observation import read_observations

    about, observed = read_observations(out)
    rows = list(_rows(about, observed, lookaheads))
    models = about["models"]
    title = f"{models['target']} / {models['draft']}: acceptance on {about['prompts']['num_prompts']} texts"
    plain = [row for row in rows if row.condition.downweight == 1.0]
    heads = ["T", "prompts", "K", "tokens", "acceptance", "tokens/round", "by position"]
    print_table(title, heads, [_acceptance_cells(row) for row in plain], words=2)
    widest = observed[0].rejection_hits.shape[2]
    fan_outs = [fan_out for fan_out in SHOWN_FAN_OUTS if fan_out <= widest]
    heads = ["T", "prompts", "curve", "K", *(f"F={f}" for f in fan_outs), "1 - c F^-r"]
    curves = [_curve_cells(row, name, fan_outs) for row in plain for name in _CURVES]
    print_table("hit probability by fan-out", heads, [cells for cells in curves if cells], words=3)
    if len({row.condition.downweight for row in rows}) > 1:
        title = f"Saguaro at fan-out {about['fan_out']}"
        heads = ["T", "prompts", "K", "C", "acceptance", "tokens/round", "hit rate"]
        lowered = [row for row in rows if row.condition.temperature > 0 and row.kind == _ALL]
        print_table(title, heads, [_saguaro_cells(row, about["fan_out"]) for row in lowered], words=2)


def print_document(out: Path, lookaheads: Sequence[int]) -> None:
    """Every estimate."""
    from ssdsim.observation import read_observations

    about, observed = read_observations(out)
    estimates = [
        {
            "temperature": row.condition.temperature,
            "saguaro_downweight": row.condition.downweight,
            "prompt_kind": None if row.kind == _ALL else row.kind,
            "num_speculative_tokens": row.lookahead,
            **_plain(row.estimate),
        }
        for row in _rows(about, observed, lookaheads)
    ]
    print_json({"verb": "measure", "teacher_forced": True, **about, "estimates": estimates})


def _rows(about: dict[str, Any], observed: Sequence[Observed], lookaheads: Sequence[int]) -> Iterator[Row]:
    """Every condition and lookahead, over all texts and over those of each kind where there are several."""
    import numpy as np

    from ssdsim.calibration.forced import estimate

    kinds, kind_of_text = about["prompt_kinds"], np.array(about["kind_of_text"])
    for condition in observed:
        for lookahead in lookaheads:
            yield Row(condition, _ALL, lookahead, estimate(condition, lookahead))
            for index, kind in enumerate(kinds if len(kinds) > 1 else ()):
                part = condition.of_texts(kind_of_text == index)
                yield Row(condition, kind, lookahead, estimate(part, lookahead))


def _acceptance_cells(row: Row) -> list[str]:
    found = row.estimate
    positions = " ".join(f"{quantity.value:.3f}" for quantity in found.per_position)
    return [
        f"{row.condition.temperature:g}",
        row.kind,
        str(row.lookahead),
        str(found.num_tokens),
        found.acceptance.text(),
        found.mean_acceptance_length.text(),
        positions,
    ]


def _curve_cells(row: Row, name: str, fan_outs: Sequence[int]) -> list[str]:
    curve: CurveEstimate | None = getattr(row.estimate, name)
    if curve is None:
        return []
    hits = [f"{curve.hit_probs[fan_out - 1].value:.3f}" for fan_out in fan_outs]
    return [f"{row.condition.temperature:g}", row.kind, name, str(row.lookahead), *hits, law_text(curve)]


def law_text(curve: CurveEstimate) -> str:
    """The fitted law with its intervals, and whether the counts refute it."""
    law = curve.law
    if law is None:
        return "no misses"
    text = f"c {law.miss_prefactor.text(2)}, r {law.miss_exponent.text(2)}"
    if not law.is_refuted:
        return text
    return f"{text}; refuted (p {law.p_value:.1g}, off by up to {law.largest_deviation:.3f})"


def _saguaro_cells(row: Row, fan_out: int) -> list[str]:
    found = row.estimate
    return [
        f"{row.condition.temperature:g}",
        row.kind,
        str(row.lookahead),
        f"{row.condition.downweight:g}",
        found.acceptance.text(),
        found.mean_acceptance_length.text(),
        found.hit_rates[fan_out - 1].text(),
    ]


def _plain(found: ForcedEstimate) -> dict[str, Any]:
    return {
        "num_texts": found.num_texts,
        "num_tokens": found.num_tokens,
        "acceptance": found.acceptance._asdict(),
        "acceptance_prob": [quantity._asdict() for quantity in found.per_position],
        "mean_acceptance_length": found.mean_acceptance_length._asdict(),
        "cache_hit_rate_by_fan_out": [quantity._asdict() for quantity in found.hit_rates],
        "hit_curves": {name: plain_curve(getattr(found, name)) for name in _CURVES},
    }


def plain_curve(curve: CurveEstimate | None) -> dict[str, Any] | None:
    """A curve in plain data."""
    if curve is None:
        return None
    law = curve.law
    return {
        "fan_outs": list(curve.fan_outs),
        "hit_probs": [quantity._asdict() for quantity in curve.hit_probs],
        "law": None
        if law is None
        else {
            "miss_prefactor": law.miss_prefactor._asdict(),
            "miss_exponent": law.miss_exponent._asdict(),
            "p_value": law.p_value,
            "largest_deviation": law.largest_deviation,
            "is_refuted": law.is_refuted,
        },
    }
