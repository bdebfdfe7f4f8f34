"""The command `barrier-runtime`: its entry point. The commands are in `tools/commands`, as `--help` lists them."""

import sys

from barrier_runtime.state.errors import BarrierRuntimeError
from barrier_runtime.tools.commands import flows, jobs, replays, stored
from barrier_runtime.tools.commands.app import app

COMMANDS = (flows, jobs, stored, replays)  # importing them has added them to `app`


def main() -> None:
    """Entry point: what a person must fix is said in one message, without a stack trace."""
    try:
        app()
    except BarrierRuntimeError as error:
        told = getattr(error, "told", "")  # of `JobFailed` alone, whose module would be half of the time of `--help`
        print(told or f"error: {error}", file=sys.stderr)
        sys.exit(1 if told else 2)
