"""The clock of a slot: wall-clock and steady time, passed in so that the slot can also run in virtual time.

What must also run in virtual time asks a `Clock` and never the `time` module; the simulation gives each process a
clock of its own.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from barrier_runtime.runtime.host.timer import Timer, best_timer


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an unknown moment; never goes back."""
        ...

    def timer(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> Timer: ...


class SourceTime:
    """The time that sources live by: the wall clock's when this was made, and what a steady clock counted since. A wall
    clock that is set moves neither schedules nor silences."""

    def __init__(self, clock: Clock) -> None:
        self._steady_s = clock.monotonic_s
        self._offset_ns = clock.wall_ns() - int(clock.monotonic_s() * 1e9)

    def now_ns(self) -> int:
        return self._offset_ns + int(self._steady_s() * 1e9)


class SystemClock:
    """This machine's. The steady clock is the one with the best resolution."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.perf_counter)
    timer = staticmethod(best_timer)


SYSTEM_CLOCK: Clock = SystemClock()
