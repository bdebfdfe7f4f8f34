"""Aggregates per key and event-time window: one entry per (keys, window start), results when the window is over.

A window is over when the watermark reaches its last millisecond; it is emitted then, once, and removed. Rows of
windows that are over are late: dropped and counted as `late_rows`. Results of one watermark come ordered by window
and keys, so a replay gives the same rows in the same order.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.operators.aggregation.accumulators import add_to_groups
from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.base import Ints, WindowOperator

_MAX_ASSIGNED = 262_144  # rows of a batch, each as often as it has windows: more are worked on in parts


class WindowAggregateOperator(WindowOperator):
    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner,
        event_time: str,
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(name, keys, window, event_time, aggregates, schema, late)
        self._window = window
        self._open_windows: dict[int, list[Ints]] = {}  # window start -> row ids
        self._starts: list[int] = []  # heap of the keys of _open_windows

    def bind(self, columns: pa.Schema) -> None:
        self._bind_table(columns, {})
        self._note_windows(self._table.load_all())

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if len(batch) * self._window.per_row > _MAX_ASSIGNED and len(batch) > 1:
            half = len(batch) // 2
            self.process(batch.slice(0, half), emit)
            self.process(batch.slice(half), emit)
            return
        times_ms = self._times_of(batch)
        if times_ms is None:
            return
        rows = batch.rows
        assigned, starts = self._window.assign(times_ms)
        watermarks = self._row_watermarks(batch)
        first_open: int | Ints
        if watermarks is not None:
            first_open = self._window.first_open_starts(watermarks)
            first_open = first_open if assigned is None else first_open[assigned]
            rows, starts = self._without_late(batch, assigned, starts, first_open, emit)
        elif self._window.first_start(int(times_ms.min())) < self._window.first_open_start(self._watermark_ms):
            first_open = self._window.first_open_start(self._watermark_ms)
            rows, starts = self._without_late(batch, assigned, starts, first_open, emit)
        elif assigned is not None:
            rows = rows.take(pa.array(assigned))
        if not rows.num_rows:
            return
        row_ids = self._row_ids(rows, starts)
        self._note_windows(self._table.made)
        values = BatchValues(rows, self.where)
        add_to_groups(self._plan, self._table.columns, row_ids, values, self._bounds, self._left)
        self._table.mark_dirty(row_ids)

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms <= self._watermark_ms:
            return
        self._watermark_ms = watermark_ms
        due: list[Ints] = []
        while self._starts and self._window.last_ms(self._starts[0]) <= watermark_ms:
            due += self._open_windows.pop(heapq.heappop(self._starts))
        if due:
            self._fire(np.concatenate(due), emit)

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        """The entry of each row."""
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._table.row_ids_int64(*ints, starts)
        groups = group_rows([*keys, pa.array(starts)])
        return self._table.row_ids(groups.keys)[groups.of_row]

    def _without_late(
        self, batch: Batch, assigned: Ints | None, starts: Ints, first_open: int | Ints, emit: Emit
    ) -> tuple[pa.RecordBatch, Ints]:
        """The rows, each once per window of it that is not over. A row is late when all of its windows are over."""
        rows = batch.rows
        kept = np.flatnonzero(starts >= first_open)
        if assigned is None and len(kept) == len(starts):
            return rows, starts
        of_row = kept if assigned is None else assigned[kept]
        late = np.ones(rows.num_rows, np.bool_)
        late[of_row] = False
        if late.any():
            self._give_late(batch, late, emit)
        return rows.take(pa.array(of_row)), starts[kept]

    def _note_windows(self, row_ids: Ints) -> None:
        """New entries: which windows they belong to."""
        if not len(row_ids):
            return
        ints = self._table.int_keys_of(row_ids)
        starts = ints[-1] if ints is not None else np.array([key[-1] for key in self._table.keys_of(row_ids)], np.int64)
        if (starts != starts[0]).any():
            order = np.argsort(starts, kind="stable")
            row_ids, starts = row_ids[order], starts[order]
        firsts = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
        for start, its_ids in zip(starts[firsts].tolist(), np.split(row_ids, firsts[1:]), strict=True):
            known = self._open_windows.get(start)
            if known is None:
                self._open_windows[start] = [its_ids]
                heapq.heappush(self._starts, start)
            else:
                known.append(its_ids)

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        row_ids, fields = self._ordered(row_ids)
        ends = np.array(fields[-1], np.int64) + self._window.size_ms
        results = self._results(row_ids, fields, ends, self._accumulators(row_ids))
        self._table.remove(row_ids)
        # Before a window's results event time has come to its last millisecond, wherever batches end.
        self._send(results, ends - 2, emit)
