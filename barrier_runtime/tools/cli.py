"""Entry point of `barrier-runtime`. The commands are in `tools/commands`, in the order of `--help`."""

import sys

from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.tools.commands import flows, jobs, stored
from barrier_runtime.tools.commands.app import app

COMMANDS = (flows, jobs, stored)  # the import registers them with `app`


def main() -> None:
    """Runs a command. An error that a person must fix is printed without a stack trace."""
    try:
        app()
    except BarrierRuntimeError as error:
        # Importing that module would take half of the time of `--help`.
        told = getattr(error, "told", "")
        print(told or f"error: {error}", file=sys.stderr)
        sys.exit(1 if told else 2)
