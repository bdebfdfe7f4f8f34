"""The generator as a source of ours: scheduled rows of `benchmarks.events` with intended emission.

The source computes keys and values ahead of time, hundreds of rows at once, so that their cost, which is nanoseconds in
Java, is a small share of the measured time.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.pacing import Schedule
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from benchmarks import events

_AHEAD_ROWS = 4 * MOST_ROWS


class _Part(msgspec.Struct, frozen=True):
    """Split `index` of `of`: the rows index, index + of, …"""

    index: int
    of: int


class _Position(msgspec.Struct, frozen=True):
    row: int
    start_ns: int | None
    loaded: int


class PacedSource:
    """Endless; `rows_per_second` over all splits, and as many splits as subtasks.

    With `preload` this number of keys gets a row each at once, so that all state exists. Then the schedule begins, in
    each split by itself."""

    exactly_once = True
    schema = events.SCHEMA

    def __init__(self, rows_per_second: float, keys: int, preload: int = 0) -> None:
        self._rows_per_second = rows_per_second
        self._keys = keys
        self._preload = preload

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"{i}-of-{parallelism}", msgspec.json.encode(_Part(i, parallelism))) for i in range(parallelism)]

    def reader(self, split: Split) -> "PacedReader":
        part = msgspec.json.decode(split.payload, type=_Part)
        return PacedReader(part, self._rows_per_second, self._keys, self._preload)


class PacedReader:
    finished = False

    def __init__(self, part: _Part, rows_per_second: float, keys: int, preload: int) -> None:
        self._part = part
        self._keys = keys
        self._period_ns = 1e9 * part.of / rows_per_second
        self._schedule = Schedule(rows_per_second / part.of)
        self._row = 0
        self._preload = range(part.index, preload, part.of)
        self._loaded = 0
        self._ahead: list[list[int]] = [[]]  # columns of the rows from `_ahead_from` on
        self._ahead_from = 0

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self._loaded < len(self._preload):
            return self._load(max_rows, now_ns)
        start_ns = self._schedule.begin(now_ns, self._row)
        count = min(max_rows, self._schedule.due_rows(self._row, now_ns))
        if count <= 0:
            return None
        emit_ns = self._schedule.due_ns(self._row)
        if count <= MOST_ROWS:
            return Polled(self._few(count, start_ns), emit_ns)
        rows = events.events(*self._numbered(count, start_ns), self._keys)
        self._row += count
        return Polled(rows, emit_ns)

    def _few(self, count: int, start_ns: int) -> FewRows:
        """The same rows as lists."""
        begin = self._row - self._ahead_from
        if begin + count > len(self._ahead[0]):
            made = events.columns(*self._numbered(_AHEAD_ROWS, start_ns), self._keys)
            self._ahead, self._ahead_from, begin = [column.tolist() for column in made], self._row, 0
        self._row += count
        return FewRows.made_of(events.SCHEMA, [column[begin : begin + count] for column in self._ahead])

    def _numbered(self, count: int, start_ns: int) -> tuple[events.Ints, events.Ints]:
        """Numbers of the next `count` rows, and when each is due."""
        numbers = np.arange(self._row, self._row + count)
        emitted_ns = start_ns + (numbers * self._period_ns).astype(np.int64)
        return numbers * self._part.of + self._part.index, emitted_ns

    def _load(self, max_rows: int, now_ns: int) -> Polled:
        keys = np.array(self._preload[self._loaded : self._loaded + max_rows], np.int64)
        self._loaded += len(keys)
        columns = [keys, np.zeros_like(keys), np.full_like(keys, now_ns // 1_000_000), np.full_like(keys, now_ns)]
        return Polled(
            pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=events.SCHEMA), now_ns
        )

    def next_due_ns(self) -> int | None:
        return self._schedule.next_due_ns(self._row)

    def position(self) -> bytes:
        return msgspec.json.encode(_Position(self._row, self._schedule.start_ns, self._loaded))

    def seek(self, position: bytes) -> None:
        found = msgspec.json.decode(position, type=_Position)
        self._row, self._schedule.start_ns, self._loaded = found.row, found.start_ns, found.loaded
        self._ahead, self._ahead_from = [[]], self._row

    def close(self) -> None:
        """Does nothing: nothing is open."""
