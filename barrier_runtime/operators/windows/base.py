"""What all window operators share: aggregates in a columnar table per (keys, window), and how their results go out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import LATE_ROWS
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.event_time import check_event_time_type, event_times_ms
from barrier_runtime.data.grouping import extremes, order_of_ints
from barrier_runtime.data.keys import sort_rows
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import Left
from barrier_runtime.operators.aggregation.described import describe_aggregates
from barrier_runtime.operators.aggregation.own import AnyAggregate, columns_used
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Columns
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.keyed.timers import SLICE_S
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows.assigners import Session, WindowAssigner
from barrier_runtime.state.errors import InvalidJob

LATE = "late rows"  # tag of the side output
UPDATE = "update"  # output column of windows that may fire again
EARLY = "early"  # output column of windows with early results: whether this is one
RETRACTED = "retracted"  # output column of sessions that are told more than once: what was told is no session any more
_MAX_ROWS = 65_536  # of one emitted batch
SLICE_STEPS = 8  # also where a clock stands still
_TIME = pa.timestamp("ms", "UTC")

SPAN = (pa.field("window_start", _TIME), pa.field("window_end", _TIME))

Ints: TypeAlias = npt.NDArray[np.int64]


class WindowOperator(KeyedOperator):
    """Entries are keyed by the key columns and one int64 more, the start of the window.

    What a watermark brings is done in slices. On the way to it the operator takes no row, so state alone says what is
    left to do: what is over and still there. A snapshot says where event time is going to, too, and what is restored
    goes there before its first row.
    """

    kind = "window"
    namespaces: ClassVar[Mapping[str, int]] = {"windows": 1}
    _way: Iterator[None] | None = None  # what is left to do on the way to `_going_to_ms`, in steps
    _rest: Batch | None = None  # rows that `process` gave back
    _in_slices = False  # entries are slices of windows, see `sliding`
    _behind_floors = False  # restored on the way, by subtasks that were not equally far

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner | Session,
        event_time: str | None,
        aggregates: Mapping[str, AnyAggregate],
        schema: pa.Schema | None = None,
        late: bool = False,
    ) -> None:
        """`event_time`: None of windows that are not of event time. `late`: rows that are too late for all of their
        windows go to the side output `LATE`; else they are dropped and counted."""
        used = columns_used(aggregates.values())
        super().__init__(name, keys, [*keys, *([] if event_time is None else [event_time])], schema, used)
        self.definition = window.definition
        self._holds = window.holds
        self._event_time = event_time
        self._aggregates = dict(aggregates)
        self._late = late
        self._by_row = False  # event time is told row by row, to those who read the results, too

    def _bind_table(
        self,
        columns: pa.Schema,
        more: Mapping[str, tuple[str, Any]],
        beside: Sequence[pa.Field] = SPAN,
        evictable: bool = False,
    ) -> None:
        """`more`: columns of state besides those of the aggregates. `beside`: of results, see `window_schema`.
        `evictable`: entries may leave memory (see `ColumnTable`)."""
        if self._event_time is not None:
            check_event_time_type(columns.field(self._event_time).type, self._event_time, self.where)
        self._plan = plan_aggregates(self._aggregates, columns, self.where, self._known_columns())
        self._output = window_schema(columns, self._key_columns, self._aggregates, self.where, beside)
        storage = {**more, **self._plan.storage()}
        self._table = self._column_table("windows", storage, self._plan.added(), evictable, True, self._in_slices)
        describe_aggregates(self.backend, self._aggregates, self.where, first=self.context.subtask == 0)
        self._bounds = SumBounds()

    # ---- event time

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._behind_floors = self._going_to_ms is not None and self._floors is not None

    @property
    def going_to_ms(self) -> int | None:
        return self._going_to_ms

    def take_rest(self) -> Batch | None:
        rest, self._rest = self._rest, None
        return rest

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._go_on(watermark_ms, emit, in_slices=False)

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        return self._go_on(watermark_ms, emit, in_slices=True)

    def _go_on(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        """False: the slice is over, and event time not there yet."""
        if self._going_to_ms is None and watermark_ms <= self._watermark_ms:
            return True
        if self._bound is None:  # no row came yet, so there is no window
            self._watermark_ms, self._going_to_ms = max(watermark_ms, self._going_to_ms or watermark_ms), None
            return True
        if self._way is None:
            self._going_to_ms = max(watermark_ms, self._going_to_ms or watermark_ms)
            self._way = self._steps(self._going_to_ms, emit)
        until_s = self.context.now_s() + SLICE_S
        for steps, _ in enumerate(self._way, 1):
            if in_slices and (steps >= SLICE_STEPS or self.context.now_s() >= until_s):
                return False
        going_to_ms, self._going_to_ms, self._way = self._going_to_ms, None, None
        return going_to_ms is None or watermark_ms <= going_to_ms or self._go_on(watermark_ms, emit, in_slices)

    def _arrive(self, emit: Emit) -> None:
        """A subtask has done that before it gives a batch."""
        while (going_to_ms := self._going_to_ms) is not None:
            self._go_on(going_to_ms, emit, in_slices=False)

    def _first_goes(self, batch: Batch, row: int, reached_ms: int, emit: Emit) -> bool:
        """Event time goes on to `reached_ms` before row `row` of a batch. False: that takes more than a slice, and the
        rows from there on are given back."""
        if self._go_on(reached_ms, emit, self.stops):
            return True
        self._rest = batch.slice(row)
        return False

    def _steps(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if self._behind_floors:
            self._behind_floors = False
            if self._floors is not None:
                yield from self._reach_floors(emit)
        yield from self._reach(watermark_ms, emit)

    def _reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        """All that event time `watermark_ms` brings, with a step after each part of it."""
        raise NotImplementedError

    def _reach_floors(self, emit: Emit) -> Iterator[None]:
        """Emit what is over by the event time of its key group, which the subtask has not reached."""
        raise NotImplementedError

    def _floors_of(self, row_ids: Ints) -> Ints:
        """Event time of the key group of each of these entries."""
        assert self._floors is not None
        if not len(row_ids):
            return np.zeros(0, np.int64)
        keys = zip(*self._table.keys_of(row_ids), strict=True)
        columns = [self.codec.column(i, values) for i, values in zip(range(len(self._key_columns)), keys, strict=False)]
        return self._floors.watermarks(columns, self._watermark_ms)

    def _parts(self, row_ids: Ints, by: Ints | None = None) -> Iterator[Ints | None]:
        """`row_ids` by window and keys, part by part (see `in_order`). `by`: their order before that, per row id of
        the table."""

        def order(some: Ints) -> Ints:
            return self._ordered(some, None if by is None else by[some])

        if len(row_ids) and self._table.int_keys_of(row_ids[:1]) is None:
            return firing.in_order(row_ids, order, firing.FEW_TUPLES, firing.PART_TUPLES)

        def fields_of(some: Ints) -> list[Ints]:
            *keys, starts = self._fields_of(some)
            return [*([] if by is None else [by[some]]), starts, *keys]

        return firing.ints_in_order(row_ids, fields_of, firing.FEW, firing.PART)

    # ---- rows

    def _times_of(self, batch: Batch) -> Ints | None:
        """Event time of each row in milliseconds, of which `_lowest_ms` is the lowest; None when there are no rows."""
        rows = batch.rows
        self._check(rows.schema)
        if self._watermark_ms == WATERMARK_MAX:
            raise InvalidJob(
                f"{self.where}: this job had read all of its input and closed every window, so rows added since would "
                "all be late. Run them under another name, or all rows anew: restore='none' with allow_replay=True"
            )
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        self._by_row = self._by_row or batch.reached is not None
        if self._event_time is None:
            self._lowest_ms = 0
            return np.zeros(rows.num_rows, np.int64) if rows.num_rows else None
        times = rows.column(self._event_time)
        if times.null_count:
            raise InvalidJob(
                f"{self.where}: {times.null_count} rows have no event time in column {self._event_time!r}: "
                f'filter them before, as in .filter(pc.field("{self._event_time}").is_valid())'
            )
        if not rows.num_rows:
            return None
        times_ms = event_times_ms(times)
        self._lowest_ms, highest_ms = extremes(times_ms)
        if not self._holds(self._lowest_ms, highest_ms):
            raise self._no_window(times_ms)
        return times_ms

    def _no_window(self, times_ms: Ints) -> InvalidJob:
        far = next(time for time in times_ms.tolist() if not self._holds(time, time))
        return InvalidJob(
            f"{self.where}: a row has the event time {far} ms in column {self._event_time!r}, whose window does not "
            "lie within 64 bits of milliseconds, so it would never be over: filter or correct such rows before"
        )

    def _give_late(self, batch: Batch, late: npt.NDArray[np.bool_], emit: Emit) -> None:
        """Rows of `batch` that count in no window, by a mask."""
        if self._late:
            emit.to(LATE, batch.only(batch.rows.filter(pa.array(late)), late))
        else:
            self.metrics.count(LATE_ROWS, float(np.count_nonzero(late)))

    def _left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self._plan.left(self.where, column, self._table.keys_of(np.array([row_id]))[0][:-1], aggregate)

    def _fields_of(self, row_ids: Ints) -> list[Any]:
        """One sequence per field of the keys of these entries."""
        ints = self._table.int_keys_of(row_ids)
        return list(ints) if ints is not None else list(zip(*self._table.keys_of(row_ids), strict=True))

    def _ordered(self, row_ids: Ints, by: Ints | None = None) -> Ints:
        """`row_ids` by window and keys. `by`: their order before that, per row id."""
        if not len(row_ids):
            return row_ids
        *keys, starts = self._fields_of(row_ids)
        first = [] if by is None else [by]
        if isinstance(starts, np.ndarray):
            ordered: Ints = row_ids[order_of_ints([*first, starts, *keys])]
            return ordered
        columns = [pa.array(starts), *(self.codec.column(i, values) for i, values in enumerate(keys))]
        by_keys: Ints = row_ids[sort_rows([*map(pa.array, first), *columns])]
        return by_keys

    def _results(
        self,
        row_ids: Ints,
        fields: list[Any],
        ends: Ints,
        accumulators: Columns,
        updates: Ints | None = None,
        early: bool | npt.NDArray[np.bool_] = False,
        retracted: bool = False,
        of_id: Left | None = None,
    ) -> pa.RecordBatch:
        """Rows of output, one per entry of `row_ids` and of `accumulators`. `fields`: of their keys. `of_id`: what to
        raise for a result that does not fit its type, where ids are not those of the table."""

        def left(column: str, row: int, aggregate: str = "sum_", /) -> Exception:
            return (of_id or self._left)(column, int(row_ids[row]), aggregate)

        *keys, starts = fields
        beside = {
            "window_start": lambda: pa.array(np.array(starts, np.int64)).view(_TIME),
            "window_end": lambda: pa.array(ends).view(_TIME),
            UPDATE: lambda: pa.array(updates),
            EARLY: lambda: pa.array(np.full(len(row_ids), early, np.bool_)),
            RETRACTED: lambda: pa.array(np.full(len(row_ids), retracted, np.bool_)),
        }
        first = len(keys)
        return pa.RecordBatch.from_arrays(
            [
                *[self.codec.column(i, values) for i, values in enumerate(keys)],
                *[beside[name]() for name in self._output.names[first : len(self._output) - len(self._plan.outputs)]],
                *[output.column(accumulators, left) for output in self._plan.outputs],
            ],
            schema=self._output,
        )

    def _accumulators(self, row_ids: Ints) -> Columns:
        return {name: column[row_ids] for name, column in self._table.columns.items()}

    def _send(self, results: pa.RecordBatch, reached: Ints, emit: Emit, emit_ns: int | None = None) -> None:
        """`reached`: where event time is just before each of the results, wherever batches end."""
        fired = Batch(results, self._emit_ns if emit_ns is None else emit_ns, reached if self._by_row else None)
        for first in range(0, results.num_rows, _MAX_ROWS):
            emit(fired.slice(first, _MAX_ROWS))


def window_schema(
    schema: pa.Schema,
    keys: Sequence[str],
    aggregates: Mapping[str, AnyAggregate],
    where: str,
    beside: Sequence[pa.Field] = SPAN,
) -> pa.Schema:
    """Keys, what results say of their window (`beside`, see `told_of_windows`), then the aggregates."""
    return pa.schema(
        [
            *[pa.field(key, schema.field(key).type) for key in keys],
            *beside,
            *plan_aggregates(aggregates, schema, where).fields(),
        ]
    )


def told_of_windows(
    bounded: bool = True, updates: bool = False, early: bool = False, retracted: bool = False
) -> tuple[pa.Field, ...]:
    """Columns between keys and aggregates: `window_start`, `window_end` (exclusive; timestamps in ms, UTC) of windows
    that have them, `update` if windows may fire again, `early` if they do so before they are over, `retracted` if
    what was told of them may be taken back."""
    return (
        *(SPAN if bounded else ()),
        *([pa.field(UPDATE, pa.int64())] if updates or early else []),
        *([pa.field(EARLY, pa.bool_())] if early else []),
        *([pa.field(RETRACTED, pa.bool_())] if retracted else []),
    )
