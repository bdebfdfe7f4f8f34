"""Aggregates per key and event-time window: one entry per (keys, window start), results when the window is over.

A window is over when the watermark reaches its last millisecond; it is emitted then. Without an allowed lateness it is
removed at once, and rows of windows that are over are late. With one it is kept for that long, and each row that still
comes for it emits it again, so that how often does not depend on where batches end. Results of one watermark come
ordered by window and keys, so a replay gives the same rows in the same order.
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.operators.aggregation.accumulators import add_to_groups, running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.base import Ints, WindowOperator

_MAX_ASSIGNED = 262_144  # rows of a batch, each as often as it has windows: more are worked on in parts
_FIRINGS = "firings"  # column of state, with an allowed lateness: how often the window was emitted


class _ByStart:
    """Entries of some windows, by the start of the window."""

    def __init__(self) -> None:
        self._row_ids: dict[int, list[Ints]] = {}
        self._starts: list[int] = []  # heap of the keys of _row_ids

    @property
    def first(self) -> int | None:
        return self._starts[0] if self._starts else None

    def note(self, row_ids: Ints, starts: Ints) -> None:
        if not len(row_ids):
            return
        if (starts != starts[0]).any():
            order = np.argsort(starts, kind="stable")
            row_ids, starts = row_ids[order], starts[order]
        firsts = np.flatnonzero(np.diff(starts, prepend=starts[:1] - 1))
        for start, its_ids in zip(starts[firsts].tolist(), np.split(row_ids, firsts[1:]), strict=True):
            known = self._row_ids.get(start)
            if known is None:
                self._row_ids[start] = [its_ids]
                heapq.heappush(self._starts, start)
            else:
                known.append(its_ids)

    def take(self, before: int) -> Ints | None:
        """Those of windows that start before that; None when there are none."""
        taken: list[Ints] = []
        while self._starts and self._starts[0] < before:
            taken += self._row_ids.pop(heapq.heappop(self._starts))
        return np.concatenate(taken) if taken else None


class WindowAggregateOperator(WindowOperator):
    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner,
        event_time: str,
        aggregates: Mapping[str, AnyAggregate],
        schema: pa.Schema | None = None,
        late: bool = False,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(name, keys, window, event_time, aggregates, schema, late)
        self.definition = lateness_definition(window, lateness_ms)
        self._window = window
        self._lateness_ms = lateness_ms
        self._due = _ByStart()  # not emitted yet
        self._fired = _ByStart()  # and kept for late rows

    def bind(self, columns: pa.Schema) -> None:
        self._bind_table(columns, {_FIRINGS: ("int64", 0)} if self._lateness_ms else {}, bool(self._lateness_ms))
        row_ids = self._table.load_all()
        fired = self._table.columns[_FIRINGS][row_ids] > 0 if self._lateness_ms else np.zeros(len(row_ids), np.bool_)
        self._note(self._due, row_ids[~fired])
        self._note(self._fired, row_ids[fired])

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if len(batch) * self._window.per_row > _MAX_ASSIGNED and len(batch) > 1:
            half = len(batch) // 2
            self.process(batch.slice(0, half), emit)
            self.process(batch.slice(half), emit)
            return
        while (cut := self._process(batch, emit)) is not None:
            row, reached_ms = cut
            self._process(batch.slice(0, row), emit)
            self.on_watermark(reached_ms, emit)
            batch = batch.slice(row)

    def _process(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        """With an allowed lateness there may be windows to emit before a row, wherever batches end: then it gives the
        number of the row and event time at it, and does nothing."""
        times_ms = self._times_of(batch)
        if times_ms is None:
            return None
        assigned, starts = self._window.assign(times_ms)
        watermarks = self._row_watermarks(batch)
        first_open: int | Ints
        if watermarks is not None:
            watermarks = watermarks if assigned is None else watermarks[assigned]
            first_open = self._window.first_open_starts(watermarks)
        elif self._window.first_start(self._lowest_ms) < self._window.first_open_start(self._watermark_ms):
            first_open = self._window.first_open_start(self._watermark_ms)
        else:
            self._add(batch.rows if assigned is None else batch.rows.take(pa.array(assigned)), starts)
            return None
        over = starts < first_open
        if not self._lateness_ms:
            rows, starts, _ = self._without_late(batch, assigned, starts, over, emit)
            self._add(rows, starts)
            return None
        cut = self._first_due(batch, assigned, starts, over)
        if cut is None:
            first_kept = self._first_kept(self._watermark_ms) if watermarks is None else self._first_kepts(watermarks)
            rows, starts, kept = self._without_late(batch, assigned, starts, starts < first_kept, emit)
            again, of_row = over[kept], kept if assigned is None else assigned[kept]
            self._add(rows.take(pa.array(np.flatnonzero(~again))), starts[~again])
            if again.any():
                event_times = np.full(len(batch), self._watermark_ms) if batch.reached is None else batch.reached
                event_times = np.maximum(event_times, self._watermark_ms)[of_row[again]]
                self._fire_again(rows.take(pa.array(np.flatnonzero(again))), starts[again], event_times, emit)
        return cut

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms <= self._watermark_ms:
            return
        self._watermark_ms = watermark_ms
        due = self._due.take(self._window.first_open_start(watermark_ms))
        if due is not None:
            self._fire(due, emit)
        if self._lateness_ms:
            closed = self._fired.take(self._first_kept(watermark_ms))
            if closed is not None:
                self._table.remove(closed)

    def _first_kept(self, watermark_ms: int) -> int:
        """Windows that start before it are gone, and rows of them too late."""
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX
        return self._window.first_open_start(watermark_ms - self._lateness_ms)

    def _first_kepts(self, watermarks_ms: Ints) -> Ints:
        watermarks_ms = np.maximum(watermarks_ms, WATERMARK_MIN + self._lateness_ms)
        return self._window.first_open_starts(watermarks_ms - self._lateness_ms)

    def _first_due(
        self, batch: Batch, assigned: Ints | None, starts: Ints, over: npt.NDArray[np.bool_]
    ) -> tuple[int, int] | None:
        """The first row of a window that is over before which windows have to be emitted, and event time at it."""
        behind = np.flatnonzero(over)
        if not len(behind) or batch.reached is None:
            return None
        of_row = behind if assigned is None else assigned[behind]
        reached = np.maximum(batch.reached[of_row], self._watermark_ms)
        waiting = np.minimum.accumulate(np.where(over, WATERMARK_MAX, starts))[behind]
        if self._due.first is not None:
            waiting = np.minimum(waiting, self._due.first)
        due = np.flatnonzero(waiting < self._window.first_open_starts(reached))
        return (int(of_row[due[0]]), int(reached[due[0]])) if len(due) else None

    def _add(self, rows: pa.RecordBatch, starts: Ints) -> None:
        """Rows into windows that are not over."""
        if rows.num_rows:
            row_ids = self._row_ids(rows, starts)
            self._note(self._due, self._table.made)
            values = BatchValues(rows, self.where)
            add_to_groups(self._plan, self._table.columns, row_ids, values, self._bounds, self._left)
            self._table.mark_dirty(row_ids)

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        """The entry of each row."""
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._table.row_ids_int64(*ints, starts)
        groups = group_rows([*keys, pa.array(starts)])
        return self._table.row_ids(groups.keys)[groups.of_row]

    def _without_late(
        self, batch: Batch, assigned: Ints | None, starts: Ints, closed: npt.NDArray[np.bool_], emit: Emit
    ) -> tuple[pa.RecordBatch, Ints, Ints]:
        """The rows, each once per window of it that is not closed, the windows' starts, and which they are of all. A
        row is late when all of its windows are closed."""
        rows = batch.rows
        kept = np.flatnonzero(~closed)
        if assigned is None and len(kept) == len(starts):
            return rows, starts, kept
        of_row = kept if assigned is None else assigned[kept]
        late = np.ones(rows.num_rows, np.bool_)
        late[of_row] = False
        if late.any():
            self._give_late(batch, late, emit)
        return rows.take(pa.array(of_row)), starts[kept], kept

    def _note(self, windows: _ByStart, row_ids: Ints) -> None:
        """Entries that are new among `windows`."""
        if len(row_ids):
            ints = self._table.int_keys_of(row_ids)
            starts = ints[-1] if ints is not None else [key[-1] for key in self._table.keys_of(row_ids)]
            windows.note(row_ids, np.array(starts, np.int64))

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        row_ids, fields = self._ordered(row_ids)
        starts = np.array(fields[-1], np.int64)
        ends = starts + self._window.size_ms
        updates = np.zeros(len(row_ids), np.int64) if self._lateness_ms else None
        results = self._results(row_ids, fields, ends, self._accumulators(row_ids), updates)
        if self._lateness_ms:
            self._table.columns[_FIRINGS][row_ids] = 1
            self._table.mark_dirty(row_ids)
            self._fired.note(row_ids, starts)
        else:
            self._table.remove(row_ids)
        # Before a window's results event time has come to its last millisecond, wherever batches end.
        self._send(results, ends - 2, emit)

    def _fire_again(self, rows: pa.RecordBatch, starts: Ints, event_times: Ints, emit: Emit) -> None:
        """Rows of windows that are over: each emits its window as it is with it."""
        row_ids = self._row_ids(rows, starts)
        self._note(self._fired, self._table.made)
        columns = self._table.columns
        order = RunningOrder.of(row_ids)
        firings = columns[_FIRINGS]
        before = firings[order.row_ids]
        updates = np.empty_like(starts)
        updates[order.order] = np.arange(len(starts)) + np.repeat(before - order.starts, order.lengths)
        firings[order.row_ids] = before + order.lengths
        accumulators = running(self._plan, columns, order, BatchValues(rows, self.where), self._left)
        self._bounds.forget_all()
        self._table.mark_dirty(order.row_ids)
        ints = self._table.int_keys_of(row_ids)
        fields = list(ints) if ints is not None else list(zip(*self._table.keys_of(row_ids), strict=True))
        results = self._results(row_ids, fields, starts + self._window.size_ms, accumulators, updates)
        self._send(results, event_times, emit)
