"""What two forward passes say about text that the target wrote: the plan, the arrays, and where they lie on disk.

`ssdsim measure --teacher-forced` asks an executor for these observations (entry point `ssdsim.verbs`, name
`teacher_forced`); `ssdsim.calibration.forced` estimates acceptance and hit curves from them. No engine takes part.

    DIR/about.json            what was asked (models, prompts and their kinds, conditions, seed), machine
    DIR/T1-C0.5.npz           one `Observed` per temperature and Saguaro constant
    DIR/rank_trace.json       ranks of the greedy texts: a profile's `rank_trace`
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssdsim.errors import DomainError, InputError
from ssdsim.measurement import ModelSource, Texts

FloatArray = NDArray[np.float64]

_SCALARS = ("temperature", "downweight")


@dataclass(frozen=True, kw_only=True)
class ObservationPlan:
    """Which texts are written and what is asked about them."""

    models: ModelSource
    texts: Texts
    out: Path
    temperatures: tuple[float, ...]
    downweights: tuple[float, ...]
    """Saguaro constants beside 1, observed above temperature 0."""
    fan_out: int
    """Candidates at every position whose probability a constant below 1 lowers."""
    max_fan_out: int
    """Of the hit curves, from which the hit rate at `fan_out` is read too."""
    num_threads: int = 1
    resume: bool = False
    """Whether `out` may hold these very observations already."""

    def __post_init__(self) -> None:
        for name in ("max_fan_out", "fan_out", "num_threads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DomainError(name, "an integer of at least 1", value)
        if self.fan_out > self.max_fan_out:
            raise DomainError("fan_out", f"must be at most max_fan_out, which is {self.max_fan_out}", self.fan_out)

    def conditions(self, temperature: float) -> tuple[float, ...]:
        """Saguaro constants to observe at `temperature`; a greedy draft is a point mass that none can lower."""
        return (1.0, *dict.fromkeys(c for c in self.downweights if c != 1.0)) if temperature > 0 else (1.0,)

    def condition_names(self) -> list[str]:
        """Of everything that is observed, in its order."""
        return [condition_name(t, c) for t in self.temperatures for c in self.conditions(t)]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Texts under one condition: a row per text, a column per generated token, padded to the longest text.

    With p the target's distribution of a token and q the draft's, both given the text before it.
    """

    temperature: float
    downweight: float
    lengths: NDArray[np.int64]
    """[texts]"""
    accept_given_token: FloatArray
    """[texts, tokens]: min(1, q(x) / p(x)) of the token x that was written: given the text, the probability that a
    draft which got this far had it accepted."""
    accept_prob: FloatArray
    """[texts, tokens]: sum of min(p, q), its mean over what could have been written (Theorem 1)."""
    rejection_hits: FloatArray
    """[texts, tokens, fan-outs from 1]: probability that a drafted token is rejected and the bonus token is among
    the first F candidates without the rejected one."""
    bonus_hits: FloatArray
    """[texts, tokens, fan-outs from 1]: probability of the target's token among the first F candidates."""
    ranks: NDArray[np.int64]
    """[texts, tokens]: of the written token in the draft's logits, 0 the best."""

    @property
    def name(self) -> str:
        """Of the condition."""
        return condition_name(self.temperature, self.downweight)

    @property
    def written(self) -> NDArray[np.bool_]:
        """[texts, tokens]: what is not padding."""
        mask: NDArray[np.bool_] = np.arange(self.accept_prob.shape[1]) < self.lengths[:, None]
        return mask

    def of_texts(self, chosen: NDArray[np.bool_]) -> Observed:
        """The same for some of the texts."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SCALARS}
        return replace(self, **{name: array[chosen] for name, array in arrays.items()})

    def rank_trace(self) -> list[list[int]]:
        """Ranks per text."""
        return [row[:length].tolist() for row, length in zip(self.ranks, self.lengths, strict=True)]


def condition_name(temperature: float, downweight: float) -> str:
    """A name fit for a file."""
    return f"T{temperature:g}-C{downweight:g}"


def claim(out: Path, *, resume: bool) -> bool:
    """Make the folder `out`, before anything is computed, and tell whether it holds observations already.

    Raises InputError where it cannot be used, or holds observations that are not to be resumed.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out: {out} cannot be made a folder ({error.strerror}); choose another one") from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise InputError(f"out: {out} cannot be written to; choose another folder")
    is_finished = (out / "about.json").exists()
    if is_finished and not resume:
        raise InputError(
            f"out: {out} holds observations already; add --resume to show them again or choose another folder"
        )
    return is_finished


def check_same_observations(out: Path, asked: Mapping[str, Any]) -> None:
    """InputError where the observations in `out` answer to something else than `asked`."""
    about, _ = read_observations(out)
    different = sorted(name for name, value in asked.items() if about.get(name) != value)
    if different:
        raise InputError(f"out: {out} holds observations with other {', '.join(different)}; choose another folder")


def write_observations(out: Path, about: Mapping[str, Any], observed: list[Observed]) -> None:
    """Store all conditions of one pair."""
    out.mkdir(parents=True, exist_ok=True)
    for condition in observed:
        np.savez_compressed(out / f"{condition.name}.npz", **vars(condition))
        if condition.temperature == 0:
            trace = json.dumps({"requests": condition.rank_trace()})
            (out / "rank_trace.json").write_text(trace + "\n")
    names = [condition.name for condition in observed]
    (out / "about.json").write_text(json.dumps({**about, "conditions": names}, indent=1, sort_keys=True) + "\n")


def read_observations(out: Path) -> tuple[dict[str, Any], list[Observed]]:
    """What `write_observations` stored; InputError where it is not there."""
    try:
        about = json.loads((out / "about.json").read_text())
        observed = [_read(out / f"{name}.npz") for name in about["conditions"]]
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{out}: no observations of `ssdsim measure --teacher-forced` here ({error})") from error
    return about, observed


def _read(path: Path) -> Observed:
    with np.load(path) as arrays:
        values: dict[str, Any] = {name: arrays[name] for name in arrays.files}
    values |= {name: float(values[name]) for name in _SCALARS}
    return Observed(**values)
