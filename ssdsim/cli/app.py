"""The verbs of the command line, and the one place where their failures become messages and exit codes.

0 done, 1 a check that was asked for does not hold, 2 bad input, 70 something broke, 130 interrupted.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from ssdsim.cli import calibrate, catalog, evaluate, figures, measure, simulate, sweep, validate, whatif
from ssdsim.cli.output import complain
from ssdsim.errors import InputError, SsdsimError
from ssdsim.interrupts import insistent_interrupts

EXIT_BAD_INPUT = 2
EXIT_BROKEN = 70
EXIT_INTERRUPTED = 130
DEBUG_VARIABLE = "SSDSIM_DEBUG"


class _Verbs(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """Run the verb; its failures end the program with a message, never with a traceback."""
        try:
            with insistent_interrupts():
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except InputError as error:
            complain(f"error: {error}")
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except SsdsimError as error:
            complain(f"error: {error}")
            raise typer.Exit(EXIT_BROKEN) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            if isinstance(getattr(error, "exit_code", None), int):
                raise  # typer's own: wrong usage
            raise typer.Exit(_unexpected(error)) from None


def _unexpected(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    complain(
        f"error: {type(error).__name__}: {error}\n"
        f"This should not have happened. Set {DEBUG_VARIABLE}=1 to see where, and please report it."
    )
    return EXIT_BROKEN


app = typer.Typer(
    name="ssdsim",
    cls=_Verbs,
    help="What will speculative decoding, and speculative speculative decoding, do for this model pair, "
    "on this hardware, under this load, and how do we know?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for verb in (evaluate, simulate, whatif, sweep, measure, calibrate, validate, figures, catalog):
    verb.register(app)
