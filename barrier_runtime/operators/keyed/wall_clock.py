"""The wall clock as operators see it, and wake-ups of their slot at a wall-clock time."""

from collections.abc import Callable
from functools import partial
from typing import Any

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN

_LOOK_MS = 1_000  # longest time between two looks while work is scheduled, since the wall clock may be set
_CATCHING_UP = 0.5  # ms per ms, while the wall clock is behind a time already returned


class WallClock:
    """The wall clock, without steps back.
    If the machine's clock was set back, time advances at half the pace of a steady clock until both agree."""

    def __init__(self, wall_ms: Callable[[], int], steady_s: Callable[[], float], from_ms: int = WATERMARK_MIN) -> None:
        """`from_ms`: latest time returned before, for example by the process that wrote the state."""
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._told_ms: float = max(wall_ms(), from_ms)
        self._told_s = steady_s()

    def now_ms(self) -> int:
        """Returns milliseconds since 1970."""
        wall_ms, steady_s = self._wall_ms(), self._steady_s()
        if wall_ms >= self._told_ms:
            self._told_ms = wall_ms
        else:
            self._told_ms += max(0.0, steady_s - self._told_s) * 1_000 * _CATCHING_UP
        self._told_s = steady_s
        return int(self._told_ms)


class WakeUps:
    """Wake-ups of the slot. None is cancelled: an early wake-up finds no work, and sets the next.
    There are at most as many wake-ups as milliseconds until the next look."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self._call_later = call_later
        self._wake = wake
        self.next_ms = WATERMARK_MAX  # the earliest wake-up that is set

    def wake_at(self, due_ms: int, now_ms: int) -> None:
        """Sets a wake-up for work due at `due_ms`, by a `WallClock` at `now_ms`. Call on the slot's loop."""
        wait_ms = min(_LOOK_MS, max(0, due_ms - now_ms))
        if now_ms + wait_ms < self.next_ms:
            self.next_ms = now_ms + wait_ms
            self._call_later(wait_ms / 1_000, partial(self._woken, self.next_ms))

    def _woken(self, wakes_ms: int) -> Any:
        if wakes_ms == self.next_ms:
            self.next_ms = WATERMARK_MAX
        self._wake()
