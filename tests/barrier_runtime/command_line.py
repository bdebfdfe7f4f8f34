"""The command `barrier-runtime`, run as a process only where a test needs one, otherwise in the test's process."""

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
    """Result of a command, with the fields of `subprocess.run`'s result."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str, cwd: Path | None = None, variables: Mapping[str, str] = {}) -> Done:
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    with (
        patch.object(sys, "argv", ["barrier-runtime", *arguments]),
        patch.object(sys, "path", list(sys.path)),
        patch.object(sys, "excepthook", sys.excepthook),  # typer replaces the hook
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
