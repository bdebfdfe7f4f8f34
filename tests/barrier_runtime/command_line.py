"""The command `barrier-runtime`: as a process where that is the point, otherwise in the process of the test."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from barrier_runtime.tools import cli
from barrier_runtime.tools.commands.app import USER_MODULE

COMMAND = [str(Path(sys.executable).with_name("barrier-runtime"))]


@dataclass(frozen=True)
class Done:
    """What `subprocess.run` tells of a process."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str, cwd: Path | None = None, variables: Mapping[str, str] = {}) -> Done:
    """Runs the entry point of the command with these arguments, to its end. Nothing of it stays in this process."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    with (
        patch.object(sys, "argv", ["barrier-runtime", *arguments]),
        patch.object(sys, "path", list(sys.path)),
        patch.object(sys, "excepthook", sys.excepthook),  # typer sets its own
        patch.dict(os.environ, variables),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.chdir(cwd or before)
        try:
            cli.main()
        except SystemExit as left:
            return Done(int(left.code or 0), out.getvalue(), err.getvalue())
        finally:
            os.chdir(before)
            sys.modules.pop(USER_MODULE, None)
    raise AssertionError("the command came back without an exit code")
