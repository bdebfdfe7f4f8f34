"""Rows of windows, kept until the windows are over; memory holds a bounded part of them.

A window's last rows are the *tail*: bytes in a column of the window's entry, up to `TAIL_BYTES`. A larger tail becomes
a *chunk* in the key-value store: an Arrow record batch without schema, in the order of the window's rows, under (keys,
start of the window, number of the chunk). A column of the entry has first time, last time and row count of each chunk,
so that a reader in the order of time needs only chunks that overlap. A new chunk absorbs a small predecessor with at
most as many rows: a window of n rows has about log2(n) small chunks. Older releases wrote only chunks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.grouping import order_of_ints
from barrier_runtime.data.row_bytes import RowBytes
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.wide_columns import EMPTY, lengths
from barrier_runtime.state.errors import Corrupt

HELD_ROWS = "rows"
CHUNKS = "chunks"
TAIL = "tail"
TAIL_BYTES = 1 << 10
CHUNK_BYTES = 1 << 18
_FIELDS = 3

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class WindowRows:
    """Rows of windows in order of time, then of arrival."""

    def __init__(
        self, backend: KeyedBackend, table: ColumnTable, schema: pa.Schema, event_time: str | None, where: str
    ) -> None:
        self.schema = schema
        self._windows = table
        self._chunks = backend.table_of_bytes(HELD_ROWS, table.key_width)
        self._event_time = event_time
        self._where = where
        self._bytes = RowBytes(schema)

    def add(self, rows: pa.RecordBatch, row_ids: Ints) -> None:
        rows, row_ids = self._kept(rows, row_ids)
        firsts = np.flatnonzero(np.diff(row_ids, prepend=-1))
        counts = np.diff(firsts, append=len(row_ids))
        entries = row_ids[firsts]
        small = (counts * self._bytes.least_bytes <= TAIL_BYTES) & self._may_grow_tails(entries)
        if small.any():
            few = rows if small.all() else rows.filter(pa.array(np.repeat(small, counts)))
            small[small] = self._behind_tails(entries[small], few, counts[small])
        if not small.all():
            self._add_chunks(rows, entries[~small], firsts[~small], counts[~small])
        self._windows.mark_dirty(entries)

    def are_small(self, row_ids: Ints) -> Bools:
        """Returns which windows have all rows in memory."""
        small: Bools = lengths(self._windows.columns[CHUNKS][row_ids]) == 0
        return small

    def of_small(self, row_ids: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Returns the rows of small windows, window by window, and the number of rows of each window."""
        rows, counts = self._tails(row_ids)
        order = order_of_ints([np.repeat(np.arange(len(counts)), counts), self._times(rows)])
        return rows.take(pa.array(order)) if (np.diff(order) < 0).any() else rows, counts

    def all_of(self, row_id: int) -> pa.Table:
        key = self._windows.keys_of(np.array([row_id]))[0]
        chunks = [self._read(key, number) for number in range(len(self._spans(row_id)))]
        tail = self._tail(row_id)
        return pa.Table.from_batches([self._merged([*chunks, tail] if len(tail) else chunks)], self.schema)

    def batches_of(self, row_id: int) -> Iterator[pa.RecordBatch]:
        """Yields a window's rows in parts."""
        key = self._windows.keys_of(np.array([row_id]))[0]
        spans, tail = self._spans(row_id), self._tail(row_id)
        chunks = len(spans)
        if len(tail):
            spans.append([int(self._times(tail)[0]), 0, len(tail)])
        coming = sorted(range(len(spans)), key=lambda number: (spans[number][0], number))
        opened: dict[int, pa.RecordBatch] = {}
        while coming or opened:
            if coming:
                number = coming.pop(0)
                opened[number] = self._read(key, number) if number < chunks else tail
            before = spans[coming[0]][0] if coming else None
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
        return sum(rows for _, _, rows in self._spans(row_id)) + len(self._tail(row_id))

    def remove(self, row_ids: Ints) -> None:
        row_ids = row_ids[~self.are_small(row_ids)]
        for row_id, key in zip(row_ids.tolist(), self._windows.keys_of(row_ids), strict=True):
            for number in range(len(self._spans(row_id))):
                self._chunks.delete((*key, number))

    # ---- for kinds of windows that keep rows in another order

    def _order(self, rows: pa.RecordBatch, row_ids: Ints) -> npt.NDArray[np.intp]:
        """Returns the rows to keep, by entry and in their final order."""
        return order_of_ints([row_ids, self._times(rows)])

    def _kept(self, rows: pa.RecordBatch, row_ids: Ints) -> tuple[pa.RecordBatch, Ints]:
        order = self._order(rows, row_ids)
        return rows.take(pa.array(order)), row_ids[order]

    def _may_grow_tails(self, entries: Ints) -> Bools:
        return np.ones(len(entries), np.bool_)

    def _merged(self, chunks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        rows = pa.concat_batches(chunks) if len(chunks) > 1 else chunks[0]
        times = self._times(rows)
        return rows.take(pa.array(np.argsort(times, kind="stable"))) if (np.diff(times) < 0).any() else rows

    def _takes_in(self, before: int, rows: pa.RecordBatch) -> bool:
        return before <= len(rows) and 2 * rows.nbytes <= CHUNK_BYTES

    def _behind_tails(self, entries: Ints, rows: pa.RecordBatch, counts: Ints) -> Bools:
        """Appends rows to tails that have room; returns which have. `counts`: rows of each entry."""
        starts, data = self._bytes.encode(rows)
        at = starts[np.concatenate([[0], np.cumsum(counts)])]
        tails = self._windows.columns[TAIL]
        fit: Bools = lengths(tails[entries]) + np.diff(at) <= TAIL_BYTES
        chosen = np.flatnonzero(fit)
        for entry, first, end in zip(
            entries[chosen].tolist(), at[chosen].tolist(), at[chosen + 1].tolist(), strict=True
        ):
            tails[entry] += data[first:end]
        return fit

    def _add_chunks(self, rows: pa.RecordBatch, entries: Ints, firsts: Ints, counts: Ints) -> None:
        cells, tails = self._windows.columns[CHUNKS], self._windows.columns[TAIL]
        before, lying = self._tails(entries)
        tails[entries] = EMPTY
        for entry, key, first, count, end, older in zip(
            entries.tolist(),
            self._windows.keys_of(entries),
            firsts.tolist(),
            counts.tolist(),
            np.cumsum(lying).tolist(),
            lying.tolist(),
            strict=True,
        ):
            its = rows.slice(first, count)
            if older:
                its = self._merged([before.slice(end - older, older), its])
            cells[entry] = self._appended(key, cells[entry], its, self._times(its))

    def _tails(self, row_ids: Ints) -> tuple[pa.RecordBatch, Ints]:
        try:
            return self._bytes.decode(self._windows.columns[TAIL][row_ids].tolist())
        except (ValueError, OSError) as error:
            raise Corrupt(
                f"{self._where}: rows of windows cannot be read ({error}): restore from another checkpoint"
            ) from error

    def _tail(self, row_id: int) -> pa.RecordBatch:
        return self._merged([self._tails(np.array([row_id]))[0]])

    def _times(self, rows: pa.RecordBatch) -> Ints:
        return (
            np.zeros(len(rows), np.int64) if self._event_time is None else event_times_ms(rows.column(self._event_time))
        )

    def _spans(self, row_id: int) -> list[list[int]]:
        cell = self._windows.columns[CHUNKS][row_id]
        spans: list[list[int]] = np.frombuffer(cell, "<i8").reshape(-1, _FIELDS).tolist()
        return spans

    def _appended(self, key: tuple[Any, ...], cell: bytes, rows: pa.RecordBatch, times: Ints) -> bytes:
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
