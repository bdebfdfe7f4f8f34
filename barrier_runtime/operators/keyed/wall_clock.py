"""The wall clock as operators see it, and how they have their slot woken at a time of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN

_LOOK_MS = 1_000  # at least so often while something is to be due: the wall clock may have been set
_CATCHING_UP = 0.5  # ms per ms, while the wall clock is behind what was told already


class WallClock:
    """The wall clock, which never goes back. Where the machine's was set back, time goes on at half the pace of a
    steady clock until the machine's has caught up: so timers go on firing, and it is right again after twice the jump.
    """

    def __init__(self, wall_ms: Callable[[], int], steady_s: Callable[[], float], from_ms: int = WATERMARK_MIN) -> None:
        """`from_ms`: what was told before, as by the process that the state is of."""
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._told_ms: float = max(wall_ms(), from_ms)
        self._told_s = steady_s()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms, steady_s = self._wall_ms(), self._steady_s()
        if wall_ms >= self._told_ms:
            self._told_ms = wall_ms
        else:
            self._told_ms += max(0.0, steady_s - self._told_s) * 1_000 * _CATCHING_UP
        self._told_s = steady_s
        return int(self._told_ms)


class WakeUps:
    """Wake-ups of the slot. None is cancelled: one that comes too early finds nothing to do, and asks for the next one.
    There are at most as many as milliseconds until the next look."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self._call_later = call_later
        self._wake = wake
        self.next_ms = WATERMARK_MAX  # the earliest wake-up that is set

    def wake_at(self, due_ms: int, now_ms: int) -> None:
        """Something is due at `due_ms`, by a `WallClock` that says `now_ms`. To be called on the slot's loop."""
        wait_ms = min(_LOOK_MS, max(0, due_ms - now_ms))
        if now_ms + wait_ms < self.next_ms:
            self.next_ms = now_ms + wait_ms
            self._call_later(wait_ms / 1_000, partial(self._woken, self.next_ms))

    def _woken(self, wakes_ms: int) -> Any:
        if wakes_ms == self.next_ms:
            self.next_ms = WATERMARK_MAX
        self._wake()
