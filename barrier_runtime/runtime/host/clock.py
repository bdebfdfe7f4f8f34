"""Clock of a slot, replaceable by virtual time."""

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import Protocol

from barrier_runtime.state.libc import libc

_CLOCK_MONOTONIC = 1
_SPECIFICATION = struct.Struct("@qqqq")  # itimerspec: interval (s, ns), first expiry (s, ns)
_LEAST_NS = 1_000  # zero would switch the timer off


class Timer(Protocol):
    """Calls back on the loop `delay_s` after the last `set`; may ring once more if set again."""

    def set(self, delay_s: float) -> None: ...
    def close(self) -> None: ...


class LoopTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        self.close()
        self._timer = self._loop.call_later(delay_s, self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FileTimer:
    """Timer of Linux, precise to fractions of a millisecond.

    Raises `OSError` if there is none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._libc = libc()
        if not hasattr(self._libc, "timerfd_create"):
            raise OSError("this system has no timerfd")
        self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._file, self._rang)

    def set(self, delay_s: float) -> None:
        seconds, nanoseconds = divmod(max(_LEAST_NS, int(delay_s * 1e9)), 1_000_000_000)
        if self._libc.timerfd_settime(self._file, 0, _SPECIFICATION.pack(0, 0, seconds, nanoseconds), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rang(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # set again after the loop noticed the ring
            return
        self._ring()


def best_timer(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Timer:
    try:
        return FileTimer(loop, ring)
    except OSError:
        return LoopTimer(loop, ring)


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...

    def timer(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Timer: ...


class SourceTime:
    """Wall-clock time that ignores changes of the clock after the start."""

    def __init__(self, clock: Clock) -> None:
        self._steady_s = clock.monotonic_s
        self._offset_ns = clock.wall_ns() - int(clock.monotonic_s() * 1e9)

    def now_ns(self) -> int:
        return self._offset_ns + int(self._steady_s() * 1e9)


class SystemClock:
    wall_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.perf_counter)
    timer = staticmethod(best_timer)


SYSTEM_CLOCK: Clock = SystemClock()
