"""Timers of a keyed operator: one per key and timestamp, in state and in a heap, fired in timestamp order. Those of
event time are here; those of the wall clock (`wall_timers`) are the same ones with another clock.

The state table is the truth (it is what a snapshot holds); the heap is only an index of it. A deleted timer stays in
the heap and is listed as deleted, until the deleted ones are half of the heap: then it is made anew without them. So
the heap is at most twice as long as the table, and a deletion takes constant time on average.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.errors import InvalidJob

StateKey: TypeAlias = tuple[Any, ...]
Entry: TypeAlias = tuple[int, StateKey, StateKey]  # timestamp, sortable form of the key, state key

TABLE = "@timers"  # no attribute of a class can have this name
_FEW_DELETED = 64  # not worth making the heap anew


class TimerTable(Protocol):
    def get(self, key: StateKey) -> Any: ...
    def put(self, key: StateKey, value: Any) -> None: ...
    def delete(self, key: StateKey) -> None: ...
    def scan(self) -> Iterator[tuple[StateKey, Any]]: ...


def encode_timer(value: Any) -> bytes:
    """A timer is its key; there is nothing to store."""
    return b"\x01"


def decode_timer(data: bytes) -> Any:
    return True


class Timers:
    """`ctx.timers`: register and delete timers of the current key."""

    _what = "a timer"
    _handler = "on_timer(self, key, timestamp_ms, ctx)"

    def __init__(self, table: TimerTable, current: CurrentKey, without_handler: str | None = None) -> None:
        """`without_handler`: the function that has none, so that a timer of it would never be heard."""
        self._deaf = without_handler
        self._table = table
        self._current = current
        self._heap: list[Entry] = []
        self._deleted: set[StateKey] = set()  # keys of the table whose timers are in the heap, but not in the table
        for entry, _ in table.scan():
            self._heap.append((entry[-1], _sortable(entry[:-1]), entry[:-1]))
        heapq.heapify(self._heap)
        self._look()

    def register(self, timestamp_ms: int) -> None:
        """Call `on_timer(key, timestamp_ms, ctx)` once the watermark has reached `timestamp_ms`, before the next row
        that comes then; right after this row if it has already. Twice is once.

        When all input has ended every timer fires; timers registered by those last calls do not.
        """
        self._register(timestamp_ms)

    def _register(self, timestamp_ms: int) -> None:
        if self._deaf is not None:
            raise InvalidJob(
                f"{self._deaf} registers {self._what} but nothing handles it: "
                f"use a class with process() and {self._handler}"
            )
        if type(timestamp_ms) is not int:
            timestamp_ms = _whole(timestamp_ms)
        if not WATERMARK_MIN <= timestamp_ms <= WATERMARK_MAX:
            raise InvalidJob(f"timer at {timestamp_ms} is out of range: use milliseconds since the epoch (64 bits)")
        key = self._current.key
        entry = (*key, timestamp_ms)
        if self._table.get(entry) is None:
            self._table.put(entry, True)
            if entry in self._deleted:
                self._deleted.remove(entry)
            else:
                heapq.heappush(self._heap, (timestamp_ms, _sortable(key), key))
                self._look()

    def delete(self, timestamp_ms: int) -> None:
        """Forget the current key's timer at `timestamp_ms`; it is not an error if there is none."""
        self._remove((*self._current.key, _whole(timestamp_ms)))

    def of_key(self) -> list[int]:
        """When the current key's timers are due, the earliest first. Looks through those of all keys."""
        key = self._current.key
        return sorted(entry[0] for entry in self._heap if entry[2] == key and (*key, entry[0]) not in self._deleted)

    def __len__(self) -> int:
        """Entries of the heap."""
        return len(self._heap)

    def due(self, watermark_ms: int) -> Iterator[tuple[StateKey, int]]:
        """Take the timers up to `watermark_ms`, earliest first, with those that are registered meanwhile."""
        if watermark_ms == WATERMARK_MAX:
            self._drop_deleted()
            last, self._heap = sorted(self._heap), []
            self._look()
            for timestamp_ms, _, key in last:
                if self._take(key, timestamp_ms):
                    yield key, timestamp_ms
            for timestamp_ms, _, key in self._heap:
                self._take(key, timestamp_ms)
            self._heap, self._deleted = [], set()
            self._look()
            return
        while self.next_ms <= watermark_ms:
            timestamp_ms, _, key = self._pop()
            if self._take(key, timestamp_ms):
                yield key, timestamp_ms

    def _pop(self) -> Entry:
        first = heapq.heappop(self._heap)
        self._look()
        return first

    def _remove(self, entry: StateKey) -> bool:
        """From the table; it stays in the heap. Whether it was there."""
        if self._table.get(entry) is None:
            return False
        self._table.delete(entry)
        self._deleted.add(entry)
        if len(self._deleted) > max(_FEW_DELETED, len(self._heap) // 2):
            self._drop_deleted()
        return True

    def _take(self, key: StateKey, timestamp_ms: int) -> bool:
        entry = (*key, timestamp_ms)
        if entry in self._deleted:
            self._deleted.remove(entry)
            return False
        if self._table.get(entry) is None:
            return False
        self._table.delete(entry)
        return True

    def _drop_deleted(self) -> None:
        deleted = self._deleted
        self._heap = [each for each in self._heap if (*each[2], each[0]) not in deleted]
        self._deleted = set()
        heapq.heapify(self._heap)
        self._look()

    def _look(self) -> None:
        """The heap has changed. `next_ms` is asked for each row: no timer is due before."""
        self.next_ms = self._heap[0][0] if self._heap else WATERMARK_MAX + 1


def _whole(timestamp_ms: Any) -> int:
    try:
        whole = int(timestamp_ms)
    except (TypeError, ValueError):
        whole = None
    if whole is None or whole != timestamp_ms:
        raise InvalidJob(f"timer at {timestamp_ms!r}: use whole milliseconds since the epoch (int)")
    return whole


def _sortable(key: StateKey) -> StateKey:
    """Keys of one operator compare field by field, once None is made smaller than everything."""
    if len(key) == 1:
        return (key[0] is not None, key[0])
    return tuple((field is not None, field) for field in key)
