"""Python workers that died of a signal, recorded by Spark's worker daemon.

The daemon forks a dead worker's replacement, which inherits the record.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from types import FrameType

SILENT = "BARRIER_RUNTIME_DEATHS_SILENT"  # the driver reports deaths on this terminal
_KEPT = 64
_STDERR = 2
_found: dict[int, str] = {}


def watch() -> None:
    """Watches the workers. Call in the daemon before the first fork.

    PySpark's manager ignores SIGCHLD from the start, so the handler is set after each fork.
    """
    os.register_at_fork(after_in_parent=_listen, after_in_child=_ignore)


def died_lately() -> dict[int, str]:
    """Process id -> name of the signal: the newest 64 at the fork of this process."""
    return dict(_found)


def told(died: Mapping[int, str]) -> None:
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
    """Records a death. Must not raise: the daemon and all workers would end.

    Uses `os.write`, because the handler may interrupt itself.
    """
    name = signal.Signals(number).name
    _found[pid] = name
    for old in list(_found)[:-_KEPT]:
        _found.pop(old, None)
    if SILENT not in os.environ:
        with contextlib.suppress(OSError):
            os.write(_STDERR, f"barrier-runtime: Python worker {pid} died of {name}\n".encode())
