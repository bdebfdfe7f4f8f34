"""Clocks of windows: the time of a row, and the current time.

By *event time* these are a column and the watermarks from upstream.

By the *wall clock* all rows of a batch have the time of arrival, and no row is late. Windows over by then are emitted
before the rows: their watermark is the clock less a millisecond. Of the upstream watermarks only the end of the input
counts: all windows are emitted. After a restore the clock continues from the snapshots' time, or the machine's if
later.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.event_time import check_event_time_type, event_times_ms
from barrier_runtime.data.grouping import extremes
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.keyed.progress import Floors
from barrier_runtime.operators.keyed.wall_timers import WakeUps, WallClock
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted

Ints: TypeAlias = npt.NDArray[np.int64]


class ClockedEntries(Protocol):
    @property
    def next_ms(self) -> int | None: ...

    def tell_early(self, emit: Emit) -> bool: ...


class TimedWindows(Protocol):
    def holds(self, lowest_ms: int, highest_ms: int) -> bool: ...


class Clocked(Protocol):
    where: str
    watermark_ms: int

    @property
    def window(self) -> TimedWindows: ...

    @property
    def entries(self) -> ClockedEntries: ...

    @property
    def going_to_ms(self) -> int | None: ...

    @property
    def floors(self) -> Floors | None: ...

    @property
    def is_bound(self) -> bool: ...

    def arrive(self, emit: Emit) -> None: ...

    def go_on(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool: ...

    def first_goes(self, batch: Batch, row: int, reached_ms: int, emit: Emit) -> bool: ...


@dataclass(frozen=True)
class EventTime:
    """`column`: None for windows that do not depend on the time of rows.
    `were_by_other`: older builds counted these rows by another column; state without the name of the column is not
    continued.
    """

    column: str | None = None
    were_by_other: bool = False
    is_wall_clock = False

    def definition(self, definition: str) -> str:
        return f"{definition}, by {self.column}" if self.were_by_other else definition

    def of(self, operator: Clocked) -> "Time":
        return _EventTime(operator, self.column)


@dataclass(frozen=True)
class WallTime:
    column: str | None = None
    is_wall_clock = True

    def definition(self, definition: str) -> str:
        return f"{definition}, by the wall clock"

    def of(self, operator: Clocked) -> "Time":
        return _WallTime(operator)


class Time(Protocol):
    def opened(self, context: OperatorContext) -> None:
        """Starts the clock after the restore."""

    def check(self, columns: pa.Schema) -> None:
        """Raises `InvalidJob` if the time column has another type."""

    def begins(self, batch: Batch, emit: Emit) -> Batch | None:
        """Returns the rows for the windows; None: the rows were given back for later."""

    def took_rows(self) -> None:
        """Called after the windows have taken the rows."""

    def times_of(self, rows: pa.RecordBatch) -> tuple[Ints, int]:
        """Returns each row's time, and the lowest. At least one row."""
        ...

    def hears(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        """Handles a watermark from upstream. False: not finished (see `Operator.toward`)."""
        ...

    def turn(self, emit: Emit, last: bool) -> bool:
        """See `Operator.on_wall_clock`."""
        ...

    def emit_ns(self, of_rows_ns: int) -> int:
        """`of_rows_ns`: emission time of the newest row."""
        ...


class _EventTime:
    def __init__(self, operator: Clocked, column: str | None) -> None:
        self._operator = operator
        self._column = column

    def opened(self, context: OperatorContext) -> None:
        pass

    def check(self, columns: pa.Schema) -> None:
        if self._column is not None:
            check_event_time_type(columns.field(self._column).type, self._column, self._operator.where)

    def begins(self, batch: Batch, emit: Emit) -> Batch | None:
        return batch

    def took_rows(self) -> None:
        pass

    def times_of(self, rows: pa.RecordBatch) -> tuple[Ints, int]:
        if self._column is None:
            return np.zeros(rows.num_rows, np.int64), 0
        times = rows.column(self._column)
        if times.null_count:
            raise InvalidJob(
                f"{self._operator.where}: {counted(times.null_count, 'row')} without event time in column "
                f"{self._column!r}: "
                f'filter them before, as in .filter(pc.field("{self._column}").is_valid())'
            )
        times_ms = event_times_ms(times)
        lowest_ms, highest_ms = extremes(times_ms)
        if not self._operator.window.holds(lowest_ms, highest_ms):
            raise self._no_window(times_ms)
        return times_ms, lowest_ms

    def _no_window(self, times_ms: Ints) -> InvalidJob:
        holds = self._operator.window.holds
        far = next(time for time in times_ms.tolist() if not holds(time, time))
        return InvalidJob(
            f"{self._operator.where}: a row has the event time {far} ms in column {self._column!r}, whose window does "
            "not lie within 64 bits of milliseconds, so it would never be over: filter or correct such rows before"
        )

    def hears(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        return self._operator.go_on(watermark_ms, emit, in_slices)

    def turn(self, emit: Emit, last: bool) -> bool:
        return not last and self._operator.going_to_ms is None and self._operator.entries.tell_early(emit)

    def emit_ns(self, of_rows_ns: int) -> int:
        return of_rows_ns


class _WallTime:
    def __init__(self, operator: Clocked) -> None:
        self._operator = operator
        self._now_ms = 0

    def opened(self, context: OperatorContext) -> None:
        self._context = context
        self._wake_ups = WakeUps(context.call_later, context.wake)
        self._clock = WallClock(context.wall_ms, context.now_s, self._restored_ms() + 1)

    def _restored_ms(self) -> int:
        """Leaves out the end of an input."""
        told = [self._operator.watermark_ms]
        if self._operator.going_to_ms is not None:
            told.append(self._operator.going_to_ms)
        if self._operator.floors is not None:
            told += self._operator.floors.told_ms
        return max((each for each in told if each != WATERMARK_MAX), default=0)

    def check(self, columns: pa.Schema) -> None:
        pass

    def begins(self, batch: Batch, emit: Emit) -> Batch | None:
        if batch.reached is not None:
            batch = Batch(batch.rows, batch.emit_ns)
        operator = self._operator
        operator.arrive(emit)
        self._now_ms = self._clock.now_ms()
        if self._is_over(self._now_ms) and not operator.first_goes(batch, 0, self._now_ms - 1, emit):
            return None
        operator.watermark_ms = max(operator.watermark_ms, self._now_ms - 1)
        return batch

    def took_rows(self) -> None:
        self._wake_in_time(self._now_ms)

    def times_of(self, rows: pa.RecordBatch) -> tuple[Ints, int]:
        return np.full(rows.num_rows, self._now_ms, np.int64), self._now_ms

    def hears(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        going_to_ms = self._operator.going_to_ms
        if going_to_ms is not None and not self._operator.go_on(going_to_ms, emit, in_slices):
            return False
        return watermark_ms != WATERMARK_MAX or self._operator.go_on(WATERMARK_MAX, emit, in_slices)

    def turn(self, emit: Emit, last: bool) -> bool:
        operator = self._operator
        if last or operator.going_to_ms is not None or not operator.is_bound:
            return False
        now_ms = self._clock.now_ms()
        if self._is_over(now_ms):
            operator.go_on(now_ms - 1, emit, in_slices=True)
            return True
        self._wake_in_time(now_ms)
        return operator.entries.tell_early(emit)  # in turns in which no window is over

    def _is_over(self, now_ms: int) -> bool:
        next_ms = self._operator.entries.next_ms
        return next_ms is not None and self._operator.watermark_ms < now_ms - 1 and next_ms < now_ms

    def _wake_in_time(self, now_ms: int) -> None:
        next_ms = self._operator.entries.next_ms
        if next_ms is not None:
            self._wake_ups.wake_at(next_ms + 1, now_ms)

    def emit_ns(self, of_rows_ns: int) -> int:
        return self._context.wall_ms() * 1_000_000  # however long ago the last row arrived
