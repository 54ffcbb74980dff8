"""A line on stderr that says how far a long run is, how fast it goes and how long it will take."""

from __future__ import annotations

import sys
import time

_EVERY_S = 0.2
_EVERY_S_WITHOUT_TERMINAL = 10.0


class Progress:
    """Counts what is finished; on a terminal the line is redrawn, elsewhere a line is added now and then."""

    def __init__(self, total: int | None, what: str, *, quiet: bool) -> None:
        self._total, self._what, self._quiet = total, what, quiet
        self._done = 0
        self._taken_over = 0
        self._started = self._shown = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def take_over(self, count: int) -> None:
        """`count` were finished in an earlier run: they do not count for the rate."""
        self._taken_over = self._done = count

    def advance(self, count: int) -> None:
        """`count` more are finished."""
        self.reach(self._done + count)

    def reach(self, done: int) -> None:
        """`done` are finished in all."""
        self._done = done
        pause = _EVERY_S if self._on_terminal else _EVERY_S_WITHOUT_TERMINAL
        if time.monotonic() - self._shown >= pause:
            self._show("\r" if self._on_terminal else "\n")

    def end(self) -> None:
        """Show the final state."""
        if self._on_terminal:
            self._show("\n")

    def _show(self, end: str) -> None:
        if self._quiet:
            return
        self._shown = time.monotonic()
        rate = (self._done - self._taken_over) / max(self._shown - self._started, 1e-9)
        count = f"{self._done:,}/{self._total:,}" if self._total is not None else f"{self._done:,}"
        known = bool(rate) and self._total is not None
        left = f", {_duration((self._total - self._done) / rate)} left" if known and self._total else ""
        sys.stderr.write(f"{f'{count} {self._what}, {rate:,.3g}/s{left}':<60}{end}")
        sys.stderr.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
