"""The window operator, composed of an assigner, a trigger, a clock and a content.
Design: docs/design/windows.md.

Work due at a watermark is done in turns, without rows in between, so state alone shows the remaining work: windows that
are over and still present.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.coordinator.metric_table import LATE_ROWS
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.plain_rows import plain_schema
from barrier_runtime.operators.aggregation.own import AnyAggregate, columns_used
from barrier_runtime.operators.aggregation.partials import refuse_partial_rows, rows_of
from barrier_runtime.operators.aggregation.plan import AggregationPlan
from barrier_runtime.operators.base import Capture, Emit, OperatorContext
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.keyed.progress import Floors, Progress, check_same, columns_of
from barrier_runtime.operators.keyed.timers import SLICE_S
from barrier_runtime.operators.outputs.side_outputs import warn_of_first_late
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.clocks import EventTime, WallTime
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import InvalidJob

LATE = "late rows"
SLICE_STEPS = 8  # ends a turn even if the clock stands still

Ints: TypeAlias = npt.NDArray[np.int64]


class Entries(Protocol):
    @property
    def next_ms(self) -> int | None: ...

    def bind(self, columns: pa.Schema) -> None: ...

    def process(self, batch: Batch, emit: Emit) -> None: ...

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]: ...

    def reach_floors(self, emit: Emit) -> Iterator[None]: ...

    def tell_early(self, emit: Emit) -> bool: ...

    def captured(self, capture: Capture) -> None: ...


class Content(Protocol):
    holds_rows: bool  # rows themselves are kept, so their schema is fixed

    @property
    def aggregates(self) -> Mapping[str, AnyAggregate]: ...

    def definition(self, window: WindowAssigner, lateness_ms: int, trigger: WindowTrigger | None) -> str: ...

    def entries(self, operator: "WindowOperator") -> Entries:
        """Called after event time is restored."""
        ...


class WindowOperator(KeyedOperator):
    kind = "window"
    namespaces: ClassVar[Mapping[str, int]] = {"windows": 1, "rows": 2}
    _way: Iterator[None] | None = None  # remaining steps on the way to `_going_to_ms`
    _rest: Batch | None = None
    _behind_floors = False  # restored on the way, from subtasks at different times

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: WindowAssigner,
        clock: EventTime | WallTime,
        content: Content,
        schema: pa.Schema | None = None,
        late: bool = False,
        lateness_ms: int = 0,
        trigger: WindowTrigger | None = None,
    ) -> None:
        """Rows too late for all of their windows go to the side output `LATE` if `late`, else are counted.
        `lateness_ms`: how long windows that are over are kept."""
        times = [] if clock.column is None else [clock.column]
        super().__init__(name, keys, [*keys, *times], schema, columns_used(content.aggregates.values()))
        if content.holds_rows:
            assert schema is not None
            self._columns = tuple(schema.names)
        self.window = window
        self.clock = clock
        self.content = content
        self.lateness_ms = lateness_ms
        self.trigger = trigger or window.own_trigger
        self.definition = clock.definition(content.definition(window, lateness_ms, trigger))
        self._late = late
        self.by_row = False  # event time is carried per row, also for readers of the results

    def _restore_progress(self, context: OperatorContext) -> Progress:
        progress = super()._restore_progress(context)
        self._time = self.clock.of(self)
        self.entries = self.content.entries(self)
        return progress

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._behind_floors = self._going_to_ms is not None and self._floors is not None
        self._time.opened(context)

    def bind(self, columns: pa.Schema) -> None:
        self._time.check(columns)
        self.entries.bind(columns)

    def _restored_columns(self, stored: pa.Schema) -> pa.Schema:
        if not self.content.holds_rows:
            return super()._restored_columns(stored)
        # Held rows are bytes without a schema.
        assert self._declared is not None
        check_same(columns_of(plain_schema(self._declared), self._columns, self.where), stored, self.where)
        return stored

    def table(
        self, plan: AggregationPlan, more: Mapping[str, tuple[str, object]], evictable: bool, in_slices: bool
    ) -> ColumnTable:
        columns = {**more, **plan.storage()}
        self._table = self._column_table("windows", columns, plan.added(), evictable, True, in_slices)
        return self._table

    def snapshot(self, checkpoint: int) -> Capture:
        capture = super().snapshot(checkpoint)
        self.entries.captured(capture)
        return capture

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._key_columns

    @property
    def known_columns(self) -> frozenset[str]:
        """Columns of the restored state; empty if unknown."""
        return self._known_columns()

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        now = self._time.begins(batch, emit)
        if now is not None:
            self.entries.process(now, emit)
            self._time.took_rows()

    def on_input_schema(self, schema: pa.Schema) -> None:
        if self.content.holds_rows:
            refuse_partial_rows(schema, self.where)

    def times_of(self, batch: Batch) -> Ints | None:
        """Returns each row's time in ms and sets `lowest_ms`; None: no rows."""
        self._check(batch.rows.schema)
        if self._watermark_ms == WATERMARK_MAX:
            raise InvalidJob(
                f"{self.where}: this job had read all of its input and closed every window, so rows added since would "
                "all be late. Run them under another name, or all rows anew: restore='none' with allow_replay=True"
            )
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        self.by_row = self.by_row or batch.reached is not None
        if not batch.rows.num_rows:
            return None
        times_ms, self.lowest_ms = self._time.times_of(batch.rows)
        return times_ms

    def row_watermarks(self, batch: Batch) -> Ints | None:
        """Returns event time at each row, however batches are cut; None: `watermark_ms` at all rows."""
        return self._row_watermarks(batch)

    def give_late(self, batch: Batch, late: npt.NDArray[np.bool_], emit: Emit) -> None:
        if self._late:
            refuse_partial_rows(batch.schema, self.where)
            emit.to(LATE, batch.only(batch.rows.filter(pa.array(late)), late))
        else:
            warn_of_first_late(self.metrics, LATE_ROWS, self.where, late, partial(self._late_times, batch))
            self.metrics.count(LATE_ROWS, float(rows_of(batch.rows)[late].sum()))

    def _late_times(self, batch: Batch) -> tuple[Ints, Ints]:
        times_ms, _ = self._time.times_of(batch.rows)
        watermarks = self.row_watermarks(batch)
        return times_ms, np.full(len(batch), self._watermark_ms) if watermarks is None else watermarks

    @property
    def rows_emit_ns(self) -> int:
        return self._emit_ns

    def emit_ns(self) -> int:
        return self._time.emit_ns(self._emit_ns)

    @property
    def watermark_ms(self) -> int:
        return self._watermark_ms

    @watermark_ms.setter
    def watermark_ms(self, watermark_ms: int) -> None:
        self._watermark_ms = watermark_ms

    @property
    def floors(self) -> Floors | None:
        """Time of key groups that are ahead of the subtask, after a restore."""
        return self._floors

    @property
    def going_to_ms(self) -> int | None:
        return self._going_to_ms

    @property
    def is_bound(self) -> bool:
        """Returns True once there may be windows."""
        return self._bound is not None

    def take_rest(self) -> Batch | None:
        rest, self._rest = self._rest, None
        return rest

    @property
    def rest(self) -> Batch | None:
        return self._rest

    @rest.setter
    def rest(self, rest: Batch | None) -> None:
        self._rest = rest

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._time.hears(watermark_ms, emit, in_slices=False)

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        return self._time.hears(watermark_ms, emit, in_slices=True)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        return self._time.turn(emit, last)

    def go_on(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        """Advances time to `watermark_ms`. False: the turn is over first."""
        if self._going_to_ms is None and watermark_ms <= self._watermark_ms:
            return True
        if self._bound is None:
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
        return going_to_ms is None or watermark_ms <= going_to_ms or self.go_on(watermark_ms, emit, in_slices)

    def arrive(self, emit: Emit) -> None:
        """Finishes advancing. A subtask calls this before it passes a batch."""
        while (going_to_ms := self._going_to_ms) is not None:
            self.go_on(going_to_ms, emit, in_slices=False)

    def first_goes(self, batch: Batch, row: int, reached_ms: int, emit: Emit) -> bool:
        """Advances time to `reached_ms` before row `row`.
        False: the turn is over first, and rows from there on are given back."""
        if self.go_on(reached_ms, emit, self.stops):
            return True
        self._rest = batch.slice(row)
        return False

    def _steps(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if self._behind_floors:
            self._behind_floors = False
            if self._floors is not None:
                yield from self.entries.reach_floors(emit)
        yield from self.entries.reach(watermark_ms, emit)

    def reached_by(self, columns: Sequence[pa.Array]) -> Ints:
        assert self._floors is not None
        return self._floors.watermarks(columns, self._watermark_ms)
