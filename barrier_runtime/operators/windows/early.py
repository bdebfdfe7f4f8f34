"""Early results (`Every`): windows that emit what they have before they are over.

State knows of each window how many rows the last result had, so whether there is something new survives a restore. By
event time, batches are cut where a row brings a multiple of the interval, and a watermark stops at the first one that
it passes: what is told early does not depend on where batches and watermarks end. By rows, all results of a batch are
computed at once: as running aggregates, or, of results that tell only what came since the last one, in a scratch table
with an entry per result. By the wall clock the slot gives turns, and a turn tells a slice of the windows, so that
barriers come in between.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.aggregation.accumulators import SumBounds, add_to_groups, running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.state_columns import ROWS, Columns
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.aggregate import FIRINGS, WindowAggregateOperator
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.base import Ints, told_of_windows
from barrier_runtime.operators.windows.changed import ByWallClock, ChangedWindows
from barrier_runtime.operators.windows.triggers import Every
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints

_TOLD = "told"  # column of state: rows in the last result
_OVER = "over"  # column of state, with an allowed lateness: 1 once the window is over
_FAR = -(2**62)


class EarlyWindowOperator(ChangedWindows, WindowAggregateOperator):
    """`Every` by event time, or by rows."""

    _any_order = False

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
        *,
        early: Every,
    ) -> None:
        super().__init__(name, keys, window, event_time, aggregates, schema, late, lateness_ms)
        self.definition += f", {early.definition}"
        self._beside = told_of_windows(window.bounded, early=True)
        self._accumulate = early.accumulate
        self._rows = early.rows
        self._interval_ms = early.interval_ms
        self._by_event_time = early.rows is None and early.clock == "event"
        self._evictable = early.rows is not None or self._by_event_time
        self._grid_ms = window.first_start(0)
        self._held: list[tuple[pa.RecordBatch, Ints]] | None = None  # results, and event time at each
        self._changed = np.zeros(0, np.bool_)  # not kept by rows
        self._changed_starts: set[int] = set()  # in its place, once not all are in memory: of windows that may have

    def bind(self, columns: pa.Schema) -> None:
        super().bind(columns)
        if self._rows is not None:
            return
        if not self._table.is_whole:
            self._changed_starts.update(self._due.starts)
        else:
            row_ids = self._table.load_all()
            self._mark_quietly(row_ids[(self._since(row_ids) > 0) & ~self._were_over(row_ids)])

    def _more_state(self) -> dict[str, tuple[str, Any]]:
        names = [FIRINGS, *([_TOLD] if self._accumulate else []), *([_OVER] if self._lateness_ms else [])]
        return dict.fromkeys(names, ("int64", 0))

    def _were_over(self, row_ids: Ints) -> npt.NDArray[np.bool_]:
        return self._table.columns[_OVER][row_ids] > 0 if self._lateness_ms else np.zeros(len(row_ids), np.bool_)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._arrive(emit)
        while (cut := self._cut(batch)) is not None:
            row, reached_ms = cut
            if row:
                super().process(batch.slice(0, row), emit)
                if self._rest is not None:
                    self._rest = batch.slice(row - len(self._rest))
                    return
            if not self._first_goes(batch, row, reached_ms, emit):
                return
            batch = batch.slice(row)
        super().process(batch, emit)

    def _process(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        """By rows, early results and those by late rows come of the same batch: in the order of event time."""
        if self._rows is None or not self._lateness_ms:
            return super()._process(batch, emit)
        held: list[tuple[pa.RecordBatch, Ints]] = []
        self._held = held
        try:
            cut = super()._process(batch, emit)
        finally:
            self._held = None
        if held:
            reached = np.concatenate([each for _, each in held])
            order = np.argsort(reached, kind="stable")
            results = pa.Table.from_batches([each for each, _ in held]).combine_chunks().to_batches()[0]
            self._send(results.take(pa.array(order)), reached[order], emit)
        return cut

    def _send(self, results: pa.RecordBatch, reached: Ints, emit: Emit, emit_ns: int | None = None) -> None:
        if self._held is not None:
            self._held.append((results, reached))
        else:
            super()._send(results, reached, emit, emit_ns)

    def _reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if self._by_event_time and (len(self._changed) or self._changed_starts):
            assert self._interval_ms is not None
            due_ms = (self._watermark_ms // self._interval_ms + 1) * self._interval_ms
            if due_ms <= watermark_ms and (self._changed_starts or self._changed.any()):
                # Until all is told event time stays where it was, so that a restore in between finds the same `due_ms`.
                yield from self._fire_over(due_ms, emit)  # what is over by then is not told early
                if self._changed_starts:
                    yield from self._tell_starts(due_ms - 1, emit)
                else:
                    yield from self._tell_parts(np.flatnonzero(self._changed), due_ms - 1, emit)
                self._watermark_ms = due_ms
        yield from super()._reach(watermark_ms, emit)

    def _tell_starts(self, reached_ms: int, emit: Emit) -> Iterator[None]:
        """What has changed of windows of which not all entries are in memory. State says of an entry whether it was
        told, so one that is read twice is told once."""
        for start in sorted(self._changed_starts):
            for row_ids in self._table.entries_of(start):
                changed = row_ids[(self._since(row_ids) > 0) & ~self._were_over(row_ids)]
                yield from self._tell_parts(changed, reached_ms, emit)
                yield
            self._changed_starts.discard(start)

    def _tell_parts(self, row_ids: Ints, reached_ms: int, emit: Emit) -> Iterator[None]:
        for part in self._parts(row_ids):
            if part is not None:
                self._tell(part, reached_ms, emit)
            yield

    # ---- when

    def _cut(self, batch: Batch) -> tuple[int, int] | None:
        """The first row before which results are due, and event time at it."""
        reached = batch.reached
        if reached is None or not len(reached) or reached[-1] <= self._watermark_ms:
            return None
        later = self._later(reached, self._watermark_ms)
        row = int(np.argmax(later))
        return (row, int(reached[row])) if later[row] else None

    def _later(self, times_ms: Ints, than_ms: int) -> npt.NDArray[np.bool_]:
        """Whether one of the times at which results are due lies behind `than_ms` and not behind each of `times_ms`.
        By rows these are the ends of windows, so that their last results come in the order of event time."""
        if self._by_event_time:
            assert self._interval_ms is not None
            return times_ms // self._interval_ms > than_ms // self._interval_ms
        if self._rows is None or not self._window.bounded:
            return np.zeros(len(times_ms), np.bool_)
        return self._ends(times_ms) > self._ends(np.array([than_ms]))

    def _ends(self, times_ms: Ints) -> Ints:
        """How many windows are over at each of them, more or less than at another time."""
        first_open = np.maximum(self._window.first_open_starts(times_ms), _FAR)
        ends: Ints = -((self._grid_ms - first_open) // self._window.step_ms)
        return ends

    # ---- rows

    def _add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> Ints:
        if self._rows is not None and rows.num_rows:
            return self._add_counting(rows, starts, self._event_times(batch, of_row), self._rows, emit)
        row_ids = super()._add(rows, starts, batch, of_row, emit)
        if not self._table.is_whole:
            self._changed_starts.update(distinct_ints(starts).tolist())
        elif rows.num_rows:
            self._mark(row_ids)
        return row_ids

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        row_ids = super()._row_ids(rows, starts)
        if len(self._changed) and not self._table.is_whole:  # since this call
            self._changed = np.zeros(0, np.bool_)
            self._changed_starts.update(self._due.starts)
        return row_ids

    def _add_counting(self, rows: pa.RecordBatch, starts: Ints, event_times: Ints, every: int, emit: Emit) -> Ints:
        """Each row that is the last of `every` ones since the result before emits its window."""
        row_ids = self._row_ids(rows, starts)
        self._note(self._due, self._table.made)
        order = RunningOrder.of(row_ids)
        columns = self._table.columns
        before = np.minimum(self._since(order.row_ids), every - 1)  # a restored window may have waited for more
        since = np.arange(len(order.order)) + np.repeat(before - order.starts, order.lengths)
        numbers = since // every + np.repeat(columns[FIRINGS][order.row_ids], order.lengths)
        last = np.flatnonzero(since % every == every - 1)  # ordered rows that emit
        last = last[np.argsort(order.order[last])]
        fired, updates = order.order[last], numbers[last]
        values = BatchValues(rows, self.where)
        if self._accumulate:
            after = running(self._plan, columns, order, values, self._left)
            accumulators: Columns = {name: column[fired] for name, column in after.items()}
        else:
            accumulators = self._in_parts(order, since // every, values, last)
        self._bounds.forget_all()
        columns[FIRINGS][order.row_ids] += (before + order.lengths) // every
        if self._accumulate:
            columns[_TOLD][order.row_ids] = columns[ROWS][order.row_ids] - (before + order.lengths) % every
        self._table.mark_dirty(order.row_ids)
        if len(fired):
            ends = starts[fired] + self._window.size_ms
            fields = self._fields_of(row_ids[fired])
            results = self._results(row_ids[fired], fields, ends, accumulators, updates, early=True)
            self._send(results, event_times[fired], emit)
        return row_ids

    def _in_parts(self, order: RunningOrder, parts: Ints, values: BatchValues, last: Ints) -> Columns:
        """Accumulators of the results that end with the ordered rows `last`; entries keep what is behind their last
        one. `parts`: which result each ordered row belongs to; it rises within an entry."""
        begins = np.diff(parts, prepend=-1) != 0
        begins[order.starts] = True
        of_ordered = np.cumsum(begins) - 1
        entries = np.repeat(order.row_ids, order.lengths)[begins]
        scratch = self._initial(len(entries))
        columns, first_parts = self._table.columns, of_ordered[order.starts]
        for name, column in scratch.items():
            column[first_parts] = columns[name][order.row_ids]
        of_row = np.empty_like(order.order)
        of_row[order.order] = of_ordered
        self._add_to_scratch(scratch, of_row, values, entries)
        accumulators = {name: column[of_ordered[last]] for name, column in scratch.items()}
        told = np.zeros(len(entries), np.bool_)
        told[of_ordered[last]] = True
        for name, initial in self._initial(len(entries)).items():
            scratch[name][told] = initial[told]
        last_parts = of_ordered[order.starts + order.lengths - 1]
        for name, column in scratch.items():
            columns[name][order.row_ids] = column[last_parts]
        return accumulators

    def _fire_again(self, rows: pa.RecordBatch, starts: Ints, event_times: Ints, emit: Emit) -> None:
        if self._accumulate:
            super()._fire_again(rows, starts, event_times, emit)
            return
        row_ids = self._entries_of_over(rows, starts)
        updates = self._next_updates(RunningOrder.of(row_ids))
        scratch = self._initial(len(row_ids))
        self._add_to_scratch(scratch, np.arange(len(row_ids)), BatchValues(rows, self.where), row_ids)
        ends = starts + self._window.size_ms
        self._send(self._results(row_ids, self._fields_of(row_ids), ends, scratch, updates), event_times, emit)

    def _initial(self, count: int) -> dict[str, npt.NDArray[Any]]:
        """Accumulators of no rows."""
        columns = self._table.columns
        storage = self._plan.storage()
        return {name: np.full(count, initial, columns[name].dtype) for name, (_, initial) in storage.items()}

    def _add_to_scratch(
        self, scratch: dict[str, npt.NDArray[Any]], of_row: Ints, values: BatchValues, entries: Ints
    ) -> None:
        """`entries`: whose a row of `scratch` is."""

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return self._left(column, int(entries[row]), aggregate)

        add_to_groups(self._plan, scratch, of_row, values, SumBounds(), left)

    # ---- results

    def _since(self, row_ids: Ints) -> Ints:
        """Rows since the last result."""
        columns = self._table.columns
        rows: Ints = columns[ROWS][row_ids]
        return rows - columns[_TOLD][row_ids] if self._accumulate else rows

    def _tell(self, row_ids: Ints, reached_ms: int, emit: Emit, emit_ns: int | None = None) -> None:
        """Early results of these windows."""
        fields = self._fields_of(row_ids)
        ends = np.array(fields[-1], np.int64) + self._window.size_ms
        updates = self._table.columns[FIRINGS][row_ids]
        results = self._results(row_ids, fields, ends, self._accumulators(row_ids), updates, early=True)
        self._went_out(row_ids)
        self._send(results, np.full(len(row_ids), reached_ms), emit, emit_ns)

    def _went_out(self, row_ids: Ints) -> None:
        super()._went_out(row_ids)
        columns = self._table.columns
        if self._accumulate:
            columns[_TOLD][row_ids] = columns[ROWS][row_ids]
        else:
            for name, (_, initial) in self._plan.storage().items():
                columns[name][row_ids] = initial
        self._forget_changes(row_ids)

    def _keep_over(self, row_ids: Ints) -> None:
        self._table.columns[_OVER][row_ids] = 1

    def _remove(self, row_ids: Ints) -> None:
        self._forget_changes(row_ids)
        super()._remove(row_ids)


class WallClockWindowOperator(ByWallClock, EarlyWindowOperator):
    """`Every` by the wall clock."""
