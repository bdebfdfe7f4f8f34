"""The rows of windows, kept until they are over: chunks of Arrow rows in the key-value store, so that memory holds a
bounded part of them.

A chunk is the value of (keys, start of the window, its number), an Arrow record batch without its schema, ordered as
the window's rows are to be. A column of the window's entry says of each chunk its first and last time and how many rows
it has, so a window is read in the order of time without holding all of it. A chunk takes in the one before it while
that has no more rows, so a window of n rows has about log2(n) small chunks, and each row is rewritten so often at most.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.grouping import order_of_ints
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import Corrupt

CHUNKS = "chunks"  # column of state, of the window's entry
CHUNK_BYTES = 1 << 18  # about, of what chunks become
_FIELDS = 3  # first time, last time, rows

Ints: TypeAlias = npt.NDArray[np.int64]


class WindowRows:
    """Rows of windows in the order of their time, those of one time as they came."""

    def __init__(
        self, backend: KeyedBackend, table: ColumnTable, schema: pa.Schema, event_time: str | None, where: str
    ) -> None:
        """`table`: of the windows, whose entries have a column `CHUNKS`. `event_time`: None for the order in which rows
        come."""
        self.schema = schema
        self._windows = table
        self._chunks = backend.table_of_bytes("rows", table.key_width)
        self._event_time = event_time
        self._where = where

    def add(self, rows: pa.RecordBatch, row_ids: Ints) -> None:
        """`row_ids`: the entry of the window of each row."""
        order = self._order(rows, row_ids)
        rows, row_ids = rows.take(pa.array(order)), row_ids[order]
        times = self._times(rows)
        firsts = np.flatnonzero(np.diff(row_ids, prepend=-1))
        ends = np.append(firsts[1:], len(row_ids))
        entries = row_ids[firsts]
        cells = self._windows.columns[CHUNKS]
        for row_id, key, first, end in zip(
            entries.tolist(), self._windows.keys_of(entries), firsts.tolist(), ends.tolist(), strict=True
        ):
            cells[row_id] = self._appended(key, cells[row_id], rows.slice(first, end - first), times[first:end])
        self._windows.mark_dirty(entries)

    def all_of(self, row_id: int) -> pa.Table:
        """The rows of a window, in order."""
        key = self._windows.keys_of(np.array([row_id]))[0]
        chunks = [self._read(key, number) for number in range(len(self._spans(row_id)))]
        return pa.Table.from_batches([self._merged(chunks)], self.schema)

    def batches_of(self, row_id: int) -> Iterator[pa.RecordBatch]:
        """The same in parts: memory holds those chunks alone whose times overlap."""
        key = self._windows.keys_of(np.array([row_id]))[0]
        spans = self._spans(row_id)
        coming = sorted(range(len(spans)), key=lambda number: (spans[number][0], number))
        opened: dict[int, pa.RecordBatch] = {}
        while coming or opened:
            if coming:
                number = coming.pop(0)
                opened[number] = self._read(key, number)
            before = spans[coming[0]][0] if coming else None  # of the rows that are not read yet
            parts = []
            for number in sorted(opened):
                rows = opened[number]
                at = len(rows) if before is None else int(np.searchsorted(self._times(rows), before))
                if at:
                    parts.append(rows.slice(0, at))
                if at == len(rows):
                    del opened[number]
                else:
                    opened[number] = rows.slice(at)
            if parts:
                yield self._merged(parts)

    def count_of(self, row_id: int) -> int:
        """How many rows a window has."""
        return sum(rows for _, _, rows in self._spans(row_id))

    def remove(self, row_ids: Ints) -> None:
        """The rows of these windows, whose entries are still there."""
        for row_id, key in zip(row_ids.tolist(), self._windows.keys_of(row_ids), strict=True):
            for number in range(len(self._spans(row_id))):
                self._chunks.delete((*key, number))

    # ---- for kinds of windows that keep rows in another order

    def _order(self, rows: pa.RecordBatch, row_ids: Ints) -> npt.NDArray[np.intp]:
        """The rows to keep, by entry and then as they are to be."""
        return order_of_ints([row_ids, self._times(rows)])

    def _merged(self, chunks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """`chunks`, the oldest first, as one."""
        if len(chunks) == 1:
            return chunks[0]
        rows = pa.concat_batches(chunks)
        times = self._times(rows)
        return rows.take(pa.array(np.argsort(times, kind="stable"))) if (np.diff(times) < 0).any() else rows

    def _takes_in(self, before: int, rows: pa.RecordBatch) -> bool:
        """Whether a chunk of `before` rows and these become one."""
        return before <= len(rows) and 2 * rows.nbytes <= CHUNK_BYTES

    # ---- inside

    def _times(self, rows: pa.RecordBatch) -> Ints:
        return (
            np.zeros(len(rows), np.int64) if self._event_time is None else event_times_ms(rows.column(self._event_time))
        )

    def _spans(self, row_id: int) -> list[list[int]]:
        cell = self._windows.columns[CHUNKS][row_id]
        spans: list[list[int]] = np.frombuffer(cell, "<i8").reshape(-1, _FIELDS).tolist()
        return spans

    def _appended(self, key: tuple[Any, ...], cell: bytes, rows: pa.RecordBatch, times: Ints) -> bytes:
        """What `CHUNKS` says with these rows, which are ordered."""
        spans = np.frombuffer(cell, "<i8").reshape(-1, _FIELDS)
        number = len(spans)
        first_ms, last_ms = int(times.min()), int(times.max())
        while number and self._takes_in(int(spans[number - 1, 2]), rows):
            number -= 1
            rows = self._merged([self._read(key, number), rows])
            first_ms, last_ms = min(first_ms, int(spans[number, 0])), max(last_ms, int(spans[number, 1]))
            self._chunks.delete((*key, number))
        self._chunks.put((*key, number), rows.serialize().to_pybytes())
        written = np.array([first_ms, last_ms, len(rows)], "<i8").tobytes()
        return cell[: number * _FIELDS * 8] + written

    def _read(self, key: tuple[Any, ...], number: int) -> pa.RecordBatch:
        data = self._chunks.get((*key, number))
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
        except (pa.ArrowInvalid, TypeError, OSError) as error:
            raise Corrupt(
                f"{self._where}: rows {number} of the window {key} cannot be read ({error}): restore from another "
                "checkpoint"
            ) from error
