"""The command line: `ssdsim VERB`. Thin by design: parse, call, print; one module per verb.

app        the verbs and what happens when one of them fails
options    the options that verbs share, and the scenario they lead to
output     tables, JSON and messages: results on stdout, everything else on stderr
progress   a line on stderr with rate and time left
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `ssdsim` command."""
    try:
        from ssdsim.cli.app import app
    except KeyboardInterrupt:  # pressed before there is a verb that would say so
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    app(prog_name="ssdsim")
