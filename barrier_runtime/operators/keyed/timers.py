"""Timers of a keyed operator: set, deleted, and fired in the order of their times and keys.

*Marks*, and timers behind all marks (*far*): docs/design/timers.md.
"""

import bisect
import heapq
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

import numpy as np

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.timer_table import TimerTable, position_of

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)

StateKey: TypeAlias = tuple[Any, ...]
# Timer: time, its sortable key, 0, key. Mark after a timer (or, with (), before all timers of its time): time, that
# timer's sortable key, 1, first and last key group, position.
Entry: TypeAlias = tuple[Any, ...]

TABLE = "@timers"  # no name of a class attribute
_FEW_DEAD = 64  # to rebuild the heap
_HELD = 8_192  # least number of stored timers in memory, after a trim too
_HELD_OF_GROUP = 4
_OUTSIDE_SHARE = 8  # a search holds the first eighth of waiting timers outside
_NEVER = WATERMARK_MAX + 1
SLICE_S = 0.002
_SLICE_TIMERS = 1_000  # ends a turn even if the clock stands still


class Slice:
    __slots__ = ("_left", "_now_s", "_until_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s = now_s() + SLICE_S
        self._left = _SLICE_TIMERS

    def is_over(self) -> bool:
        self._left -= 1
        return self._left < 0 or self._now_s() >= self._until_s


class Timers:
    """`ctx.timers`: register and delete timers of the current key."""

    _said = "ctx.timers"
    _what = "a timer"
    _handler = "on_timer(self, key, timestamp_ms, ctx)"

    def __init__(
        self,
        table: TimerTable,
        current: CurrentKey,
        without_handler: str | None = None,
        from_ms: int = WATERMARK_MIN,
        held: int | None = None,
    ) -> None:
        """`without_handler`: name of a function without a timer handler; `register` raises.
        `from_ms`: no timer of the table is earlier. `held`: approximate number of timers in memory."""
        self._deaf = without_handler
        self._table = table
        self._put, self._times, self._keys, self._listed = table.put, table.times, table.keys, table.spilled_at_once
        self._current = current
        first, last = table.key_groups
        self._fewest = max(_HELD if held is None else held, _HELD_OF_GROUP * (last - first + 1))
        self._read_at_once = max(1, self._fewest // (last - first + 1))
        # for a read of each key group and a mark, or trims could repeat for ever
        self._room = max(self._fewest, (self._read_at_once + 1) * (last - first + 1))
        self._most = self._fewest + self._room
        self.next_ms = _NEVER  # no timer is due before
        self._heap: list[Entry] = []
        self._held: dict[tuple[int, StateKey], bool] = {}  # timers in the heap; False: dead
        self._dead = 0
        self._marks = 0
        self._covered = 0  # key groups that have a mark
        self._groups = last - first + 1
        self._marked_ms = WATERMARK_MIN  # timers from this time on are behind all marks
        self._far_ms = _NEVER  # the same while each key group has a mark
        self._outside_ms = _NEVER  # no waiting timer outside is earlier
        self._fired_ms = WATERMARK_MIN
        self._ending = False  # last timers fire; `register` does nothing
        self._postponed: list[Entry] | None = None  # set meanwhile, and not to fire yet
        if table.stored:
            self._mark(from_ms, (), first, last, position_of(from_ms))
            self._far_ms = self._marked_ms
            for timer in table.waiting():
                self._hold(*timer)
        self._look()

    def register(self, timestamp_ms: int | datetime) -> None:
        """Calls `on_timer(key, timestamp_ms, ctx)` once the watermark has reached `timestamp_ms`.

        `timestamp_ms`: ms since 1970, or a datetime (without a zone: in UTC; finer digits are rounded down). The call
        comes before the next row; if the watermark is already there, after the current row. Registering twice has no
        further effect. At the end of all input every timer fires; those last calls cannot register timers.
        """
        if self._deaf is not None:
            raise InvalidJob(
                f"{self._deaf} registers {self._what} but nothing handles it: "
                f"use a class with process() and {self._handler}"
            )
        if type(timestamp_ms) is not int:
            timestamp_ms = whole_ms(timestamp_ms)
        if not WATERMARK_MIN <= timestamp_ms <= WATERMARK_MAX:
            raise InvalidJob(f"timer at {timestamp_ms} is out of range: use milliseconds since the epoch (64 bits)")
        key = self._current.key
        if timestamp_ms >= self._far_ms and not (self._dead or self._ending or self._postponed is not None):
            times = self._times
            times.append(timestamp_ms)
            self._keys.append(key)
            if timestamp_ms < self._outside_ms:
                self._outside_ms = timestamp_ms
            if len(times) >= self._listed:
                self._table.write_listed()
            return
        timer = (timestamp_ms, key)
        held = self._held.get(timer)
        if held or self._ending:
            return
        self._put(timer, True)
        if timestamp_ms >= self._far_ms and held is None and self._postponed is None:
            if timestamp_ms < self._outside_ms:
                self._outside_ms = timestamp_ms
            return
        self._held[timer] = True
        if held is False:
            self._dead -= 1
        elif self._postponed is not None:
            self._postponed.append((timestamp_ms, _sortable(key), 0, key))
        else:
            heap = self._heap
            heapq.heappush(heap, (timestamp_ms, _sortable(key), 0, key))
            if timestamp_ms < self.next_ms:
                self._look()
            if len(heap) > self._most:
                self._trim()

    def delete(self, timestamp_ms: int | datetime) -> None:
        """Deletes the current key's timer at `timestamp_ms`, if there is one."""
        timer = (whole_ms(timestamp_ms), self._current.key)
        held = self._held.get(timer)
        if held:
            self._kill(timer)
        elif held is None and self._marks and WATERMARK_MIN <= timer[0] <= WATERMARK_MAX:
            self._table.delete(timer)

    def is_set(self, timestamp_ms: int) -> bool:
        timer = (timestamp_ms, self._current.key)
        held = self._held.get(timer)
        return bool(self._marks and self._table.get(timer) is not None) if held is None else held

    def of_key(self) -> list[int]:
        """Returns the times of the current key's timers, ascending."""
        return self._table.of_key(self._current.key, self.lowest_ms)

    @property
    def lowest_ms(self) -> int:
        postponed: list[int] = [entry[0] for entry in self._postponed or ()]
        return min(self.next_ms, WATERMARK_MAX, *postponed)

    def __len__(self) -> int:
        return len(self._heap)

    def due(self, watermark_ms: int, time_slice: Slice | None = None) -> Iterator[tuple[StateKey, int]]:
        """Takes the timers up to `watermark_ms`, earliest first, including those registered meanwhile.
        Stops when the slice is over; the caller repeats the call while `next_ms` is not above `watermark_ms`."""
        self._ending = watermark_ms == WATERMARK_MAX
        while self.next_ms <= watermark_ms:
            if time_slice is not None and time_slice.is_over():
                return
            entry = heapq.heappop(self._heap)
            if entry[2]:
                self._read(entry)
                continue
            self._look()
            timer = (entry[0], entry[3])
            if self._held.pop(timer):
                self._table.delete(timer)
                if entry[0] > self._fired_ms:
                    self._fired_ms = entry[0]
                yield entry[3], entry[0]
            else:
                self._dead -= 1
        self._ending = False

    def _kill(self, timer: tuple[int, StateKey]) -> None:
        self._table.delete(timer)
        self._held[timer] = False
        self._dead += 1
        if self._dead > max(_FEW_DEAD, len(self._heap) // 2):
            self._bury()

    def _hold(self, timestamp_ms: int, key: StateKey) -> None:
        if (timestamp_ms, key) not in self._held:
            self._held[timestamp_ms, key] = True
            heapq.heappush(self._heap, (timestamp_ms, _sortable(key), 0, key))

    def _read(self, mark: Entry) -> None:
        mark_ms, after, _, first, last, position = mark
        found, behind, following = self._table.behind(position, first, last, self._read_at_once)
        self._marks -= 1
        self._covered -= last - first + 1
        for timer in found:
            if not self._table.is_deleted(timer):
                self._hold(*timer)
        if behind:
            last_ms, last_key = found[-1]  # of the first key group; the others stay as they are
            self._mark(last_ms, _sortable(last_key), first, first, behind)
        if following <= last:
            self._mark(mark_ms, after, following, last, position)
        read_ms = last_ms if behind else WATERMARK_MAX
        if self._outside_ms <= read_ms:
            self._hold_outside(read_ms)
        self._far_ms = self._marked_ms if self._covered == self._groups else _NEVER
        self._look()
        if len(self._heap) > self._most:
            self._trim()

    def _hold_outside(self, until_ms: int) -> None:
        """Holds waiting timers up to `until_ms`, and some later timers."""
        held = self._held
        waiting = [timer for timer in self._table.waiting() if timer not in held]
        waiting.sort(key=_time_of)
        if waiting:
            until_ms = max(until_ms, waiting[len(waiting) // _OUTSIDE_SHARE][0])
        end = bisect.bisect_right(waiting, until_ms, key=_time_of)
        for timer in waiting[:end]:
            self._hold(*timer)
        self._outside_ms = waiting[end][0] if end < len(waiting) else _NEVER

    def _mark(self, from_ms: int, after: StateKey, first: int, last: int, position: bytes) -> None:
        heapq.heappush(self._heap, (from_ms, after, 1, first, last, position))
        self._marks += 1
        self._covered += last - first + 1
        # other timers of its time may come before the mark
        self._marked_ms = max(self._marked_ms, from_ms + bool(after))

    def _bury(self) -> None:
        held = self._held
        self._heap = [entry for entry in self._heap if entry[2] or held[entry[0], entry[3]]]
        heapq.heapify(self._heap)
        self._held = {timer: True for timer, alive in held.items() if alive}
        self._dead = 0
        self._look()

    def _trim(self) -> None:
        """Drops stored timers far from due, not waiting timers, which a scan would not find."""
        if self._dead:
            self._bury()
        times = np.fromiter((entry[0] for entry in self._heap), np.int64, len(self._heap))
        if len(times) > self._fewest:
            cut_ms = int(np.partition(times, self._fewest)[self._fewest])
            if cut_ms > self._fired_ms:
                self._drop_from(cut_ms)
            elif cut_ms < WATERMARK_MAX:  # a scan from this time would start with fired timers
                self._drop_from(cut_ms + 1)
        self._most = len(self._heap) + max(self._room, len(self._heap))

    def _drop_from(self, cut_ms: int) -> None:
        is_unwritten = self._table.is_unwritten
        kept, marks, dropped = [], [], []
        for entry in self._heap:
            if entry[2]:
                marks.append(entry)
            elif entry[0] < cut_ms or is_unwritten((entry[0], entry[3])):
                kept.append(entry)
            else:
                dropped.append((entry[0], entry[3]))
        if not dropped:
            return
        for timer in dropped:
            del self._held[timer]
        staying = [mark for mark in marks if mark[0] < cut_ms]
        first, end = self._table.key_groups
        position = position_of(cut_ms)
        for mark in sorted(staying, key=lambda each: each[3]):
            if first < mark[3]:
                staying.append((cut_ms, (), 1, first, mark[3] - 1, position))
            first = mark[4] + 1
        if first <= end:
            staying.append((cut_ms, (), 1, first, end, position))
        self._marks, self._covered = len(staying), self._groups
        self._marked_ms = self._far_ms = max(mark[0] + bool(mark[1]) for mark in staying)
        self._heap = kept + staying
        heapq.heapify(self._heap)
        self._look()

    def _look(self) -> None:
        self.next_ms = self._heap[0][0] if self._heap else _NEVER


def whole_ms(timestamp_ms: Any) -> int:
    """Converts to milliseconds since 1970, rounded down. A datetime without a zone is in UTC."""
    if isinstance(timestamp_ms, datetime):
        moment = timestamp_ms if timestamp_ms.tzinfo is not None else timestamp_ms.replace(tzinfo=timezone.utc)
        return (moment - _EPOCH) // _MILLISECOND
    try:
        whole = None if isinstance(timestamp_ms, bool) else int(timestamp_ms)
    except (TypeError, ValueError, OverflowError):
        whole = None
    if whole is None or whole != timestamp_ms:
        raise InvalidJob(f"timer at {timestamp_ms!r}: use whole milliseconds since the epoch (int), or a datetime")
    return whole


def _time_of(timer: tuple[int, StateKey]) -> int:
    return timer[0]


def _sortable(key: StateKey) -> StateKey:
    """Makes keys comparable field by field, None first."""
    if len(key) == 1:
        return (key[0] is not None, key[0])
    return tuple((field is not None, field) for field in key)
