"""Event-time timers of a keyed operator: one per key and timestamp, in state and in a heap, fired in timestamp order.

The state table is the truth (it is what a snapshot holds); the heap is only an index of it. A deleted timer stays in
the heap until its time and is skipped there.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from barrier_runtime.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.keyed_state import CurrentKey
from state.errors import InvalidJob

StateKey: TypeAlias = tuple[Any, ...]
TABLE = "@timers"  # no attribute of a class can have this name


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

    def __init__(self, table: TimerTable, current: CurrentKey, without_on_timer: str | None = None) -> None:
        """`without_on_timer`: the function that has no `on_timer`, so that a timer of it would never be heard."""
        self._deaf = without_on_timer
        self._table = table
        self._current = current
        self._heap: list[tuple[int, StateKey, StateKey]] = []  # (timestamp, sortable form of the key, state key)
        for entry, _ in table.scan():
            self._heap.append((entry[-1], _sortable(entry[:-1]), entry[:-1]))
        heapq.heapify(self._heap)

    def register(self, timestamp_ms: int) -> None:
        """Call `on_timer(key, timestamp_ms, ctx)` once the watermark has reached `timestamp_ms`. Twice is once.

        When all input has ended every timer fires; timers registered by those last calls do not.
        """
        if self._deaf is not None:
            raise InvalidJob(
                f"{self._deaf} registers a timer but nothing handles it: "
                "use a class with process() and on_timer(self, key, timestamp_ms, ctx)"
            )
        if type(timestamp_ms) is not int:
            timestamp_ms = _whole(timestamp_ms)
        if not WATERMARK_MIN <= timestamp_ms <= WATERMARK_MAX:
            raise InvalidJob(f"timer at {timestamp_ms} is out of range: use milliseconds since the epoch (64 bits)")
        key = self._current.key
        entry = (*key, timestamp_ms)
        if self._table.get(entry) is None:
            self._table.put(entry, True)
            heapq.heappush(self._heap, (timestamp_ms, _sortable(key), key))

    def delete(self, timestamp_ms: int) -> None:
        """Forget the current key's timer at `timestamp_ms`; it is no error if there is none."""
        entry = (*self._current.key, _whole(timestamp_ms))
        if self._table.get(entry) is not None:
            self._table.delete(entry)

    def due(self, watermark_ms: int) -> Iterator[tuple[StateKey, int]]:
        """Take the timers up to `watermark_ms`, earliest first, with those that are registered meanwhile."""
        if watermark_ms == WATERMARK_MAX:
            last, self._heap = sorted(self._heap), []
            for timestamp_ms, _, key in last:
                if self._take(key, timestamp_ms):
                    yield key, timestamp_ms
            for timestamp_ms, _, key in self._heap:
                self._take(key, timestamp_ms)
            self._heap = []
            return
        heap = self._heap
        while heap and heap[0][0] <= watermark_ms:
            timestamp_ms, _, key = heapq.heappop(heap)
            if self._take(key, timestamp_ms):
                yield key, timestamp_ms

    def _take(self, key: StateKey, timestamp_ms: int) -> bool:
        entry = (*key, timestamp_ms)
        if self._table.get(entry) is None:
            return False
        self._table.delete(entry)
        return True


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
