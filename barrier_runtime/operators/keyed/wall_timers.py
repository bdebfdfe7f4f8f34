"""Wall-clock timers, and wake-ups of a slot by that clock. Design: docs/design/timers.md."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.schemas import Duration, as_duration
from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.keyed.timers import Slice, StateKey, Timers, whole_ms
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.values.timer_table import TimerTable

_LOOK_MS = 1_000  # between two looks, since the wall clock may be set
_CATCHING_UP = 0.5  # ms per ms, while the wall clock is behind a time already returned


class WallClock:
    def __init__(self, wall_ms: Callable[[], int], steady_s: Callable[[], float], from_ms: int = WATERMARK_MIN) -> None:
        """`from_ms`: latest time returned before, also by an earlier process."""
        self._wall_ms = wall_ms
        self._steady_s = steady_s
        self._told_ms: float = max(wall_ms(), from_ms)
        self._told_s = steady_s()

    def now_ms(self) -> int:
        wall_ms, steady_s = self._wall_ms(), self._steady_s()
        if wall_ms >= self._told_ms:
            self._told_ms = wall_ms
        else:
            self._told_ms += max(0.0, steady_s - self._told_s) * 1_000 * _CATCHING_UP
        self._told_s = steady_s
        return int(self._told_ms)


class WakeUps:
    """Wake-ups of the slot, never cancelled: an early wake-up sets the next."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], None], wake: Callable[[], None]) -> None:
        self._call_later = call_later
        self._wake = wake
        self.next_ms = WATERMARK_MAX

    def wake_at(self, due_ms: int, now_ms: int) -> None:
        """Wakes the slot at `due_ms` or earlier. On the slot's loop."""
        wait_ms = min(_LOOK_MS, max(0, due_ms - now_ms))
        if now_ms + wait_ms < self.next_ms:
            self.next_ms = now_ms + wait_ms
            self._call_later(wait_ms / 1_000, partial(self._woken, self.next_ms))

    def _woken(self, wakes_ms: int) -> Any:
        if wakes_ms == self.next_ms:
            self.next_ms = WATERMARK_MAX
        self._wake()


WALL_TABLE = "@wall_timers"
_MOST_OVERDUE = 100_000
_MILLISECOND = timedelta(milliseconds=1)


