"""Clock and timer of a job's runner."""

import asyncio
import time
from collections.abc import Callable


class SteadyClock:
    """Wall-clock milliseconds that never jump: a reading of the wall clock, then monotonic time."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> int:
        return int((self._offset + time.monotonic()) * 1000)


class DeadlineTimer:
    """Calls `ring` on the running loop, at the earliest set time or before."""

    def __init__(self, clock: Callable[[], int], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int) -> None:
        if self._timer is not None:
            if self._at_ms <= at_ms:
                return
            self._timer.cancel()
        self._at_ms = at_ms
        delay_s = max(0.0, (at_ms - self._clock()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(delay_s + 0.0005, self._rings)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._ring()
