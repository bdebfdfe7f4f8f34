"""Entry point of `barrier-runtime`."""

import sys

from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.tools.commands import flows, jobs, stored
from barrier_runtime.tools.commands.app import app

COMMANDS = (flows, jobs, stored)  # in the order of `--help`; the import registers them with `app`


def main() -> None:
    """Prints errors for operators without a stack trace."""
    try:
        app()
    except BarrierRuntimeError as error:
        # Importing that module would take half of the time of `--help`.
        told = getattr(error, "told", "")
        print(told or f"error: {error}", file=sys.stderr)
        sys.exit(1 if told else 2)
