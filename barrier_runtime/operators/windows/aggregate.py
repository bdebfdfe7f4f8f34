"""Aggregates per key and event-time window: one entry per (keys, window start), results when the window is over.

A window is over when the watermark reaches its last millisecond; it is emitted then, once, and removed. Rows of
windows that are over are late: dropped and counted as `late_rows`. Results of one watermark come ordered by window
and keys, so a replay gives the same rows in the same order.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import LATE_ROWS
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.event_time import check_event_time_type, event_times_ms
from barrier_runtime.data.grouping import extremes, group_rows, order_of_ints
from barrier_runtime.data.keys import sort_rows
from barrier_runtime.operators.aggregation.accumulators import SumBounds, add_to_groups
from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed_operator import KeyedOperator
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.state.errors import InvalidJob

_MAX_ROWS = 65_536  # of one emitted batch
_MAX_ASSIGNED = 262_144  # rows of a batch, each as often as it has windows: more are worked on in parts
_TIME = pa.timestamp("ms", "UTC")

Ints: TypeAlias = npt.NDArray[np.int64]


class WindowAggregateOperator(KeyedOperator):
    kind = "window"

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner,
        event_time: str,
        aggregates: Mapping[str, Aggregate],
        schema: pa.Schema | None = None,
    ) -> None:
        used = [column for aggregate in aggregates.values() for column in aggregate.columns]
        super().__init__(name, keys, [*keys, event_time, *used], schema)
        self.definition = window.definition
        self._window = window
        self._event_time = event_time
        self._aggregates = dict(aggregates)
        self._open_windows: dict[int, list[Ints]] = {}  # window start -> row ids
        self._starts: list[int] = []  # heap of the keys of _open_windows
        self._by_row = False  # event time is told row by row, to those who read the results, too

    def bind(self, columns: pa.Schema) -> None:
        check_event_time_type(columns.field(self._event_time).type, self._event_time, self.where)
        self._plan = plan_aggregates(self._aggregates, columns, self.where)
        self._output = window_schema(columns, self._key_columns, self._aggregates, self.where)
        self._table = self._column_table("windows", self._plan.storage(), self._plan.added())
        self._bounds = SumBounds()
        self._note_windows(self._table.load_all())

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        self._check(rows.schema)
        if rows.num_rows * self._window.per_row > _MAX_ASSIGNED and rows.num_rows > 1:
            half = rows.num_rows // 2
            self.process(batch.slice(0, half), emit)
            self.process(batch.slice(half), emit)
            return
        if self._watermark_ms == WATERMARK_MAX:
            raise InvalidJob(
                f"{self.where}: this job had read all of its input and closed every window, so rows added since would "
                "all be late. Run them under another name, or all rows anew: restore='none' with allow_replay=True"
            )
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        self._by_row = self._by_row or batch.reached is not None
        times = rows.column(self._event_time)
        if times.null_count:
            raise InvalidJob(
                f"{self.where}: {times.null_count} rows have no event time in column {self._event_time!r}: "
                f'filter them before, as in .filter(pc.field("{self._event_time}").is_valid())'
            )
        if not rows.num_rows:
            return
        times_ms = event_times_ms(times)
        lowest_ms, highest_ms = extremes(times_ms)
        if not self._window.holds(lowest_ms, highest_ms):
            raise self._no_window(times_ms)
        assigned, starts = self._window.assign(times_ms)
        watermarks = self._row_watermarks(batch)
        first_open: int | Ints
        if watermarks is not None:
            first_open = self._window.first_open_starts(watermarks)
            first_open = first_open if assigned is None else first_open[assigned]
            rows, starts = self._without_late(rows, assigned, starts, first_open)
        elif self._window.first_start(lowest_ms) < self._window.first_open_start(self._watermark_ms):
            first_open = self._window.first_open_start(self._watermark_ms)
            rows, starts = self._without_late(rows, assigned, starts, first_open)
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

    def _left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self._plan.left(self.where, column, self._table.keys_of(np.array([row_id]))[0][:-1], aggregate)

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        """The entry of each row."""
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._table.row_ids_int64(*ints, starts)
        groups = group_rows([*keys, pa.array(starts)])
        return self._table.row_ids(groups.keys)[groups.of_row]

    def _without_late(
        self, rows: pa.RecordBatch, assigned: Ints | None, starts: Ints, first_open: int | Ints
    ) -> tuple[pa.RecordBatch, Ints]:
        """The rows, each once per window of it that is not over. A row is late when all of its windows are over."""
        kept = np.flatnonzero(starts >= first_open)
        if assigned is None and len(kept) == len(starts):
            return rows, starts
        of_row = kept if assigned is None else assigned[kept]
        late = rows.num_rows - (len(kept) if assigned is None else len(np.unique(of_row)))
        if late:
            self.metrics.count(LATE_ROWS, float(late))
        return rows.take(pa.array(of_row)), starts[kept]

    def _no_window(self, times_ms: Ints) -> InvalidJob:
        far = next(time for time in times_ms.tolist() if not self._window.holds(time, time))
        return InvalidJob(
            f"{self.where}: a row has the event time {far} ms in column {self._event_time!r}, whose window does not "
            "lie within 64 bits of milliseconds, so it would never be over: filter or correct such rows before"
        )

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

    def _ordered(self, row_ids: Ints) -> tuple[Ints, list[Any]]:
        """`row_ids` by window and keys, and one sequence per field of their keys."""
        ints = self._table.int_keys_of(row_ids)
        if ints is not None:
            order = order_of_ints([ints[-1], *ints[:-1]])
            return row_ids[order], list(ints[:, order])
        *keys, starts = zip(*self._table.keys_of(row_ids), strict=True)
        columns = [pa.array(starts), *(self.codec.column(i, values) for i, values in enumerate(keys))]
        row_ids = row_ids[sort_rows(columns)]
        return row_ids, list(zip(*self._table.keys_of(row_ids), strict=True))

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        row_ids, fields = self._ordered(row_ids)
        starts = np.array(fields.pop(), np.int64)
        keys = [self.codec.column(i, values) for i, values in enumerate(fields)]
        columns = self._table.columns
        accumulators = {name: column[row_ids] for name, column in columns.items()}
        ends = starts + self._window.size_ms

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return self._left(column, int(row_ids[row]), aggregate)

        results = pa.RecordBatch.from_arrays(
            [
                *keys,
                pa.array(starts).view(_TIME),
                pa.array(ends).view(_TIME),
                *[output.column(accumulators, left) for output in self._plan.outputs],
            ],
            schema=self._output,
        )
        self._table.remove(row_ids)
        # Before a window's results event time has come to its last millisecond, wherever batches end.
        fired = Batch(results, self._emit_ns, ends - 2 if self._by_row else None)
        for first in range(0, results.num_rows, _MAX_ROWS):
            emit(fired.slice(first, _MAX_ROWS))


def window_schema(schema: pa.Schema, keys: Sequence[str], aggregates: Mapping[str, Aggregate], where: str) -> pa.Schema:
    """Keys, `window_start`, `window_end` (exclusive; timestamps in ms, UTC), then the aggregates."""
    return pa.schema(
        [
            *[pa.field(key, schema.field(key).type) for key in keys],
            pa.field("window_start", _TIME),
            pa.field("window_end", _TIME),
            *plan_aggregates(aggregates, schema, where).fields(),
        ]
    )
