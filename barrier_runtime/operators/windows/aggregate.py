"""Aggregates per key and event-time window: one entry per (keys, window start), results when the window is over.

A window is over when the watermark reaches its last millisecond; it is emitted then. Without an allowed lateness it is
removed at once, and rows of windows that are over are late. With one it is kept for that long, and each row that still
comes for it emits it again, so that how often does not depend on where batches end. Results of one watermark come
ordered by window and keys, so a replay gives the same rows in the same order.

When the entries outgrow their memory, some leave it for the key-value store (`ColumnTable`), and come back one by one
when a row is theirs. What is due is then asked for by the start of the window: what is in memory comes first, ordered
as ever, then what is not, by key group and key.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.operators.aggregation.accumulators import add_to_groups, running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed.timers import SLICE_S
from barrier_runtime.operators.windows import base
from barrier_runtime.operators.windows.assigners import WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.base import Ints, WindowOperator, told_of_windows
from barrier_runtime.operators.windows.by_start import ByStart
from barrier_runtime.operators.windows.firing import FEW
from barrier_runtime.state.keys.key_groups import key_groups_of_int64

_MAX_ASSIGNED = 262_144  # rows of a batch, each as often as it has windows: more are worked on in parts
_ROWS_ON_DISK = 128  # of a slice, once not all windows are in memory
FIRINGS = "firings"  # column of state, of windows that may be emitted more than once: how often they were


class WindowAggregateOperator(WindowOperator):
    _evictable = True  # nothing knows entries by their row ids between two batches, but what can do without
    _any_order = True  # of the rows of different keys in a batch

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner,
        event_time: str | None,
        aggregates: Mapping[str, AnyAggregate],
        schema: pa.Schema | None = None,
        late: bool = False,
        lateness_ms: int = 0,
    ) -> None:
        super().__init__(name, keys, window, event_time, aggregates, schema, late)
        self.definition = lateness_definition(window, lateness_ms)
        self._window = window
        self._lateness_ms = lateness_ms
        self._beside = told_of_windows(window.bounded, lateness_ms > 0)
        self._due = ByStart()  # not emitted yet
        self._fired = ByStart()  # and kept for late rows
        self._by_group: Batch | None = None  # what was given back in the order of key groups
        self._loaded = 0  # of `ColumnTable.loaded`, which `_bounds` knows of

    def bind(self, columns: pa.Schema) -> None:
        self._bind_table(columns, self._more_state(), self._beside, evictable=self._evictable)
        if self._evictable and not self._table.is_whole:
            self._find_starts()
            return
        row_ids = self._table.load_all()
        over = self._were_over(row_ids)
        self._note(self._due, row_ids[~over])
        self._note(self._fired, row_ids[over])

    def _find_starts(self) -> None:
        """Restored with entries that are not in memory: which windows there are."""
        self._due.forget_row_ids()
        self._fired.forget_row_ids()
        if self._going_to_ms is not None:
            # Some may be over and not emitted yet, and with a lateness others emitted; these are passed over then.
            starts = self._table.lasts(WATERMARK_MIN)
            self._due.note_starts(starts)
        else:
            starts = self._table.lasts(max(WATERMARK_MIN, self._first_kept(self._watermark_ms)))
            self._due.note_starts(starts[starts >= self._window.first_open_start(self._watermark_ms)])
        if self._lateness_ms:
            self._fired.note_starts(starts)

    def _more_state(self) -> dict[str, tuple[str, Any]]:
        """Columns of state besides those of the aggregates."""
        return {FIRINGS: ("int64", 0)} if self._lateness_ms else {}

    def _were_over(self, row_ids: Ints) -> npt.NDArray[np.bool_]:
        """Of restored entries: those that were emitted when they were over, and kept."""
        return self._table.columns[FIRINGS][row_ids] > 0 if self._lateness_ms else np.zeros(len(row_ids), np.bool_)

    @property
    def _per_row(self) -> int:
        """Entries that a row is added to, at most."""
        return self._window.per_row

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if self.stops and len(batch) > _ROWS_ON_DISK and self._bound is not None and not self._table.is_in_memory:
            self._process_slices(batch, emit)
        else:
            self._process_parts(batch, emit)

    def _process_parts(self, batch: Batch, emit: Emit) -> None:
        if len(batch) * self._per_row > _MAX_ASSIGNED and len(batch) > 1:
            half = len(batch) // 2
            self._process_parts(batch.slice(0, half), emit)
            if self._rest is not None:
                self._rest = batch.slice(half - len(self._rest))
            else:
                self._process_parts(batch.slice(half), emit)
            return
        self._arrive(emit)
        while (cut := self._process(batch, emit)) is not None:
            row, reached_ms = cut
            self._process(batch.slice(0, row), emit)
            if not self._first_goes(batch, row, reached_ms, emit):
                return
            batch = batch.slice(row)

    def _process_slices(self, batch: Batch, emit: Emit) -> None:
        """Windows of these rows may be in the store, which takes some 30 us for each: after a slice of them the rest is
        given back."""
        if batch is not self._by_group:
            batch = self._ordered_by_group(batch)
        until_s = self.context.now_s() + SLICE_S
        for steps, first in enumerate(range(0, len(batch), _ROWS_ON_DISK), 1):
            part = batch.slice(first, _ROWS_ON_DISK)
            self._process_parts(part, emit)
            done = first + len(part)
            if self._rest is not None:
                done -= len(self._rest)
            elif steps < base.SLICE_STEPS and self.context.now_s() < until_s:
                continue
            self._rest = self._by_group = batch.slice(done) if done < len(batch) else None
            return

    def _ordered_by_group(self, batch: Batch) -> Batch:
        """The rows of a slice lie together in the store: of few key groups, a slice has the same few parts of files to
        look into. Where results do not depend on the order of rows of several keys."""
        if not self._any_order or self._lateness_ms or batch.reached is not None:
            return batch
        keys = self.codec.int64(self.codec.arrays(batch.rows))
        if keys is None:
            return batch
        groups = key_groups_of_int64(keys[0], self.context.max_parallelism, *keys[1:])
        return Batch(batch.rows.take(pa.array(np.argsort(groups, kind="stable"))), batch.emit_ns)

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
            rows = batch.rows if assigned is None else batch.rows.take(pa.array(assigned))
            self._add(rows, starts, batch, assigned, emit)
            return None
        over = starts < first_open
        if not self._lateness_ms:
            rows, starts, kept = self._without_late(batch, assigned, starts, over, emit)
            self._add(rows, starts, batch, kept if assigned is None else assigned[kept], emit)
            return None
        cut = self._first_due(batch, assigned, starts, over)
        if cut is None:
            first_kept = self._first_kept(self._watermark_ms) if watermarks is None else self._first_kepts(watermarks)
            rows, starts, kept = self._without_late(batch, assigned, starts, starts < first_kept, emit)
            again, of_row = over[kept], kept if assigned is None else assigned[kept]
            in_time = np.flatnonzero(~again)
            self._add(rows.take(pa.array(in_time)), starts[in_time], batch, of_row[in_time], emit)
            if again.any():
                event_times = self._event_times(batch, of_row[again])
                self._fire_again(rows.take(pa.array(np.flatnonzero(again))), starts[again], event_times, emit)
        return cut

    def _reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        self._watermark_ms = watermark_ms
        yield from self._fire_over(watermark_ms, emit)
        if self._lateness_ms and not self._fired.has_row_ids:
            yield from self._close(self._first_kept(watermark_ms))
        elif self._lateness_ms:
            closed = self._fired.take(self._first_kept(watermark_ms))
            for row_ids in () if closed is None else np.split(closed, range(FEW, len(closed), FEW)):
                self._remove(row_ids)
                yield

    def _close(self, before: int) -> Iterator[None]:
        """Remove the windows that start before that, of which not all entries are in memory."""
        for start in self._fired.take_starts(before):
            for row_ids in self._table.entries_of(start):
                for first in range(0, len(row_ids), FEW):
                    self._remove(row_ids[first : first + FEW])
                    yield
            self._table.none_of(start)

    def _fire_over(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if not self._due.has_row_ids:
            yield from self._fire_starts(self._due.take_starts(self._window.first_open_start(watermark_ms)), emit)
            return
        due = self._due.take(self._window.first_open_start(watermark_ms))
        if due is not None:
            yield from self._fire_parts(due, emit)

    def _fire_starts(self, starts: Iterable[int], emit: Emit, by_floors: bool = False) -> Iterator[None]:
        """The windows that start then, of which not all entries are in memory. `by_floors`: only those that are over
        by the event time of their key group."""
        for start in starts:
            for row_ids in self._table.entries_of(start):
                row_ids = row_ids[~self._were_over(row_ids)]
                if by_floors:
                    row_ids = row_ids[start < self._window.first_open_starts(self._floors_of(row_ids))]
                yield from self._fire_parts(row_ids, emit)
                yield
            if not self._lateness_ms and not by_floors:
                self._table.none_of(start)

    def _fire_parts(self, row_ids: Ints, emit: Emit) -> Iterator[None]:
        for part in self._parts(row_ids):
            if part is not None:
                self._fire(part, emit)
            yield

    def _reach_floors(self, emit: Emit) -> Iterator[None]:
        if not self._due.has_row_ids:
            open_starts = list(self._due.take_starts(WATERMARK_MAX))
            self._due.note_starts(np.array(open_starts, np.int64))
            yield from self._fire_starts(open_starts, emit, by_floors=True)
            return
        due = self._due.take(WATERMARK_MAX)
        if due is None:
            return
        starts = np.array(self._fields_of(due)[-1], np.int64)
        over = starts < self._window.first_open_starts(self._floors_of(due))
        self._due.note(due[~over], starts[~over])
        yield from self._fire_parts(due[over], emit)

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

    def _event_times(self, batch: Batch, of_row: Ints | None) -> Ints:
        """Event time at these rows of a batch (None: at all)."""
        if batch.reached is None:
            return np.full(len(batch) if of_row is None else len(of_row), self._watermark_ms)
        event_times = np.maximum(batch.reached, self._watermark_ms)
        return event_times if of_row is None else event_times[of_row]

    def _remove(self, row_ids: Ints) -> None:
        self._table.remove(row_ids)

    def _add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> Ints:
        """Rows into windows that are not over; gives the entry of each. `of_row`: which rows of `batch` they are; None:
        all, in order."""
        if not rows.num_rows:
            return starts
        row_ids = self._row_ids(rows, starts)
        self._note(self._due, self._table.made)
        values = BatchValues(rows, self.where)
        add_to_groups(self._plan, self._table.columns, row_ids, values, self._bounds, self._left)
        self._table.mark_dirty(row_ids)
        return row_ids

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        """The entry of each row."""
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            row_ids = self._table.row_ids_int64(*ints, starts)
        else:
            groups = group_rows([*keys, pa.array(starts)])
            row_ids = self._table.row_ids(groups.keys)[groups.of_row]
        if not self._table.is_whole:
            self._due.forget_row_ids()
            self._fired.forget_row_ids()
            if self._loaded != self._table.loaded:
                self._loaded = self._table.loaded
                self._bounds.forget_all()
        return row_ids

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

    def _note(self, windows: ByStart, row_ids: Ints) -> None:
        """Entries that are new among `windows`."""
        if len(row_ids):
            ints = self._table.int_keys_of(row_ids)
            starts = ints[-1] if ints is not None else [key[-1] for key in self._table.keys_of(row_ids)]
            windows.note(row_ids, np.array(starts, np.int64))

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        fields = self._fields_of(row_ids)
        starts = np.array(fields[-1], np.int64)
        ends = starts + self._window.size_ms
        firings = self._table.columns.get(FIRINGS)
        updates = None if firings is None else firings[row_ids]
        results = self._results(row_ids, fields, ends, self._accumulators(row_ids), updates)
        if self._lateness_ms:
            self._went_out(row_ids)
            self._keep_over(row_ids)
            self._fired.note(row_ids, starts)
        else:
            self._remove(row_ids)
        # Before a window's results event time has come to its last millisecond, wherever batches end.
        self._send(results, ends - 2, emit)

    def _went_out(self, row_ids: Ints) -> None:
        """A result of these entries, which stay."""
        self._table.columns[FIRINGS][row_ids] += 1
        self._table.mark_dirty(row_ids)

    def _keep_over(self, row_ids: Ints) -> None:
        """Entries of windows that are over, and kept for late rows."""

    def _entries_of_over(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        row_ids = self._row_ids(rows, starts)
        if len(self._table.made):
            self._note(self._fired, self._table.made)
            self._keep_over(self._table.made)
        return row_ids

    def _next_updates(self, order: RunningOrder) -> Ints:
        """Each row is an update of its entry: which, in the order of the rows."""
        firings = self._table.columns[FIRINGS]
        before = firings[order.row_ids]
        updates = np.empty(len(order.order), np.int64)
        updates[order.order] = np.arange(len(updates)) + np.repeat(before - order.starts, order.lengths)
        firings[order.row_ids] = before + order.lengths
        self._table.mark_dirty(order.row_ids)
        return updates

    def _fire_again(self, rows: pa.RecordBatch, starts: Ints, event_times: Ints, emit: Emit) -> None:
        """Rows of windows that are over: each emits its window as it is with it."""
        row_ids = self._entries_of_over(rows, starts)
        order = RunningOrder.of(row_ids)
        updates = self._next_updates(order)
        accumulators = running(self._plan, self._table.columns, order, BatchValues(rows, self.where), self._left)
        self._bounds.forget_all()
        ends = starts + self._window.size_ms
        results = self._results(row_ids, self._fields_of(row_ids), ends, accumulators, updates)
        self._send(results, event_times, emit)
