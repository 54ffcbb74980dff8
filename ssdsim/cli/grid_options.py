"""The grid of `ssdsim measure`: options that hold several values (`-K 4,6`), among them fan-outs and fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ssdsim.errors import InputError

if TYPE_CHECKING:
    from ssdsim.measurement import RunSetting
    from ssdsim.scenario import Drafting, FallbackChoice, FanOut, Mode

T = TypeVar("T")
Texts = list[str] | None
"""The values of a repeatable option as they were written; None where it was not given."""
DEFAULT_LOOKAHEAD = 4
DEFAULT_FAN_OUT = 3
_POLICIES = ("uniform", "geometric", "optimal")


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """What the user wrote."""

    modes: Texts = None
    lookaheads: Texts = None
    fan_outs: Texts = None
    fan_out_on_miss: str | None = None
    fallbacks: Texts = None
    downweights: Texts = None
    batch_sizes: Texts = None
    temperatures: Texts = None
    sets: Texts = None

    def settings(self) -> tuple[RunSetting, ...]:
        """Every combination; raises InputError naming the option."""
        from ssdsim.measurement import grid
        from ssdsim.scenario import Mode

        base = self.base()
        return grid(
            base,
            modes=parse_list("--mode", self.modes, parse_mode) or list(Mode),
            lookaheads=parse_list("-K", self.lookaheads, parse_count) or [base.num_speculative_tokens],
            fan_outs=parse_list("--fan-out", self.fan_outs, parse_fan_out) or [base.fan_out],
            fallbacks=parse_list("--fallback", self.fallbacks, parse_fallback) or [base.fallback],
            downweights=self.parsed_downweights() or [base.saguaro_downweight],
            batch_sizes=parse_list("--batch", self.batch_sizes, parse_count) or [1],
            temperatures=self.parsed_temperatures() or [0.0],
        )

    def parsed_downweights(self) -> list[float]:
        """Saguaro constants that were given."""
        return parse_list("--downweight", self.downweights, parse_probability)

    def parsed_temperatures(self) -> list[float]:
        """Temperatures that were given."""
        return parse_list("--temperature", self.temperatures, parse_temperature)

    def parsed_lookaheads(self) -> list[int]:
        """Lookaheads, the default one where none was given."""
        return parse_list("-K", self.lookaheads, parse_count) or [DEFAULT_LOOKAHEAD]

    def uniform_fan_out(self, most: int) -> int:
        """The one fan-out at every position that `--teacher-forced` lowers with Saguaro's constant; without one, the
        usual one as far as `most` allows."""
        given = parse_list("--fan-out", self.fan_outs, parse_count)
        if len(given) > 1:
            raise InputError("--fan-out: one number with --teacher-forced; the curves hold every fan-out")
        return given[0] if given else min(DEFAULT_FAN_OUT, most)

    def base(self) -> Drafting:
        """The drafting that the grid varies: defaults, `--set drafting.FIELD=VALUE` and `--fan-out-on-miss`."""
        from ssdsim.scenario import Drafting
        from ssdsim.scenario_files import parse_override, with_value
        from ssdsim.schema import validate

        data = Drafting(num_speculative_tokens=DEFAULT_LOOKAHEAD).model_dump(mode="json")
        for text in self.sets or []:
            path, value = parse_override(text)
            head, _, field = path.partition(".")
            if head != "drafting" or not field:
                raise InputError(f"--set {path}: fields of the drafting only, for instance drafting.on_late=truncate")
            data = with_value(data, tuple(field.split(".")), value)
        base = validate(Drafting, data, prefix="drafting")
        if self.fan_out_on_miss is None:
            return base
        on_miss = parse_fan_out("--fan-out-on-miss", self.fan_out_on_miss)
        return base.model_copy(update={"fan_out_on_miss": on_miss})


def parse_list(option: str, texts: Texts, parse: Callable[[str, str], T]) -> list[T]:
    """The values of an option that may be repeated and hold several values between commas."""
    parts = [part.strip() for text in texts or [] for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{option}: empty value; write values between commas, for instance {option} 1,2")
    return list(dict.fromkeys(parse(option, part) for part in parts))


def parse_mode(option: str, text: str) -> Mode:
    """One of the three modes."""
    from ssdsim.scenario import Mode

    known = [str(mode) for mode in Mode]
    if text not in known:
        raise InputError(f"{option}: must be one of {', '.join(known)}; got {text!r}")
    return Mode(text)


def parse_count(option: str, text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{option}: must be an integer of at least 1; got {text!r}")
    return int(text)


def parse_temperature(option: str, text: str) -> float:
    """A finite number of at least 0."""
    return _number(option, text, lambda value: 0 <= value < float("inf"), "a finite number of at least 0")


def parse_probability(option: str, text: str) -> float:
    """A number in [0, 1]."""
    return _number(option, text, lambda value: 0 <= value <= 1, "a number in [0, 1]")


def parse_fan_out(option: str, text: str) -> FanOut:
    """`3` and `geometric:3` (per position), `4+3+3+2` (explicit, K + 1 numbers)."""
    from ssdsim.scenario import FanOut

    if "+" in text:
        values = text.split("+")
        if not all(value.isdecimal() for value in values):
            raise InputError(f"{option}: an explicit fan-out is K + 1 integers such as 4+3+3+2; got {text!r}")
        return FanOut(policy="explicit", values=tuple(map(int, values)))
    policy, colon, size = text.rpartition(":")
    policy = policy if colon else "uniform"
    if policy not in _POLICIES:
        raise InputError(f"{option}: write 3, geometric:3, optimal:3 or an explicit 4+3+3+2; got {text!r}")
    return FanOut.model_validate({"policy": policy, "per_position": parse_count(option, size)})


def parse_fallback(option: str, text: str) -> FallbackChoice:
    """`jit`, `none`, `random`, `ngram`, `ngram:3` (tokens), `threshold:2` (misses), `auto`."""
    from ssdsim.scenario import FallbackChoice, FallbackKind

    kind, colon, size = text.partition(":")
    known = [str(k) for k in FallbackKind]
    if kind not in known:
        raise InputError(f"{option}: must be one of {', '.join(known)}; got {text!r}")
    if not colon:
        return FallbackChoice(kind=FallbackKind(kind))
    if kind == FallbackKind.NGRAM:
        return FallbackChoice(kind=FallbackKind.NGRAM, num_tokens=parse_count(option, size))
    if kind == FallbackKind.THRESHOLD:
        return FallbackChoice(kind=FallbackKind.THRESHOLD, threshold=parse_count(option, size))
    raise InputError(f"{option}: {kind!r} takes no number; got {text!r}")


def _number(option: str, text: str, allowed: Callable[[float], bool], requirement: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not allowed(value):
        raise InputError(f"{option}: must be {requirement}; got {text!r}")
    return value