class WallTimers(Timers):
    """`ctx.wall_timers`: register and delete wall-clock timers of the current key."""

    _said = "ctx.wall_timers"
    _what = "a wall-clock timer"
    _handler = "on_wall_timer(self, key, due_ms, ctx)"

    def __init__(
        self,
        table: TimerTable,
        current: CurrentKey,
        context: OperatorContext,
        without_handler: str | None = None,
        from_ms: int = WATERMARK_MIN,
    ) -> None:
        self._clock = WallClock(context.wall_ms, context.now_s)
        self._steady_s = context.now_s
        self._wake_ups = WakeUps(context.call_later, context.wake)
        self._may_wake = False  # from the first turn on: `open` runs off the loop
        super().__init__(table, current, without_handler, from_ms)
        self._opened_ms = self._clock.now_ms()
        self.crowded = False  # too many are overdue: rows wait until all have fired
        self.overdue = {} if without_handler else self._due_of_keys()  # by key: due before the restore and not fired

    @property
    def now_ms(self) -> int:
        """Wall clock (ms since 1970) that never goes back."""
        return self._clock.now_ms()

    def register(self, timestamp_ms: int | datetime) -> None:
        """Calls `on_wall_timer(key, timestamp_ms, ctx)` once the wall clock has reached `timestamp_ms`.

        `timestamp_ms`: ms since 1970, or a datetime (without a zone: in UTC). The call does not wait for rows.
        Registering twice has no further effect. Timers due while the job was down fire after the restore, before the
        next row of their key. Timers not due at the end of all input stay in the last checkpoint and do not fire.
        """
        super().register(timestamp_ms)

    def after(self, delay: Duration) -> int:
        """Registers a timer `delay` (a `timedelta`, or seconds) from now, at least 1 ms.
        Returns the due time, for `delete`."""
        duration = as_duration(delay, "delay of a wall-clock timer")
        due_ms = self._clock.now_ms() + max(1, math.ceil(duration / _MILLISECOND))
        self.register(due_ms)
        return due_ms

    def any_due(self) -> bool:
        """Returns whether a timer is due; else sets a wake-up for the next."""
        self._may_wake = True
        if not self._heap:
            return False
        now_ms = self._clock.now_ms()
        if self.next_ms <= now_ms:
            return True
        self._wake_ups.wake_at(self.next_ms, now_ms)
        return False

    def due_now(self) -> Iterator[tuple[StateKey, int]]:
        self._may_wake = False  # wake-ups are set once, at the end
        yield from self.due(self._clock.now_ms(), Slice(self._steady_s))
        self._may_wake = True
        self._look()
        if self.next_ms > self._opened_ms:
            self.overdue.clear()
            self.crowded = False

    def last_due(self) -> Iterator[tuple[StateKey, int]]:
        """Takes all due timers, earliest first, without those registered meanwhile."""
        self._postponed = []
        yield from self.due(self._clock.now_ms())
        postponed, self._postponed = self._postponed, None
        for entry in set(postponed):
            if (entry[0], entry[3]) in self._held:
                heapq.heappush(self._heap, entry)
        self._look()

    def overdue_of(self, keys: Iterable[StateKey]) -> Iterator[tuple[StateKey, int]]:
        """Takes the timers of these keys that were due before the restore, earliest first for each key."""
        for key in keys:
            for timestamp_ms in self.overdue.pop(key, ()):
                timer = (timestamp_ms, key)
                held = self._held.get(timer)
                if held:
                    self._kill(timer)
                    yield key, timestamp_ms
                elif held is None and self._table.get(timer) is not None:
                    self._table.delete(timer)
                    yield key, timestamp_ms

    def _due_of_keys(self) -> dict[StateKey, list[int]]:
        found: dict[StateKey, list[int]] = {}
        taken = []
        while self.next_ms <= self._opened_ms:
            entry = heapq.heappop(self._heap)
            if entry[2]:
                self._read(entry)
                continue
            taken.append(entry)
            if len(taken) > _MOST_OVERDUE:
                self.crowded, found = True, {}
                break
            found.setdefault(entry[3], []).append(entry[0])
            self._look()
        for entry in taken:
            heapq.heappush(self._heap, entry)
        self._look()
        return found

    def _look(self) -> None:
        super()._look()
        if self._may_wake and self.next_ms < self._wake_ups.next_ms:
            self._wake_ups.wake_at(self.next_ms, self._clock.now_ms())


class UndoableTimers(Timers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.found: dict[int, bool] = {}  # time -> whether a timer was set before the call

    def begin(self) -> None:
        if self.found:
            self.found = {}

    def put_back(self) -> None:
        found, self.found = self.found, {}
        ending, self._ending = self._ending, False
        for timestamp_ms, was_set in found.items():
            if was_set:
                super().register(timestamp_ms)
            else:
                super().delete(timestamp_ms)
        self._ending = ending

    def register(self, timestamp_ms: int | datetime) -> None:
        self._find(timestamp_ms)
        super().register(timestamp_ms)

    def delete(self, timestamp_ms: int | datetime) -> None:
        self._find(timestamp_ms)
        super().delete(timestamp_ms)

    def _find(self, timestamp_ms: int | datetime) -> None:
        timestamp_ms = whole_ms(timestamp_ms)
        if timestamp_ms not in self.found and WATERMARK_MIN <= timestamp_ms <= WATERMARK_MAX:
            self.found[timestamp_ms] = self.is_set(timestamp_ms)


class UndoableWallTimers(UndoableTimers, WallTimers):
    pass
