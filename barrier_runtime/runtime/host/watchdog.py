"""Watchdog thread that ends an orphaned Python worker, and starved times of threads.

The loop never touches the pipe to the JVM, so it would not notice the loss of the executor. A thread starves while
ready to run without a processor: measured on Linux, 0 elsewhere.
"""

import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

ORPHANED = 77  # exit status


def inherited_sockets() -> list[int]:
    """Connected stream sockets of this process. Call before opening any."""
    found = []
    directory = Path("/proc/self/fd")
    if not directory.is_dir():
        return []
    for entry in directory.iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            fd = int(entry.name)
            with socket.socket(fileno=os.dup(fd)) as probe:
                probe.getpeername()
            found.append(fd)
        except OSError:
            continue
    return found


class Watchdog:
    """Exits the process if orphaned, or if the coordinator has been silent for more than `lease_s`.

    `clean_up` removes local files and must not raise.
    """

    def __init__(
        self,
        sockets: list[int],
        silent_s: Callable[[], float],
        lease_s: float,
        clean_up: Callable[[], None],
        period_s: float = 0.5,
    ) -> None:
        self._parent = os.getppid()
        self._sockets = sockets
        self._silent_s = silent_s
        self._lease_s = lease_s
        self._clean_up = clean_up
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="barrier-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def reason_to_leave(self) -> str | None:
        if os.getppid() != self._parent:
            return "the process that started this worker is gone"
        if self._sockets:
            poll = select.poll()
            for fd in self._sockets:
                poll.register(fd, select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL)
            if poll.poll(0):
                return "the executor closed its connection to this worker"
        silent = self._silent_s()
        if silent > self._lease_s:
            return f"the coordinator has been silent for {silent:.0f} s (lease {self._lease_s:.0f} s)"
        return None

    def _watch(self) -> None:
        while not self._stop.wait(self._period_s):
            reason = self.reason_to_leave()
            if reason is not None:
                with contextlib.suppress(OSError, ValueError):
                    print(f"barrier-runtime: worker {os.getpid()} leaves: {reason}", file=sys.stderr, flush=True)
                self._clean_up()
                os._exit(ORPHANED)


_FILE = "/proc/thread-self/schedstat"  # ns on a processor, ns waiting for a processor, time slices
_BYTES = 128


class _File:
    """Statistics of the creating thread. Stays open: opening costs ten reads."""

    def __init__(self) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(_FILE, os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        if self._descriptor < 0:
            return 0
        try:
            return int(os.pread(self._descriptor, _BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.file = _File()


_of = _OfThread()


def _forget() -> None:
    """Drops files opened before a fork: they belong to the parent's thread."""
    global _of
    _of = _OfThread()


os.register_at_fork(after_in_child=_forget)


def starved_s() -> float:
    """Seconds that this thread was starved. A call costs about 2 microseconds: not for each batch."""
    return _of.file.waited_ns() / 1e9
