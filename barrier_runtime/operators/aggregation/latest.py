"""Running aggregates with `emit="latest"`: the last row of each key in place of every row.
Design: docs/design/latest-rows.md.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch, joined
from barrier_runtime.data.grouping import group_rows, last_of_groups, last_rows
from barrier_runtime.operators.aggregation.partial_schema import is_partial, whole_schema
from barrier_runtime.operators.aggregation.partials import merge_different, merge_partial_rows
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.aggregation.state_columns import Ints
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.state.errors import InvalidJob

MOST_ROWS = 65_536
_MOST_BYTES = 16 << 20
_FEW = 300  # rows up to which a dict is faster than arrays
_WHOLE = 16_384  # rows from which a batch that repeats few keys is not worth holding

_Positions = npt.NDArray[np.intp]


class LatestRows:
    """`last_rows` returns the positions of the last row of each key in a batch, ascending."""

    def __init__(self, last_rows: Callable[[Batch], _Positions]) -> None:
        self._last_rows = last_rows
        self._batches: list[Batch] = []
        self._rows = 0
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, batch: Batch) -> bool:
        """Adds rows of different keys, in place of earlier rows. False: too many keys to hold."""
        self._append(batch)
        if self._rows <= MOST_ROWS and self._bytes <= _MOST_BYTES:
            return True
        for reduced in self.take():
            self._append(reduced)
        return self._rows <= MOST_ROWS // 2 and self._bytes <= _MOST_BYTES // 2

    def take(self) -> list[Batch]:
        runs: list[list[Batch]] = []
        for batch in self._batches:
            if runs and _may_join(runs[-1][-1], batch):
                runs[-1].append(batch)
            else:
                runs.append([batch])
        self._batches, self._rows, self._bytes = [], 0, 0
        return list(map(self._last_of, runs))

    def _last_of(self, run: list[Batch]) -> Batch:
        if len(run) == 1:
            return run[0]
        batch = joined(run)
        return chosen(batch, self._last_rows(batch))

    def _append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._rows += batch.count
        self._bytes += batch.rows.nbytes if batch.few is None else batch.few.most_bytes


def chosen(batch: Batch, positions: _Positions) -> Batch:
    if len(positions) == batch.count:
        return batch
    rows = batch.rows.take(pa.array(positions)) if batch.few is None else batch.few.take(positions.tolist())
    return batch.only(rows, positions)


def _may_join(batch: Batch, later: Batch) -> bool:
    """Event time never decreases within a batch."""
    if batch.reached is None or later.reached is None:
        in_time = batch.reached is later.reached
    else:
        in_time = bool(batch.reached[-1] <= later.reached[0])
    return in_time and (batch.schema is later.schema or batch.schema.equals(later.schema))


class LatestAggregateOperator(RunningAggregateOperator):
    by_clock = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._held = LatestRows(self._last_of_batch)
        self._has_timer = False
        self._positions = np.empty(0, np.intp)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if is_partial(batch.schema):
            self._merge(batch, emit)
        else:
            super().process(batch, emit, port)

    def _merge(self, batch: Batch, emit: Emit) -> None:
        rows = batch.rows.select(whole_schema(batch.schema).names)
        self._check(rows.schema)
        row_ids = self._row_ids(rows)
        last, columns = self._last_of(row_ids), self._table.columns
        if len(last) == len(row_ids):
            last_ids, accumulators = row_ids, merge_different(self._plan, columns, row_ids, batch.rows, self._left)
        else:
            merge_partial_rows(self._plan, columns, row_ids, batch.rows, self._left)
            rows, last_ids = rows.take(pa.array(last)), row_ids.take(last)
            accumulators = {name: column.take(last_ids) for name, column in columns.items()}
        self._table.mark_dirty(last_ids)

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return self._left(column, int(last_ids[row]), aggregate)

        results = self._with_results(rows, accumulators, left)
        self._hold(batch.only(results, last), emit)

    def _row_ids(self, rows: pa.RecordBatch) -> Ints:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._table.row_ids_int64(*ints)
        groups = group_rows(keys)
        return self._table.row_ids(groups.keys)[groups.of_row]

    def _last_of(self, row_ids: Ints) -> _Positions:
        if len(self._positions) < (most := int(row_ids.max(initial=0)) + 1):
            self._positions = np.empty(2 * most, np.intp)
        every = np.arange(len(row_ids))
        self._positions[row_ids] = every  # of equal indices the last write stays
        return np.flatnonzero(self._positions[row_ids] == every)

    @property
    def unfinished(self) -> bool:
        return bool(self._held)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        if not (self.by_clock or last):
            return False
        self.by_clock = False
        self._release(emit)
        return True  # announces idleness that waited for the rows

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._release(emit)

    def before_barrier(self, emit: Emit) -> None:
        self._release(emit)

    def on_end(self, emit: Emit) -> None:
        self._release(emit)

    def _send(self, results: Batch, keys: int, last_rows: Callable[[], _Positions], emit: Emit) -> None:
        if results.count >= _WHOLE and 8 * (results.count - keys) < results.count:
            self._release(emit)
            emit(results)
        else:
            self._hold(chosen(results, last_rows()), emit)

    def _hold(self, results: Batch, emit: Emit) -> None:
        """`results`: rows of different keys."""
        has_room = self._held.add(results)
        if not has_room or not self.context.latency_target_s:
            self._release(emit)
        elif not self._has_timer:
            self._has_timer = True
            self.context.call_later(self.context.latency_target_s, self._now_due)

    def _now_due(self) -> None:
        self._has_timer = False
        self.by_clock = True
        self.context.wake()

    def _release(self, emit: Emit) -> None:
        for batch in self._held.take():
            emit(batch)

    def _last_of_batch(self, batch: Batch) -> _Positions:
        keys = self.codec.arrays(batch.rows)
        if batch.count > _FEW:
            return last_of_groups(keys)[1]
        groups = group_rows(keys)
        return np.sort(last_rows(groups.of_row, len(groups.keys)))
