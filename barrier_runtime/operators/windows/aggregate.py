"""Entries keyed by (keys, window start), which emit results when the window is over.

With an allowed lateness the emitted window is kept for that long, and each late row emits the window again. For
replays, results of a watermark are ordered by window and keys: first of entries in memory, then of evicted entries.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.operators.aggregation.accumulators import add_to_groups, running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.partial_schema import is_partial
from barrier_runtime.operators.aggregation.partials import merge_partial_rows
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed.timers import SLICE_S
from barrier_runtime.operators.windows import operator as operator_module
from barrier_runtime.operators.windows.assigners import KnownWindows
from barrier_runtime.operators.windows.entries import Ints, WindowEntries
from barrier_runtime.operators.windows.firing import FEW, FIRINGS, ByStart, told_of_windows
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.rules.on_close import OnClose
from barrier_runtime.state.keys.key_groups import key_groups_of_int64

_MAX_ASSIGNED = 262_144  # (row, window) pairs of a batch
_ROWS_ON_DISK = 128  # rows of a step if some windows are evicted


class Windows(WindowEntries):
    evictable = True  # row ids are kept across batches only where they are dispensable

    def __init__(self, operator: WindowOperator) -> None:
        window, trigger = operator.window, operator.trigger
        assert isinstance(window, KnownWindows)
        early = trigger is not None and trigger.tells_early
        super().__init__(operator, told_of_windows(window.bounded, operator.lateness_ms > 0, early))
        self.window = window
        self.due = ByStart()  # windows not yet emitted; `kept`: emitted windows
        self.kept = ByStart()
        self._by_group: Batch | None = None  # rest of a batch in the order of key groups
        self._loaded = 0  # `ColumnTable.loaded` that `bounds` accounts for
        self.held: list[tuple[pa.RecordBatch, Ints]] | None = None  # results that wait, and the row that brings each
        self._rule = OnClose(self) if trigger is None else trigger.rule(self)
        self.evictable = self._rule.evictable

    def _restored(self) -> None:
        if self.evictable and not self.table.is_whole:
            self._find_starts()
        else:
            row_ids = self.table.load_all()
            over = self._were_over(row_ids)
            self.note(self.due, row_ids[~over])
            self.note(self.kept, row_ids[over])
        self._rule.restored()

    def _find_starts(self) -> None:
        self.due.forget_row_ids()
        self.kept.forget_row_ids()
        if self.operator.going_to_ms is not None:
            starts = self.table.lasts(WATERMARK_MIN)
            self.due.note_starts(starts)
        else:
            watermark_ms = self.operator.watermark_ms
            starts = self.table.lasts(max(WATERMARK_MIN, self._first_kept(watermark_ms)))
            self.due.note_starts(starts[starts >= self.window.first_open_start(watermark_ms)])
        if self._lateness_ms:
            self.kept.note_starts(starts)

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return self._rule.columns()

    def _were_over(self, row_ids: Ints) -> npt.NDArray[np.bool_]:
        return self._rule.were_over(row_ids) if self._lateness_ms else np.zeros(len(row_ids), np.bool_)

    @property
    def next_ms(self) -> int | None:
        first = self.due.first
        return None if first is None else self.window.last_ms(first)

    def tell_early(self, emit: Emit) -> bool:
        return self._rule.turn(emit)

    @property
    def _per_row(self) -> int:
        return self.window.per_row

    def process(self, batch: Batch, emit: Emit) -> None:
        if self._rule.cuts_batches:
            self._process_in_cuts(batch, emit, self._rule.cut, self._process_all)
        else:
            self._process_all(batch, emit)

    def _process_all(self, batch: Batch, emit: Emit) -> None:
        operator = self.operator
        if operator.stops and len(batch) > _ROWS_ON_DISK and operator.is_bound and not self.table.is_in_memory:
            self._process_slices(batch, emit)
        else:
            self._process_parts(batch, emit)

    def _process_parts(self, batch: Batch, emit: Emit) -> None:
        if len(batch) * self._per_row > _MAX_ASSIGNED and len(batch) > 1:
            half = len(batch) // 2
            self._process_parts(batch.slice(0, half), emit)
            if self.operator.rest is not None:
                self.operator.rest = batch.slice(half - len(self.operator.rest))
            else:
                self._process_parts(batch.slice(half), emit)
            return
        self.operator.arrive(emit)
        while (cut := self._rule.take(batch, emit)) is not None:
            row, reached_ms = cut
            self._rule.take(batch.slice(0, row), emit)
            if not self.operator.first_goes(batch, row, reached_ms, emit):
                return
            batch = batch.slice(row)

    def _process_slices(self, batch: Batch, emit: Emit) -> None:
        """Takes some rows per turn, since each may load a window; the rest is `operator.rest`."""
        if batch is not self._by_group:
            batch = self._ordered_by_group(batch)
        until_s = self.operator.context.now_s() + SLICE_S
        for steps, first in enumerate(range(0, len(batch), _ROWS_ON_DISK), 1):
            part = batch.slice(first, _ROWS_ON_DISK)
            self._process_parts(part, emit)
            done = first + len(part)
            if self.operator.rest is not None:
                done -= len(self.operator.rest)
            elif steps < operator_module.SLICE_STEPS and self.operator.context.now_s() < until_s:
                continue
            self.operator.rest = self._by_group = batch.slice(done) if done < len(batch) else None
            return

    def _ordered_by_group(self, batch: Batch) -> Batch:
        """Orders rows by key group if results allow, for reads of few parts of files."""
        if not self._rule.any_order or self._lateness_ms or batch.reached is not None:
            return batch
        keys = self.codec.int64(self.codec.arrays(batch.rows))
        if keys is None:
            return batch
        groups = key_groups_of_int64(keys[0], self.operator.context.max_parallelism, *keys[1:])
        return Batch(batch.rows.take(pa.array(np.argsort(groups, kind="stable"))), batch.emit_ns)

    def take(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        """Adds a batch's rows to their windows.
        If windows are due before a row: returns the row's number and its event time, and does nothing."""
        operator = self.operator
        times_ms = operator.times_of(batch)
        if times_ms is None:
            return None
        assigned, starts = self.window.assign(times_ms)
        watermarks = operator.row_watermarks(batch)
        first_open: int | Ints
        if watermarks is not None:
            watermarks = watermarks if assigned is None else watermarks[assigned]
            first_open = self.window.first_open_starts(watermarks)
        elif self.window.first_start(operator.lowest_ms) < self.window.first_open_start(operator.watermark_ms):
            first_open = self.window.first_open_start(operator.watermark_ms)
        else:
            rows = batch.rows if assigned is None else batch.rows.take(pa.array(assigned))
            self._rule.add(rows, starts, batch, assigned, emit)
            return None
        over = starts < first_open
        if not self._lateness_ms:
            rows, starts, kept = self._without_late(batch, assigned, starts, over, emit)
            self._rule.add(rows, starts, batch, kept if assigned is None else assigned[kept], emit)
            return None
        cut = self._first_due(batch, assigned, starts, over)
        if cut is None:
            first_kept = (
                self._first_kept(operator.watermark_ms) if watermarks is None else self._first_kepts(watermarks)
            )
            rows, starts, kept = self._without_late(batch, assigned, starts, starts < first_kept, emit)
            again, of_row = over[kept], kept if assigned is None else assigned[kept]
            in_time = np.flatnonzero(~again)
            self._rule.add(rows.take(pa.array(in_time)), starts[in_time], batch, of_row[in_time], emit)
            if again.any():
                late = rows.take(pa.array(np.flatnonzero(again)))
                self._rule.fire_again(late, starts[again], batch, of_row[again], emit)
        return cut

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        yield from self._rule.before(watermark_ms, emit)
        self.operator.watermark_ms = watermark_ms
        yield from self.fire_over(watermark_ms, emit)
        if self._lateness_ms and not self.kept.has_row_ids:
            yield from self._close(self._first_kept(watermark_ms))
        elif self._lateness_ms:
            closed = self.kept.take(self._first_kept(watermark_ms))
            for row_ids in () if closed is None else np.split(closed, range(FEW, len(closed), FEW)):
                self.remove(row_ids)
                yield

    def _close(self, before: int) -> Iterator[None]:
        for start in self.kept.take_starts(before):
            for row_ids in self.table.entries_of(start):
                for first in range(0, len(row_ids), FEW):
                    self.remove(row_ids[first : first + FEW])
                    yield
            self.table.none_of(start)

    def fire_over(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if not self.due.has_row_ids:
            yield from self._fire_starts(self.due.take_starts(self.window.first_open_start(watermark_ms)), emit)
            return
        due = self.due.take(self.window.first_open_start(watermark_ms))
        if due is not None:
            yield from self._fire_parts(due, emit)

    def _fire_starts(self, starts: Iterable[int], emit: Emit, by_floors: bool = False) -> Iterator[None]:
        for start in starts:
            for row_ids in self.table.entries_of(start):
                row_ids = row_ids[~self._were_over(row_ids)]
                if by_floors:
                    row_ids = row_ids[start < self.window.first_open_starts(self._floors_of(row_ids))]
                yield from self._fire_parts(row_ids, emit)
                yield
            if not self._lateness_ms and not by_floors:
                self.table.none_of(start)

    def _fire_parts(self, row_ids: Ints, emit: Emit) -> Iterator[None]:
        for part in self.parts(row_ids):
            if part is not None:
                self._rule.fire(part, emit)
            yield

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        if not self.due.has_row_ids:
            open_starts = list(self.due.take_starts(WATERMARK_MAX))
            self.due.note_starts(np.array(open_starts, np.int64))
            yield from self._fire_starts(open_starts, emit, by_floors=True)
            return
        due = self.due.take(WATERMARK_MAX)
        if due is None:
            return
        starts = np.array(self.fields_of(due)[-1], np.int64)
        over = starts < self.window.first_open_starts(self._floors_of(due))
        self.due.note(due[~over], starts[~over])
        yield from self._fire_parts(due[over], emit)

    def _first_kept(self, watermark_ms: int) -> int:
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX
        return self.window.first_open_start(watermark_ms - self._lateness_ms)

    def _first_kepts(self, watermarks_ms: Ints) -> Ints:
        watermarks_ms = np.maximum(watermarks_ms, WATERMARK_MIN + self._lateness_ms)
        return self.window.first_open_starts(watermarks_ms - self._lateness_ms)

    def _first_due(
        self, batch: Batch, assigned: Ints | None, starts: Ints, over: npt.NDArray[np.bool_]
    ) -> tuple[int, int] | None:
        """Returns an ended window's first row before which windows are due, and event time there."""
        behind = np.flatnonzero(over)
        if not len(behind) or batch.reached is None:
            return None
        of_row = behind if assigned is None else assigned[behind]
        reached = np.maximum(batch.reached[of_row], self.operator.watermark_ms)
        waiting = np.minimum.accumulate(np.where(over, WATERMARK_MAX, starts))[behind]
        if self.due.first is not None:
            waiting = np.minimum(waiting, self.due.first)
        due = np.flatnonzero(waiting < self.window.first_open_starts(reached))
        return (int(of_row[due[0]]), int(reached[due[0]])) if len(due) else None

    def remove(self, row_ids: Ints) -> None:
        self._rule.removed(row_ids)
        self.table.remove(row_ids)

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> Ints:
        """Returns each row's entry. `of_row`: the rows' numbers in `batch`; None: all, in order."""
        if not rows.num_rows:
            return starts
        row_ids = self.row_ids(rows, starts)
        self.note(self.due, self.table.made)
        if is_partial(rows.schema):
            merge_partial_rows(self.plan, self.table.columns, row_ids, rows, self.left, self.bounds)
        else:
            values = BatchValues(rows, self.where)
            add_to_groups(self.plan, self.table.columns, row_ids, values, self.bounds, self.left)
        self.table.mark_dirty(row_ids)
        return row_ids

    def row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            row_ids = self.table.row_ids_int64(*ints, starts)
        else:
            groups = group_rows([*keys, pa.array(starts)])
            row_ids = self.table.row_ids(groups.keys)[groups.of_row]
        if not self.table.is_whole:
            self.due.forget_row_ids()
            self.kept.forget_row_ids()
            if self._loaded != self.table.loaded:
                self._loaded = self.table.loaded
                self.bounds.forget_all()
            self._rule.left_memory()
        return row_ids

    def _without_late(
        self, batch: Batch, assigned: Ints | None, starts: Ints, closed: npt.NDArray[np.bool_], emit: Emit
    ) -> tuple[pa.RecordBatch, Ints, Ints]:
        """Returns rows of open windows, their starts, and indices in `starts`.
        A row is late if all of its windows are closed.
        """
        rows = batch.rows
        kept = np.flatnonzero(~closed)
        if assigned is None and len(kept) == len(starts):
            return rows, starts, kept
        of_row = kept if assigned is None else assigned[kept]
        late = np.ones(rows.num_rows, np.bool_)
        late[of_row] = False
        if late.any():
            self.operator.give_late(batch, late, emit)
        return rows.take(pa.array(of_row)), starts[kept], kept

    def note(self, windows: ByStart, row_ids: Ints) -> None:
        if len(row_ids):
            ints = self.table.int_keys_of(row_ids)
            starts = ints[-1] if ints is not None else [key[-1] for key in self.table.keys_of(row_ids)]
            windows.note(row_ids, np.array(starts, np.int64))

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        fields = self.fields_of(row_ids)
        starts = np.array(fields[-1], np.int64)
        ends = self.window.ends(starts)
        firings = self.table.columns.get(FIRINGS)
        updates = None if firings is None else firings[row_ids]
        results = self.results(row_ids, fields, ends, self.accumulators(row_ids), updates)
        if self._lateness_ms:
            self.went_out(row_ids)
            self.keep(row_ids)
        else:
            self.remove(row_ids)
        # event time directly before the window is over
        self.send(results, ends - 2, emit)

    def keep(self, row_ids: Ints) -> None:
        self._rule.keep_over(row_ids)
        self.kept.note(row_ids, np.array(self.fields_of(row_ids)[-1], np.int64))

    def went_out(self, row_ids: Ints) -> None:
        self.table.columns[FIRINGS][row_ids] += 1
        self.table.mark_dirty(row_ids)
        self._rule.went_out(row_ids)

    def entries_of_over(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        row_ids = self.row_ids(rows, starts)
        if len(self.table.made):
            self.note(self.kept, self.table.made)
            self._rule.keep_over(self.table.made)
        return row_ids

    def next_updates(self, order: RunningOrder) -> Ints:
        firings = self.table.columns[FIRINGS]
        before = firings[order.row_ids]
        updates = np.empty(len(order.order), np.int64)
        updates[order.order] = np.arange(len(updates)) + np.repeat(before - order.starts, order.lengths)
        firings[order.row_ids] = before + order.lengths
        self.table.mark_dirty(order.row_ids)
        return updates

    def fire_again(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints, emit: Emit) -> None:
        row_ids = self.entries_of_over(rows, starts)
        order = RunningOrder.of(row_ids)
        updates = self.next_updates(order)
        accumulators = running(self.plan, self.table.columns, order, BatchValues(rows, self.where), self.left)
        self.bounds.forget_all()
        ends = self.window.ends(starts)
        results = self.results(row_ids, self.fields_of(row_ids), ends, accumulators, updates)
        self.send_for(results, batch, of_row, emit)

    def send_for(self, results: pa.RecordBatch, batch: Batch, of_row: Ints, emit: Emit) -> None:
        watermark_ms = self.operator.watermark_ms
        if self.held is not None:
            self.held.append((results, of_row))
        elif batch.reached is None:
            self.send(results, np.full(len(of_row), watermark_ms), emit)
        else:
            self.send(results, np.maximum(batch.reached[of_row], watermark_ms), emit)
