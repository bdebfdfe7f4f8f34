"""Which of this host's Python workers died of a signal, and which signal. Kept by Spark's worker daemon, which forks
them; a worker that takes the place of a dead one was forked later and so knows of it.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from types import FrameType

SILENT = "BARRIER_RUNTIME_DEATHS_SILENT"  # in the environment: the driver, on this terminal, tells of deaths itself
_KEPT = 64
_STDERR = 2
_found: dict[int, str] = {}


def watch() -> None:
    """In the daemon, before it forks. pyspark's manager ignores SIGCHLD from its beginning, so ours is set after each
    fork."""
    os.register_at_fork(after_in_parent=_listen, after_in_child=_ignore)


def died_lately() -> dict[int, str]:
    """Process id to name of the signal, as "SIGSEGV"; the newest 64 that were known when this process was forked."""
    return dict(_found)


def told(died: Mapping[int, str]) -> None:
    """What another parent of workers knows: process id to name of the signal."""
    _found.update(died)


def _listen() -> None:
    signal.signal(signal.SIGCHLD, _reap)


def _ignore() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _reap(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if os.WIFSIGNALED(status):
                _note(pid, os.WTERMSIG(status))


def _note(pid: int, number: int) -> None:
    """A handler may interrupt itself, when two die at once. Nothing here may raise: the daemon would end, and its
    workers with it. So the system is told the line, and not `sys.stderr`, which refuses to be written to meanwhile."""
    name = signal.Signals(number).name
    _found[pid] = name
    for old in list(_found)[:-_KEPT]:
        _found.pop(old, None)
    if SILENT not in os.environ:
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.write(_STDERR, f"barrier-runtime: Python worker {pid} died of {name}\n".encode())
