"""For how long this thread was ready to run and got no processor. Linux tells it; elsewhere it is 0."""

import contextlib
import os
import threading

_FILE = "/proc/thread-self/schedstat"  # nanoseconds on a processor, nanoseconds waiting for one, times on one
_BYTES = 128


class _File:
    """Of the thread that makes it. Kept open: opening it costs ten times what reading does."""

    def __init__(self) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):  # no Linux, or one that was built without it
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
    """What was open before a fork tells of the parent's thread."""
    global _of
    _of = _OfThread()


os.register_at_fork(after_in_child=_forget)


def starved_s() -> float:
    """Seconds since the thread began. Costs about 2 microseconds: not for each batch."""
    return _of.file.waited_ns() / 1e9
