"""Clock of a slot, replaceable by virtual time, and operators' timers."""

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

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


# Operators' timers, and work that waits for a move.
#
# While a move is near or under way, databases merge no entries and begin no compaction: the move has the processor to
# itself, and less to fetch.

_Later: TypeAlias = Callable[[float, Callable[[], None]], Any]
_LOOK_S = 0.05
_NEAR_S = 10.0  # a longer preparation repeats the sign


class GenerationTimers:
    """`ends_before_move` may be called on any thread, everything else on the loop's.

    `later(delay_s, callback)` calls back once, unless the generation has ended. `hold(True)` prevents new compactions.
    """

    def __init__(self, later: _Later, now_s: Callable[[], float], hold: Callable[[bool], None]) -> None:
        self._later = later
        self._hold = hold
        self._held = False
        self._ended = False
        self._under_way: list[Callable[[], bool]] = []
        self._now_s = now_s
        self._paused = 0  # the checkpoint after which sources read nothing; 0: none
        self._near_until_s = 0.0

    @property
    def sources_stand(self) -> bool:
        return self._paused > 0

    def pause(self, checkpoint: int) -> None:
        self._paused = self._paused or checkpoint

    def aborted(self, checkpoint: int) -> None:
        if checkpoint >= self._paused:
            self._paused = 0

    def move_is_near(self) -> None:
        self._near_until_s = self._now_s() + _NEAR_S
        if not self._held and not self._ended:
            self._held = True
            self._hold(True)
            self._later(_LOOK_S, self._look)

    def ends_before_move(self, under_way: Callable[[], bool]) -> None:
        """Registers work: `at_rest` is False while `under_way()`."""
        self._under_way.append(under_way)

    @property
    def at_rest(self) -> bool:
        return self._ended or not any(each() for each in self._under_way)

    def end(self) -> None:
        self._ended = True
        self._release()

    def _look(self) -> None:
        if self._waits:
            self._later(_LOOK_S, self._look)
        else:
            self._release()

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._hold(False)

    @property
    def _waits(self) -> bool:
        return self.sources_stand or self._now_s() < self._near_until_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._later(delay_s, callback)

    def call_when_settled(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Waits until no move is near: merged entries would be uploaded during the move."""

        def call() -> None:
            if self._waits:
                self._later(_LOOK_S, call)
            else:
                callback()

        self._later(delay_s, call)
