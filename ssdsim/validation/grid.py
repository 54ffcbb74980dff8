"""The measured points: which a profile is calibrated on, and which it must predict without having seen them.

Held-out points lie within the calibrated range (lookaheads, batch sizes and fan-outs between those of calibration),
because that is what a profile promises; every one differs from all calibration points in what is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from ssdsim.errors import InputError
from ssdsim.measurement import RunSetting, grid
from ssdsim.policies import allocate_fan_out
from ssdsim.scenario import Drafting, FallbackChoice, FallbackKind, FanOut, Mode
from ssdsim.theory.hit_curve import AllAccepted, PowerLaw

ASSUMED_ACCEPTANCE = 0.7
_ASSUMED_LAW = PowerLaw(exponent=0.3, prefactor=0.8)
"""What geometric and optimal fan-outs are worked out for: a typical draft. The vectors are given explicitly, so that
measurement and prediction mean the same ones."""


class GridName(StrEnum):
    SMALL = "small"
    FULL = "full"


class ValidationGrid(NamedTuple):
    """The points of a validation."""

    anchor: RunSetting
    """Run again and again, so that the machine's drift is seen."""
    calibration: tuple[RunSetting, ...]
    held_out: tuple[RunSetting, ...]

    @property
    def settings(self) -> tuple[RunSetting, ...]:
        """All points, the anchor first."""
        return tuple({s.name: s for s in (self.anchor, *self.calibration, *self.held_out)}.values())


def validation_grid(name: GridName) -> ValidationGrid:
    """The grid of that name."""
    made = _small() if name is GridName.SMALL else _full()
    seen = {setting.name for setting in made.calibration}
    held_out = {s.name: s for s in made.held_out if s.name not in seen}
    return made._replace(held_out=tuple(held_out.values()))


def _small() -> ValidationGrid:
    anchor = _ssd(4, "uniform", 4, FallbackKind.JIT, 1, 0.0)
    calibration = (
        anchor,
        *_ar((1, 4), 0.0),
        _sd(2, 1, 0.0),
        _sd(6, 4, 0.0),
        _ssd(2, "uniform", 2, FallbackKind.NONE, 4, 0.0),
        _ssd(6, "uniform", 6, FallbackKind.JIT, 2, 0.0),
    )
    held_out = (
        *_ar((2,), 0.0),
        _sd(4, 2, 0.0),
        _ssd(3, "uniform", 3, FallbackKind.JIT, 2, 0.0),
        _ssd(4, "optimal", 3, FallbackKind.NONE, 1, 0.0),
        _ssd(5, "uniform", 4, FallbackKind.JIT, 4, 0.0),
    )
    return ValidationGrid(anchor, calibration, held_out)


def _full() -> ValidationGrid:
    anchor = _ssd(4, "uniform", 4, FallbackKind.JIT, 1, 0.0)
    jit, none, ngram = FallbackKind.JIT, FallbackKind.NONE, FallbackKind.NGRAM
    calibration = [anchor, *_ar((1, 4, 8), 0.0), *_ar((1,), 1.0)]
    for temperature in (0.0, 1.0):
        calibration += [_sd(k, b, temperature) for k, b in ((1, 8), (2, 1), (4, 4), (8, 1), (8, 8))]
        calibration += [
            _ssd(k, "uniform", size, fallback, b, temperature)
            for k, size, fallback, b in (
                (1, 8, jit, 4),
                (2, 2, jit, 8),
                (2, 8, none, 1),
                (4, 1, none, 4),
                (4, 4, none, 8),
                (8, 2, jit, 1),
                (8, 2, none, 2),
                (8, 4, jit, 4),
                (4, 4, ngram, 2),
            )
        ]
    return ValidationGrid(anchor, tuple(calibration), tuple(_held_out_of_full()))


def _held_out_of_full() -> Iterator[RunSetting]:
    jit, none, ngram = FallbackKind.JIT, FallbackKind.NONE, FallbackKind.NGRAM
    yield from _ar((2, 6), 0.0)
    for temperature in (0.0, 1.0):
        for k, b in ((1, 1), (3, 2), (5, 1), (6, 8)):
            yield _sd(k, b, temperature)
        for k, policy, size, fallback, b in (
            (1, "uniform", 3, none, 1),
            (2, "uniform", 3, jit, 2),
            (3, "uniform", 2, jit, 1),
            (3, "uniform", 4, none, 4),
            (3, "optimal", 3, jit, 8),
            (4, "geometric", 4, jit, 2),
            (4, "optimal", 3, none, 1),
            (4, "uniform", 2, jit, 8),
            (5, "uniform", 3, jit, 4),
            (5, "geometric", 3, none, 1),
            (6, "uniform", 2, none, 1),
            (6, "optimal", 3, jit, 2),
            (6, "uniform", 3, jit, 6),
            (7, "uniform", 3, jit, 1),
            (8, "geometric", 2, none, 4),
            (4, "uniform", 3, ngram, 1),
        ):
            yield _ssd(k, policy, size, fallback, b, temperature)


def _ar(batch_sizes: Sequence[int], temperature: float) -> list[RunSetting]:
    return [_setting(Mode.AR, Drafting(), b, temperature) for b in batch_sizes]


def _sd(lookahead: int, batch_size: int, temperature: float) -> RunSetting:
    return _setting(Mode.SD, Drafting(num_speculative_tokens=lookahead), batch_size, temperature)


def _ssd(
    lookahead: int, policy: str, per_position: int, fallback: FallbackKind, batch_size: int, temperature: float
) -> RunSetting:
    """Rows that propose less than others are padded to full width in a batch, as kernels without ragged rows do."""
    drafting = Drafting(
        num_speculative_tokens=lookahead,
        fan_out=fan_out_of(policy, lookahead, per_position),
        fallback=FallbackChoice(kind=fallback),
        padded_verify=batch_size > 1 and fallback is not FallbackKind.JIT,
    )
    return _setting(Mode.SSD, drafting, batch_size, temperature)


def fan_out_of(policy: str, lookahead: int, per_position: int) -> FanOut:
    """A policy's fan-out for a typical draft: uniform as such, others as the vector that they come to."""
    if policy == "uniform":
        return FanOut(policy="uniform", per_position=per_position)
    if policy not in ("geometric", "optimal"):
        raise InputError(f"fan_out.policy: must be uniform, geometric or optimal; got {policy!r}")
    bonus = AllAccepted(acceptance_prob=ASSUMED_ACCEPTANCE, base=_ASSUMED_LAW)
    budget = per_position * (lookahead + 1)
    known: tuple[float, ...] = (ASSUMED_ACCEPTANCE,) * lookahead
    values = allocate_fan_out(
        "geometric" if policy == "geometric" else "optimal", lookahead, budget, known, _ASSUMED_LAW, bonus
    )
    return FanOut(policy="explicit", values=values)


def _setting(mode: Mode, drafting: Drafting, batch_size: int, temperature: float) -> RunSetting:
    (found,) = grid(
        drafting,
        modes=[mode],
        lookaheads=[drafting.num_speculative_tokens],
        fan_outs=[drafting.fan_out],
        fallbacks=[drafting.fallback],
        downweights=[1.0],
        batch_sizes=[batch_size],
        temperatures=[temperature],
    )
    return found
