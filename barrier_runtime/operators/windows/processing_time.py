"""Windows of the times at which rows come, by the wall clock of their subtask: nothing is late, and nothing waits.

All rows of a batch have the time that the clock says when the batch comes. What is over by then goes out before them,
so the watermark of these windows is the clock less one millisecond: it is in snapshots as the watermark of event time
is, and floors, slices and restores are those of event time. That of upstream is only forwarded.

    what happens            what comes of it
    rows                    windows that are over go out, then the rows get the time; the slot is woken at the next end
    a wake-up, a turn       windows that are over go out, in slices
    a watermark             nothing
    the end of the input    all windows go out, since no row comes any more
    a restore               the clock goes on from what snapshots say, or from the machine's where that is further: so
                            no row is in a window that has gone out. What is over by then goes out in the first turn

What windows of event time may be is mixed in: functions of whole windows, the first rows by a column, early results.
Those by the wall clock come in turns in which no window is over.
"""

from typing import Any

import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.keyed.wall_clock import WakeUps, WallClock
from barrier_runtime.operators.windows.aggregate import WindowAggregateOperator
from barrier_runtime.operators.windows.base import Ints, WindowOperator
from barrier_runtime.operators.windows.early import EarlyWindowOperator, WallClockWindowOperator
from barrier_runtime.operators.windows.sessions.aggregate import SessionAggregateOperator
from barrier_runtime.operators.windows.sessions.updates import SessionUpdatesOperator, WallClockSessionOperator
from barrier_runtime.operators.windows.whole.apply import ApplyOperator
from barrier_runtime.operators.windows.whole.top import TopOperator


def wall_clock_definition(definition: str) -> str:
    """The definition of the same windows by the wall clock."""
    return f"{definition}, by the wall clock"


class _ProcessingTime(WindowOperator):
    """Made with `event_time=None`."""

    _now_ms = 0  # of the rows at hand

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.definition = wall_clock_definition(self.definition)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._wake_ups = WakeUps(context.call_later, context.wake)
        self._clock = WallClock(context.wall_ms, context.now_s, self._restored_ms() + 1)

    def _restored_ms(self) -> int:
        """The furthest that any key group of it was, but for the end of an input."""
        told = [self._watermark_ms]
        if self._going_to_ms is not None:
            told.append(self._going_to_ms)
        if self._floors is not None:
            told += self._floors.told_ms
        return max((each for each in told if each != WATERMARK_MAX), default=0)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if batch.reached is not None:  # event time, which is nothing here
            batch = Batch(batch.rows, batch.emit_ns)
        self._arrive(emit)
        self._now_ms = self._clock.now_ms()
        if self._is_over(self._now_ms) and not self._first_goes(batch, 0, self._now_ms - 1, emit):
            return
        self._watermark_ms = max(self._watermark_ms, self._now_ms - 1)
        super().process(batch, emit)
        self._wake_in_time(self._now_ms)

    def _times_of(self, batch: Batch) -> Ints | None:
        times_ms = super()._times_of(batch)
        if times_ms is not None:
            self._lowest_ms = self._now_ms
            times_ms.fill(self._now_ms)
        return times_ms

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._hear(watermark_ms, emit, in_slices=False)

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        return self._hear(watermark_ms, emit, in_slices=True)

    def _hear(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        if self._going_to_ms is not None and not self._go_on(self._going_to_ms, emit, in_slices):
            return False
        return watermark_ms != WATERMARK_MAX or self._go_on(WATERMARK_MAX, emit, in_slices)

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        if last or self._going_to_ms is not None or self._bound is None:  # the end comes as a watermark
            return False
        now_ms = self._clock.now_ms()
        if self._is_over(now_ms):
            self._go_on(now_ms - 1, emit, in_slices=True)
            return True
        self._wake_in_time(now_ms)
        return super().on_wall_clock(emit, last)  # early results

    def _is_over(self, now_ms: int) -> bool:
        """Whether a window may be over that has not gone out."""
        next_ms = self._next_ms()
        return next_ms is not None and self._watermark_ms < now_ms - 1 and next_ms < now_ms

    def _wake_in_time(self, now_ms: int) -> None:
        next_ms = self._next_ms()
        if next_ms is not None:
            self._wake_ups.wake_at(next_ms + 1, now_ms)

    def _next_ms(self) -> int | None:
        """No window is over before the watermark is there. None: there is no window."""
        raise NotImplementedError

    def _send(self, results: pa.RecordBatch, reached: Ints, emit: Emit, emit_ns: int | None = None) -> None:
        super()._send(results, reached, emit, self.context.wall_ms() * 1_000_000)  # however long ago the last row came


class ProcessingTimeWindowOperator(_ProcessingTime, WindowAggregateOperator):
    """Tumbling and sliding windows."""

    def _next_ms(self) -> int | None:
        first = self._due.first
        return None if first is None else self._window.last_ms(first)


class ProcessingTimeApplyOperator(ProcessingTimeWindowOperator, ApplyOperator):
    """The same, whose rows a user's function gets in the order in which they came."""


class ProcessingTimeTopOperator(ProcessingTimeWindowOperator, TopOperator):
    """The same, of which the first rows by a column go out."""


class ProcessingTimeCountingOperator(ProcessingTimeWindowOperator, EarlyWindowOperator):
    """The same, told early after each so many rows."""


class ProcessingTimeEarlyOperator(ProcessingTimeWindowOperator, WallClockWindowOperator):
    """The same, told early by the wall clock."""


class ProcessingTimeSessionOperator(_ProcessingTime, SessionAggregateOperator):
    _due_steps = 1_024

    def _next_ms(self) -> int | None:
        return self._open.next_ms


class ProcessingTimeCountingSessionOperator(ProcessingTimeSessionOperator, SessionUpdatesOperator):
    """Sessions that are told early after each so many rows."""


class ProcessingTimeEarlySessionOperator(ProcessingTimeSessionOperator, WallClockSessionOperator):
    """Sessions that are told early by the wall clock."""
