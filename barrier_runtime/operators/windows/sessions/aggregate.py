"""Entries per session, keyed by (keys, first time), with the last time and the accumulators.

A session is over when the watermark reaches last time + gap. (Flink fires a millisecond earlier.) A row behind the
watermark joins an open session that the row touches; otherwise the row is late if a session of this row alone would be
over.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import group_rows, order_of_ints
from barrier_runtime.operators.aggregation.accumulators import add_to_groups
from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.partial_schema import is_partial
from barrier_runtime.operators.aggregation.partials import (
    add_any_order,
    may_be_in_any_order,
    merge_at_once,
    merge_entries,
    merge_partial_rows,
)
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import Session
from barrier_runtime.operators.windows.entries import Ints, WindowEntries
from barrier_runtime.operators.windows.firing import SPAN
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.sessions.assignment import (
    LATE,
    AssignedSessions,
    Spans,
    assign_sessions,
    runs_of,
)
from barrier_runtime.operators.windows.sessions.open_sessions import OpenSessions
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.keys.distinct_ints import distinct_ints

LAST = "last"  # state column: time of the last row, ms
_STEPS, _STEPS_BY_WALL_CLOCK = 16, 1_024


class Sessions(WindowEntries):
    def __init__(self, operator: WindowOperator, beside: Sequence[pa.Field] = SPAN) -> None:
        super().__init__(operator, beside)
        assert isinstance(operator.window, Session)
        self._gap_ms = operator.window.gap_ms
        steps = _STEPS_BY_WALL_CLOCK if operator.clock.is_wall_clock else _STEPS
        self._open = OpenSessions(len(operator.key_columns), self._gap_ms, steps)

    @property
    def next_ms(self) -> int | None:
        return self._open.next_ms

    def _restored(self) -> None:
        self._any_order = may_be_in_any_order(self.plan)
        row_ids = self.table.load_all()
        if not len(row_ids):
            return
        ints = self.table.int_keys_of(row_ids)
        if ints is not None:
            starts, numbers = ints[-1], self._open.numbers_of_ints(list(ints[:-1]))
        else:
            keys = self.table.keys_of(row_ids)
            starts = np.array([key[-1] for key in keys], np.int64)
            numbers = self._open.numbers_of([key[:-1] for key in keys])
        its_keys = distinct_ints(numbers)
        order = order_of_ints([numbers, starts])
        row_ids = row_ids[order]
        known = Spans(numbers[order], starts[order], self.table.columns[LAST][row_ids])
        self._open.replace(its_keys, np.full(len(its_keys), -1, np.int64), row_ids[:0], row_ids, known)

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return {LAST: ("int64", 0)}

    def process(self, batch: Batch, emit: Emit) -> None:
        times_ms = self.operator.times_of(batch)
        if times_ms is None:
            return
        self.operator.arrive(emit)
        added = self._add(batch, times_ms, emit)
        while added < len(batch):
            # A session that this row would touch is emitted first.
            batch, times_ms = batch.slice(added), times_ms[added:]
            if batch.reached is not None and not self.operator.first_goes(batch, 0, int(batch.reached[0]), emit):
                return
            added = self._add(batch, times_ms, emit)
            if not added:
                raise ProtocolViolation(f"{self.where}: a session is open, though event time of its key has passed it")

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        self.operator.watermark_ms = watermark_ms
        over: list[Ints] = []
        for row_ids in self._open.over(watermark_ms, self.table.columns[LAST]):
            if over:
                yield
            over.append(row_ids)
        if over:
            yield from self._fire_all(np.concatenate(over), emit)

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        row_ids = self.table.load_all()
        over = self.table.columns[LAST][row_ids] + self._gap_ms <= self._floors_of(row_ids)
        self._open.end(row_ids[over])
        yield from self._fire_all(row_ids[over], emit)

    def _fire_all(self, row_ids: Ints, emit: Emit) -> Iterator[None]:
        for part in self.parts(row_ids, self.table.columns[LAST]):
            if part is not None:
                self.fire(part, emit)
            yield

    def _add(self, batch: Batch, times_ms: Ints, emit: Emit) -> int:
        numbers = self._key_numbers(batch.rows)
        runs = runs_of(numbers, times_ms, self._gap_ms)
        keys, earliest_ms = runs.earliest()
        opened, rest = self._open.reached(keys, earliest_ms, self.table.columns[LAST])
        known = self._open.spans(opened, self.table.columns[LAST])

        def assigned(any_order: bool) -> AssignedSessions:
            return assign_sessions(runs, numbers, times_ms, self._gone_by(batch), known, self._gap_ms, any_order)

        done = assigned(self._any_order)
        if done.end < len(batch):
            self._open.unused(keys)
            return self._add(batch.slice(0, done.end), times_ms[: done.end], emit) if done.end else 0
        values = self._values(batch, done)
        if self._any_order and not add_any_order(self.plan, self.table.columns, opened, values):
            done = assigned(any_order=False)
            values = self._values(batch, done)
        if done.rows is not None:
            self.operator.give_late(batch, np.bincount(done.rows, minlength=len(batch)) == 0, emit)
        row_ids = self._entries(done, opened)
        if len(done.of_row):
            self._aggregate(values, done, row_ids)
        self._keep(keys, rest, done, opened, row_ids)
        return len(batch)

    def _values(self, batch: Batch, done: AssignedSessions) -> BatchValues:
        """Returns the values of the rows that are not late, and limits `done` to these."""
        late = done.of_row == LATE
        rows = batch.rows
        if late.any():
            done.rows = np.flatnonzero(~late)
            rows = rows.take(pa.array(done.rows))
            done.of_row = done.of_row[done.rows]
            done.levels = None if done.levels is None else done.levels[done.rows]
        return BatchValues(rows, self.where)

    def _gone_by(self, batch: Batch) -> int | Ints:
        """Sessions that end by this time (per row) are gone."""
        watermarks = self.operator.row_watermarks(batch)
        return self.operator.watermark_ms if watermarks is None else watermarks

    def _key_numbers(self, rows: pa.RecordBatch) -> Ints:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._open.numbers_of_ints(ints)
        groups = group_rows(keys)
        return self._open.numbers_of(groups.keys)[groups.of_row]

    def _entries(self, done: AssignedSessions, opened: Ints) -> Ints:
        first = len(opened)
        if first == len(done.sessions):
            return opened
        return np.concatenate([opened, self._placed(done.sessions.keys[first:], done.sessions.first_ms[first:])])

    def _placed(self, numbers: Ints, first_ms: Ints) -> Ints:
        fields = self._open.key_fields(numbers)
        if fields is not None:
            return self.table.new_row_ids_int64(*fields, first_ms)
        keys = self._open.key_tuples(numbers)
        return self.table.row_ids([(*key, start) for key, start in zip(keys, first_ms.tolist(), strict=True)])

    def _aggregate(self, values: BatchValues, done: AssignedSessions, row_ids: Ints) -> None:
        of_row, levels, columns = row_ids[done.of_row], done.levels, self.table.columns
        into, merged = row_ids[done.merges[:, 1]], row_ids[done.merges[:, 2]]
        if levels is None:
            if len(merged):
                self.bounds.forget_all()
                if not merge_at_once(self.plan, columns, into, columns, merged):
                    raise ProtocolViolation(f"{self.where}: the order of rows is lost, though it matters")
            self._add_rows(values, of_row)
            return
        for level in range(int(max(levels.max(), done.merges[-1, 0])) + 1):
            pairs = done.merges[:, 0] == level
            if pairs.any():
                merge_entries(self.plan, columns, into[pairs], merged[pairs], self.bounds, self.left)
            its = np.flatnonzero(levels == level)
            if len(its):
                self._add_rows(values.take(its), of_row[its])

    def _add_rows(self, values: BatchValues, of_row: Ints) -> None:
        if is_partial(values.rows.schema):
            merge_partial_rows(self.plan, self.table.columns, of_row, values.rows, self.left, self.bounds)
            return
        add_to_groups(self.plan, self.table.columns, of_row, values, self.bounds, self.left)

    def _keep(self, keys: Ints, rest: Ints, done: AssignedSessions, opened: Ints, row_ids: Ints) -> Ints:
        sessions, stay = done.sessions, ~done.merged
        columns = self.table.columns
        first_ms = self._open.spans(opened, columns[LAST]).first_ms
        changed = np.ones(len(sessions), np.bool_)
        changed[: len(opened)] = columns[LAST][opened] != sessions.last_ms[: len(opened)]
        changed[done.of_row] = True
        moved = np.flatnonzero((sessions.first_ms[: len(opened)] < first_ms) & stay[: len(opened)])
        gone = row_ids[done.merged]
        row_ids = row_ids.copy()
        columns[LAST][row_ids] = sessions.last_ms
        if len(moved):
            before = row_ids[moved]
            now = self._placed(sessions.keys[moved], sessions.first_ms[moved])
            for column in self.table.columns.values():
                column[now] = column[before]
            row_ids[moved] = now
            gone = np.concatenate([gone, before])
        self.table.mark_dirty(row_ids[changed & stay])
        if len(gone):
            self.table.remove(gone)
        by_time = done.by_time
        if by_time is None:
            by_time = np.flatnonzero(stay)
            by_time = by_time[order_of_ints([sessions.keys[by_time], sessions.first_ms[by_time]])]
        left = Spans(sessions.keys[by_time], sessions.first_ms[by_time], sessions.last_ms[by_time])
        self._open.replace(keys, rest, gone, row_ids[by_time], left)
        return row_ids

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        fields = self.fields_of(row_ids)
        accumulators = self.accumulators(row_ids)
        ends = accumulators[LAST] + self._gap_ms
        results = self.results(row_ids, fields, ends, accumulators)
        self.table.remove(row_ids)
        self.send(results, ends - 1, emit)
