"""Rules of early results (`Every`): windows emit results before they are over.
Design: docs/design/event-time-in-a-batch.md.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.aggregation.accumulators import SumBounds, add_to_groups, running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import ROWS, Columns
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.windows.firing import FIRINGS
from barrier_runtime.operators.windows.rules.on_close import Bools, Ints, OnClose, RuledWindows
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints

_SLICE = 16_384


class Changed:
    """Marks by row id, rebuilt from the table at a restore."""

    def __init__(self) -> None:
        self._marks: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def __bool__(self) -> bool:
        return bool(self._marks.any())

    @property
    def is_used(self) -> bool:
        return len(self._marks) > 0

    def row_ids(self, first: int = 0) -> Ints:
        row_ids: Any = first + np.flatnonzero(self._marks[first:])
        found: Ints = row_ids
        return found

    def mark(self, row_ids: Ints, capacity: int) -> None:
        missing = capacity - len(self._marks)
        if missing > 0:
            self._marks = np.concatenate([self._marks, np.zeros(missing, np.bool_)])
        self._marks[row_ids] = True

    def forget(self, row_ids: Ints, capacity: int) -> None:
        if len(self._marks):
            self.mark(row_ids[:0], capacity)
            self._marks[row_ids] = False

    def clear(self) -> None:
        self._marks = np.zeros(0, np.bool_)


class WallTurns:
    """Emits all changed windows an interval after the first row since the last results.

    Snapshots need only the marks.
    """

    def __init__(self, context: OperatorContext, interval_ms: int, changed: Changed) -> None:
        self._context = context
        self._interval_s = interval_ms / 1_000
        self._changed = changed
        self._due_s: float | None = None
        self._next = 0  # row id from which on results are due now

    def turn(self, tell: Callable[[Ints, int], None]) -> bool:
        """Returns whether results were due. `tell` emits results of row ids at a time in nanoseconds."""
        if not self._changed.is_used:
            return False
        if self._due_s is None:
            if self._changed:
                self._wait()
            return False
        if self._context.now_s() < self._due_s:
            return False
        row_ids = self._changed.row_ids(self._next)[:_SLICE]
        if not len(row_ids):
            self._due_s, self._next = None, 0
            return self.turn(tell)
        self._next = int(row_ids[-1]) + 1
        tell(row_ids, self._context.wall_ms() * 1_000_000)
        return True

    def marked(self) -> None:
        if self._due_s is None:
            self._wait()

    def _wait(self) -> None:
        self._due_s = self._context.now_s() + self._interval_s
        self._context.call_later(self._interval_s, self._context.wake)


TOLD = "told"  # state column: rows in the last result
OVER = "over"  # state column, with an allowed lateness: 1 once the window is over


class Early(OnClose):
    any_order = False

    def __init__(self, windows: RuledWindows, accumulate: bool) -> None:
        super().__init__(windows)
        self._accumulate = accumulate

    def columns(self) -> Mapping[str, tuple[str, Any]]:
        names = [FIRINGS, *([TOLD] if self._accumulate else []), *([OVER] if self.is_kept else [])]
        return dict.fromkeys(names, ("int64", 0))

    def were_over(self, row_ids: Ints) -> Bools:
        over: Bools = self.windows.table.columns[OVER][row_ids] > 0
        return over

    def fire_again(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints, emit: Emit) -> None:
        windows = self.windows
        if self._accumulate:
            windows.fire_again(rows, starts, batch, of_row, emit)
            return
        row_ids = windows.entries_of_over(rows, starts)
        updates = windows.next_updates(RunningOrder.of(row_ids))
        scratch = windows.initial(len(row_ids))
        self.add_to_scratch(scratch, np.arange(len(row_ids)), BatchValues(rows, windows.where), row_ids)
        ends = windows.window.ends(starts)
        results = windows.results(row_ids, windows.fields_of(row_ids), ends, scratch, updates)
        windows.send_for(results, batch, of_row, emit)

    def add_to_scratch(
        self, scratch: dict[str, npt.NDArray[Any]], of_row: Ints, values: BatchValues, entries: Ints
    ) -> None:
        windows = self.windows

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return windows.left(column, int(entries[row]), aggregate)

        add_to_groups(windows.plan, scratch, of_row, values, SumBounds(), left)

    def since(self, row_ids: Ints) -> Ints:
        columns = self.windows.table.columns
        rows: Ints = columns[ROWS][row_ids]
        return rows - columns[TOLD][row_ids] if self._accumulate else rows

    def went_out(self, row_ids: Ints) -> None:
        columns = self.windows.table.columns
        if self._accumulate:
            columns[TOLD][row_ids] = columns[ROWS][row_ids]
        else:
            for name, (_, initial) in self.windows.plan.storage().items():
                columns[name][row_ids] = initial

    def keep_over(self, row_ids: Ints) -> None:
        self.windows.table.columns[OVER][row_ids] = 1


class EveryRows(Early):
    """Emits a window at every `rows`-th row since the last result.
    Batches are cut where a window is over: last results come in the order of event time.
    """

    def __init__(self, windows: RuledWindows, rows: int, accumulate: bool) -> None:
        super().__init__(windows, accumulate)
        self._rows = rows
        self.cuts_batches = windows.window.bounded

    def cut(self, batch: Batch) -> tuple[int, int] | None:
        reached, watermark_ms = batch.reached, self.windows.operator.watermark_ms
        if reached is None or not len(reached) or reached[-1] <= watermark_ms:
            return None
        over_by = self.windows.window.over_by
        later = over_by(reached) > over_by(np.array([watermark_ms]))
        row = int(np.argmax(later))
        return (row, int(reached[row])) if later[row] else None

    def take(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        windows = self.windows
        if not self.is_kept:
            return windows.take(batch, emit)
        held: list[tuple[pa.RecordBatch, Ints]] = []
        windows.held = held
        try:
            cut = windows.take(batch, emit)
        finally:
            windows.held = None
        if held:
            of_row = np.concatenate([each for _, each in held])
            order = np.argsort(of_row, kind="stable")
            results = pa.concat_batches([each for each, _ in held])
            windows.send_for(results.take(pa.array(order)), batch, of_row[order], emit)
        return cut

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        if not rows.num_rows:
            return
        windows, every = self.windows, self._rows
        row_ids = windows.row_ids(rows, starts)
        windows.note(windows.due, windows.table.made)
        order = RunningOrder.of(row_ids)
        columns = windows.table.columns
        before = np.minimum(self.since(order.row_ids), every - 1)  # a restored window may have waited for more rows
        since = np.arange(len(order.order)) + np.repeat(before - order.starts, order.lengths)
        numbers = since // every + np.repeat(columns[FIRINGS][order.row_ids], order.lengths)
        last = np.flatnonzero(since % every == every - 1)
        last = last[np.argsort(order.order[last])]
        fired, updates = order.order[last], numbers[last]
        values = BatchValues(rows, windows.where)
        if self._accumulate:
            after = running(windows.plan, columns, order, values, windows.left)
            accumulators: Columns = {name: column[fired] for name, column in after.items()}
        else:
            accumulators = self._in_parts(order, since // every, values, last)
        windows.bounds.forget_all()
        columns[FIRINGS][order.row_ids] += (before + order.lengths) // every
        if self._accumulate:
            columns[TOLD][order.row_ids] = columns[ROWS][order.row_ids] - (before + order.lengths) % every
        windows.table.mark_dirty(order.row_ids)
        if len(fired):
            ends = windows.window.ends(starts[fired])
            fields = windows.fields_of(row_ids[fired])
            results = windows.results(row_ids[fired], fields, ends, accumulators, updates, early=True)
            windows.send_for(results, batch, fired if of_row is None else of_row[fired], emit)

    def _in_parts(self, order: RunningOrder, parts: Ints, values: BatchValues, last: Ints) -> Columns:
        """Returns accumulators of the results that end at the ordered rows `last`; entries keep the later rows.
        `parts`: number of the result of each ordered row, rising within an entry."""
        begins = np.diff(parts, prepend=-1) != 0
        begins[order.starts] = True
        of_ordered = np.cumsum(begins) - 1
        entries = np.repeat(order.row_ids, order.lengths)[begins]
        scratch = self.windows.initial(len(entries))
        columns, first_parts = self.windows.table.columns, of_ordered[order.starts]
        for name, column in scratch.items():
            column[first_parts] = columns[name][order.row_ids]
        of_row = np.empty_like(order.order)
        of_row[order.order] = of_ordered
        self.add_to_scratch(scratch, of_row, values, entries)
        accumulators = {name: column[of_ordered[last]] for name, column in scratch.items()}
        told = np.zeros(len(entries), np.bool_)
        told[of_ordered[last]] = True
        for name, initial in self.windows.initial(len(entries)).items():
            scratch[name][told] = initial[told]
        last_parts = of_ordered[order.starts + order.lengths - 1]
        for name, column in scratch.items():
            columns[name][order.row_ids] = column[last_parts]
        return accumulators


class _Marking(Early):
    """Emits, at intervals, the windows that got rows since their last result."""

    def __init__(self, windows: RuledWindows, interval_ms: int, accumulate: bool) -> None:
        super().__init__(windows, accumulate)
        self.interval_ms = interval_ms
        self.changed = Changed()

    def restored(self) -> None:
        row_ids = self.windows.table.load_all()
        self._mark(self.unsaid(row_ids))

    def unsaid(self, row_ids: Ints) -> Ints:
        has_more = self.since(row_ids) > 0
        return row_ids[has_more & ~self.were_over(row_ids)] if self.is_kept else row_ids[has_more]

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        row_ids = self.windows.add(rows, starts, batch, of_row, emit)
        if rows.num_rows:
            self._mark(row_ids)

    def tell(self, row_ids: Ints, reached_ms: int, emit: Emit, emit_ns: int | None = None) -> None:
        windows = self.windows
        fields = windows.fields_of(row_ids)
        ends = windows.window.ends(np.array(fields[-1], np.int64))
        updates = windows.table.columns[FIRINGS][row_ids]
        results = windows.results(row_ids, fields, ends, windows.accumulators(row_ids), updates, early=True)
        windows.went_out(row_ids)
        windows.send(results, np.full(len(row_ids), reached_ms), emit, emit_ns)

    def went_out(self, row_ids: Ints) -> None:
        super().went_out(row_ids)
        self._forget(row_ids)

    def removed(self, row_ids: Ints) -> None:
        self._forget(row_ids)

    def _mark(self, row_ids: Ints) -> None:
        self.changed.mark(row_ids, len(self.windows.table.columns[ROWS]))

    def _forget(self, row_ids: Ints) -> None:
        self.changed.forget(row_ids, len(self.windows.table.columns[ROWS]))


class EveryTime(_Marking):
    cuts_batches = True

    def __init__(self, windows: RuledWindows, interval_ms: int, accumulate: bool) -> None:
        super().__init__(windows, interval_ms, accumulate)
        self._changed_starts: set[int] = set()  # starts of windows that may have changed, once some are evicted

    def restored(self) -> None:
        if self.windows.table.is_whole:
            super().restored()
        else:
            self._changed_starts.update(self.windows.due.starts)

    def cut(self, batch: Batch) -> tuple[int, int] | None:
        return first_multiple(batch, self.windows.operator.watermark_ms, self.interval_ms)

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        row_ids = self.windows.add(rows, starts, batch, of_row, emit)
        if not self.windows.table.is_whole:
            self._changed_starts.update(distinct_ints(starts).tolist())
        elif rows.num_rows:
            self._mark(row_ids)

    def left_memory(self) -> None:
        if self.changed.is_used:
            self.changed.clear()
            self._changed_starts.update(self.windows.due.starts)

    def before(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        windows = self.windows
        if not self.changed.is_used and not self._changed_starts:
            return
        due_ms = (windows.operator.watermark_ms // self.interval_ms + 1) * self.interval_ms
        if due_ms <= watermark_ms and (self._changed_starts or self.changed):
            # event time advances only after all results: a restore finds the same `due_ms`
            yield from windows.fire_over(due_ms, emit)  # windows over by `due_ms` emit no early results
            if self._changed_starts:
                yield from self._tell_starts(due_ms - 1, emit)
            else:
                yield from self._tell_parts(self.changed.row_ids(), due_ms - 1, emit)
            windows.operator.watermark_ms = due_ms

    def _tell_starts(self, reached_ms: int, emit: Emit) -> Iterator[None]:
        """An entry that is read twice emits once: the state shows whether rows are new."""
        for start in sorted(self._changed_starts):
            for row_ids in self.windows.table.entries_of(start):
                yield from self._tell_parts(self.unsaid(row_ids), reached_ms, emit)
                yield
            self._changed_starts.discard(start)

    def _tell_parts(self, row_ids: Ints, reached_ms: int, emit: Emit) -> Iterator[None]:
        for part in self.windows.parts(row_ids):
            if part is not None:
                self.tell(part, reached_ms, emit)
            yield


class EveryWallTime(_Marking):
    evictable = False

    def __init__(self, windows: RuledWindows, interval_ms: int, accumulate: bool) -> None:
        super().__init__(windows, interval_ms, accumulate)
        self._turns = WallTurns(windows.operator.context, interval_ms, self.changed)

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        super().add(rows, starts, batch, of_row, emit)
        if rows.num_rows:
            self._turns.marked()

    def turn(self, emit: Emit) -> bool:
        windows = self.windows

        def tell(row_ids: Ints, emit_ns: int) -> None:
            self.tell(windows.ordered(row_ids), windows.operator.watermark_ms, emit, emit_ns)

        return self._turns.turn(tell)


def first_multiple(batch: Batch, watermark_ms: int, interval_ms: int) -> tuple[int, int] | None:
    """Returns the first row before which event time passes a multiple, and event time there."""
    reached = batch.reached
    if reached is None or not len(reached) or reached[-1] <= watermark_ms:
        return None
    later = reached // interval_ms > watermark_ms // interval_ms
    row = int(np.argmax(later))
    return (row, int(reached[row])) if later[row] else None


class WhenFull(EveryRows):
    """Windows by count: every n rows of a key, a result of these n rows.

    State is an entry per key; with a slide, per key and shift (see `Count`). The entry of shift -n starts as if n times
    slide rows had come before.
    """

    def __init__(self, windows: RuledWindows, rows: int, slide: int) -> None:
        super().__init__(windows, rows, accumulate=False)
        self._slide = slide

    def since(self, row_ids: Ints) -> Ints:
        since = super().since(row_ids)
        if self._slide == self._rows:
            return since
        phases = -np.asarray(self.windows.fields_of(row_ids)[-1], np.int64)
        begins = self.windows.table.columns[FIRINGS][row_ids] == 0
        with_those_before: Ints = since + begins * phases * self._slide
        return with_those_before

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        """Drops incomplete windows at the end of the input."""
        self.windows.remove(row_ids)
