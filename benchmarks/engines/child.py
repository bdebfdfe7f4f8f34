"""The engine's side of a run: spec, results, and a process of another program that does the work.

Such a program is a JVM or the Python of a side environment.
"""

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from benchmarks.spec import Facts, RunSpec


def spec_of_this_run() -> RunSpec:
    return msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RunSpec)


def leave_facts(spec: RunSpec, facts: Facts) -> None:
    Path(spec.folder, "facts.json").write_bytes(msgspec.json.encode(facts))


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code.

    The command's output goes to this process's standard output. The command also gets the order to stop."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdin is not None
    assert child.stdout is not None
    threading.Thread(target=_hand_on, args=(child.stdin,), daemon=True).start()
    for line in child.stdout:
        print(line, end="", flush=True)
    return child.wait()


def _hand_on(to: IO[str]) -> None:
    sys.stdin.buffer.read()
    to.close()
