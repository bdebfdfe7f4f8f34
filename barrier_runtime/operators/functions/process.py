"""`process`: the user's function of a row and its key, with state and timers bound to this key."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import check_event_time_type, event_times_ms
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.values.references import references
from barrier_runtime.operators.base import Capture, Emit, OperatorContext
from barrier_runtime.operators.functions.columns_read import Reads, each_row_read, each_row_tried, row_again, rows_read
from barrier_runtime.operators.functions.declared import check_event_time_of_states, declared_states
from barrier_runtime.operators.functions.row_functions import YieldedRows
from barrier_runtime.operators.functions.user_metrics import UserMetrics
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.operators.keyed.progress import Reclaiming
from barrier_runtime.operators.keyed.timers import TABLE, Slice, Timers
from barrier_runtime.operators.keyed.wall_timers import WALL_TABLE, UndoableTimers, UndoableWallTimers, WallTimers
from barrier_runtime.operators.outputs.failures import Failures, guarded
from barrier_runtime.operators.outputs.side_outputs import EmittedByCall, OnError, SideOutputs
from barrier_runtime.operators.retry import RetriedCall, Retry
from barrier_runtime.operators.state.handle import CurrentKey, KeyedState, NoKey, States
from barrier_runtime.operators.state.ttl import Timing
from barrier_runtime.operators.uncopyable import own_function
from barrier_runtime.operators.user_code import (
    Context,
    WatchedAttributes,
    close_function,
    function_name,
    open_function,
    user_error,
)
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from barrier_runtime.state.values.undo import Undo


class ProcessContext(Context):
    """`ctx` of a keyed function.

    `key`: of the row or timer: the column's value, or a tuple of several columns' values. `timestamp`: event time (ms)
    of the row (with `event_time=`; None if null) or of the timer; None in a wall-clock timer. `watermark`: event time
    (ms) of the stream; in an event-time timer the time of the timer; without `event_time=` and timers the watermark may
    lag by 10 ms. `state`: the states by name. `timers`: `register(ms)` and `delete(ms)`. `wall_timers`: the same by the
    wall clock, and `after(timedelta)`. `emit(name, row)`: sends a row, as it is now, to a side output. `metrics`:
    `counter(name).inc()`, `gauge(name).set(value)` and `histogram(name).record(value)`, exported with the step's
    metrics. `operator`: the step's name; `subtask`: number of the subtask.
    """

    __slots__ = (
        "emit",
        "key",
        "metrics",
        "operator",
        "state",
        "subtask",
        "timers",
        "timestamp",
        "wall_timers",
        "watermark",
    )

    def __init__(
        self,
        operator: str,
        subtask: int,
        watermark: int,
        timers: Timers,
        wall_timers: WallTimers,
        state: States,
        sides: SideOutputs,
        metrics: UserMetrics,
    ) -> None:
        self.key: Any = None
        self.timestamp: int | None = None
        self.watermark = watermark
        self.timers = timers
        self.wall_timers = wall_timers
        self.state = state
        self.operator = operator
        self.subtask = subtask
        self.emit = sides.emit
        self.metrics = metrics


def no_key(where: str, function: str) -> Any:
    """Replacement of the key that refuses every use, while `function` runs without a key."""
    return NoKey(
        f"{where}: {function} uses {{}}, which belongs to a key, but it runs for no key: use it where there is one, in "
        "the function that gets rows by key, in on_timer() or in on_wall_timer()"
    )


class ProcessOperator(KeyedOperator):
    kind = "process"

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        function: Any,
        states: Mapping[str, KeyedState] | None = None,
        event_time: str | None = None,
        output: pa.Schema | RowClass | None = None,
        schema: pa.Schema | None = None,
        side: Mapping[str, pa.Schema | RowClass] | None = None,
        on_error: OnError | Retry = "fail",
        rows: RowClass | None = None,
    ) -> None:
        super().__init__(name, keys, keys, schema)
        self._function = function
        self._extra = dict(states or {})
        self._event_time = event_time
        self._output = output
        self._rows = rows
        self._sides = SideOutputs(self.where, side or {})
        self._on_error = on_error
        self._failures: Failures | None = None
        self._current = self._made_current()
        self._undo = self._current.undo = Undo() if isinstance(on_error, Retry) else None
        self._by_row = False
        self._attributes: WatchedAttributes | None = None
        self._reclaiming: Reclaiming | None = None
        self._reads: Reads = None
        self._rest: Batch | None = None  # of a batch within which a slice ended
        self._came_by_timer_ms: int | None = None  # event time, if advanced by a timer of this time
        self._to_close: Any = None  # the user's object, once open() has returned

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._going_to_ms is not None:
            self._came_by_timer_ms = self._watermark_ms

    def _made_current(self) -> CurrentKey:
        return CurrentKey()

    def bind(self, columns: pa.Schema) -> None:
        width = len(self._key_columns)
        target, self._call = own_function(self._function, "process", f"process {self.name!r}", self._failed)
        where = f"{function_name(self._call)} of operator {self.name!r}"
        self._reads = rows_read(self._call, 1, self._rows)
        self._on_timer = getattr(target, "on_timer", None)
        self._on_wall_timer = getattr(target, "on_wall_timer", None)
        self.by_clock = self._on_wall_timer is not None
        self._writer = RowWriter(where, self._output)
        if isinstance(self._on_error, Retry):
            self._repeat()
        elif self._on_error != "fail":
            self._guard(Failures(self._on_error, self.name, function_name(self._call)))
        self._target = target
        self._replaceable: dict[str, KeyedState] = {}
        state, states = States(), declared_states(target, self._extra)
        check_event_time_of_states(states, self._event_time, self.where)
        timing = self._current.timing = self._timing = Timing(self.context.wall_ms, lambda: self._watermark_ms)
        for name, declared in states.items():
            where = f"{self.where}, state {name!r}"
            holder = "ctx.state" if name in self._extra else "self"
            handle = declared.open(self.backend, name, where, width, self._current, holder)
            vars(state)[name] = handle
            if name not in self._extra:
                if not hasattr(target, "__dict__"):
                    raise InvalidJob(
                        f"{self.where}: {type(target).__name__} has __slots__, so it can hold no state: drop them"
                    )
                vars(target)[name] = handle
                if not isinstance(getattr(type(target), name, None), KeyedState):
                    self._replaceable[name] = handle
        name = function_name(self._call)
        timers_table, wall_table = (self.backend.timer_table(table, width) for table in (TABLE, WALL_TABLE))
        from_ms, wall_from_ms = (self._timers_from_ms.get(table, WATERMARK_MIN) for table in (TABLE, WALL_TABLE))
        of_event_time = (timers_table, self._current, None if self._on_timer else name, from_ms)
        deaf = None if self._on_wall_timer else name
        of_wall_clock = (wall_table, self._current, self.context, deaf, wall_from_ms)
        if self._undo is None:
            self._timers, self._wall_timers = Timers(*of_event_time), WallTimers(*of_wall_clock)
        else:
            self._timers = timers = UndoableTimers(*of_event_time)
            self._wall_timers = wall_timers = UndoableWallTimers(*of_wall_clock)
            for part in (EmittedByCall(self._sides), timers, wall_timers):
                self._undo.add(part)
        self._context = ProcessContext(
            self.name,
            self.context.subtask,
            self._watermark_ms,
            self._timers,
            self._wall_timers,
            state,
            self._sides,
            UserMetrics(self.where, self.metrics, self._undo),
        )
        timing.event.context = self._context
        if timing.tables:
            self._reclaiming = Reclaiming(timing, self.backend, self.context, self.where)
        self._current.key = no_key(self.where, "open()")
        open_function(target, self._context, self._failed)
        self._sides.check_none("open()")
        self._attributes = WatchedAttributes(target, self.where)
        self._to_close = target

    def _guard(self, failures: Failures) -> None:
        self._failures = failures
        failures.opened(self.context)
        take, sides = self._take, self._sides
        self._call = guarded(self._call, take, sides, failures, of_rows=True)
        if self._on_timer is not None:
            self._on_timer = guarded(self._on_timer, take, sides, failures, of_rows=False)
        if self._on_wall_timer is not None:
            self._on_wall_timer = guarded(self._on_wall_timer, take, sides, failures, of_rows=False)

    def _take(self, result: Any, rows: list[Row], given: Callable[[], Row]) -> None:
        self._writer.take(self._writer.each(result), rows, given)

    def _repeat(self) -> None:
        self._call = self._repeated(self._call)
        if self._on_timer is not None:
            self._on_timer = self._repeated(self._on_timer, "timer")
        if self._on_wall_timer is not None:
            self._on_wall_timer = self._repeated(self._on_wall_timer, "timer")

    def _repeated(self, call: Any, what: str = "row") -> Any:
        assert isinstance(self._on_error, Retry)
        return RetriedCall(call, self._on_error, True, what=what, undo=self._undo)

    def _nothing_given(self) -> YieldedRows:
        return YieldedRows(self._by_row)

    def _begin(self, batch: Batch | None, reached_ms: int | None) -> None:
        self._sides.begin(reached_ms)
        if self._failures is not None:
            self._failures.begin(batch)

    def _flush_sides(self, emit: Emit, emit_ns: int) -> None:
        self._sides.flush(emit, emit_ns, self.metrics)
        if self._failures is not None:
            self._failures.flush(emit, emit_ns)

    def visit(self, rows: pa.RecordBatch, at_ms: int | None = None) -> None:
        """For harnesses: binds states and timers to the key of the single row of `rows`."""
        self._check(rows.schema)
        self._current.key = self.codec.state_keys(rows)[0]
        self._context.timestamp = at_ms
        if self._reclaiming is not None:
            self._reclaiming.begin()

    @property
    def states(self) -> dict[str, KeyedState]:
        return dict(vars(self._context.state))

    @property
    def timers(self) -> Timers:
        return self._timers

    @property
    def wall_timers(self) -> WallTimers:
        return self._wall_timers

    def snapshot(self, checkpoint: int) -> Capture:
        if self._attributes is not None and self.backend.watched:
            self._attributes.look()
        if self._reclaiming is not None:
            self._reclaiming.snapshot(checkpoint)
        if self._bound is not None:
            self._timers_from_ms = {TABLE: self._timers.lowest_ms, WALL_TABLE: self._wall_timers.lowest_ms}
        return super().snapshot(checkpoint)

    def on_complete(self, checkpoint: int) -> None:
        super().on_complete(checkpoint)
        if self._reclaiming is not None:
            self._reclaiming.completed(checkpoint)

    def close(self) -> None:
        if self._reclaiming is not None:
            self._reclaiming.close()
        self._current.key = no_key(self.where, "close()")
        self._sides.begin(None)
        try:
            target, self._to_close = self._to_close, None
            close_function(target, self._failed)
            self._sides.check_none("close()")
        finally:
            super().close()

    def on_input_schema(self, schema: pa.Schema) -> None:
        if self._event_time is not None:
            if self._event_time not in schema.names:
                raise InvalidJob(f"{self.where}: there is no event-time column {self._event_time!r} in its rows")
            check_event_time_type(schema.field(self._event_time).type, self._event_time, self.where)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._check(batch.schema)
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        while (goal_ms := self.going_to_ms) is not None:  # a subtask does this before it passes a batch
            self.toward(goal_ms, emit)
        if self._reclaiming is not None:
            self._reclaiming.begin()
        if self._wall_timers.overdue and self._on_wall_timer is not None:
            self._fire_by_wall_clock(self._wall_timers.overdue_of(self.codec.keys(batch)[0]), emit)
        watermarks = self._row_watermarks(batch)
        if watermarks is not None or batch.reached is not None or self._on_timer is not None:
            self._process_in_time(batch, watermarks, emit)
            return
        self._begin(batch, None)
        state_keys, user_keys = self.codec.keys(batch)
        times, coming = self._timestamps(batch), iter(state_keys)
        current, context, call = self._current, self._context, self._call
        results: list[Row] = []
        append, taken, alone = results.append, self._writer.taken, self._writer.alone
        row_kind = self._writer.row_kind
        try:
            for current.key, key, context.timestamp, row in zip(
                coming, user_keys, times, self._each_row(batch), strict=False
            ):
                context.key = key
                result = call(key, row, context)
                if result is not None:  # `RowWriter.take`, inlined because this runs once per row
                    kind = type(result)
                    if kind is dict:
                        held = alone + 1 if result is row else alone
                        append(result if references(result) == held else taken(result))
                    elif kind is list:
                        held = alone + 1 if references(result) == alone else alone
                        copied = False
                        for one in result:
                            if references(one) == held:
                                append(one)
                            else:
                                append(taken(one))
                                copied = True
                        if copied:
                            self._writer.check_apart(result, self._input_row(batch, coming))
                    elif kind is row_kind:
                        append(taken(result))
                    else:
                        for one in result:
                            append(one if references(one) == alone else taken(one))
        except Exception as error:
            self._check_handles()
            at = max(0, len(batch) - length_hint(coming) - 1)
            raise self._failed(error, call, key=user_keys[at], batch=batch.rows, row=at) from error
        if self._replaceable:
            self._check_handles()
        if results:
            emit(Batch(self._writer.made(results, batch.schema), batch.emit_ns))
        self._flush_sides(emit, batch.emit_ns)

    def _process_in_time(self, batch: Batch, watermarks: npt.NDArray[np.int64] | None, emit: Emit) -> None:
        """Processes rows as if each followed a watermark.

        `watermarks`: of each row's key group; timers follow the event time of the whole stream.
        """
        self._by_row = self._by_row or batch.reached is not None
        state_keys, user_keys = self.codec.keys(batch)
        reached: Iterable[int] = itertools.repeat(WATERMARK_MIN) if batch.reached is None else batch.reached.tolist()
        seen: Iterable[int] = itertools.repeat(WATERMARK_MIN) if watermarks is None else watermarks.tolist()
        current, context, call, timers = self._current, self._context, self._call, self._timers
        taken, alone, row_kind = self._writer.taken, self._writer.alone, self._writer.row_kind
        given, by_row, coming = YieldedRows(self._by_row), self._by_row, iter(state_keys)
        append, watermark_ms, sides = given.rows.append, self._watermark_ms, self._sides
        self._begin(batch, watermark_ms if by_row else None)
        try:
            rows = self._each_row(batch)
            for state_key, key, timestamp, row, reached_ms, seen_ms in zip(
                coming, user_keys, self._timestamps(batch), rows, reached, seen, strict=False
            ):
                if reached_ms > watermark_ms:
                    if timers.next_ms <= reached_ms and not self._advance(reached_ms, given, self.stops):
                        self._stopped(batch, max(0, len(batch) - length_hint(coming) - 1), reached_ms)
                        break
                    self._watermark_ms = watermark_ms = reached_ms
                    if by_row:
                        sides.reached_ms = reached_ms
                current.key, context.key, context.timestamp = state_key, key, timestamp
                context.watermark = seen_ms if seen_ms > watermark_ms else watermark_ms
                result = call(key, row, context)
                if result is not None:
                    kind = type(result)
                    if kind is dict:
                        held = alone + 1 if result is row else alone
                        append(result if references(result) == held else taken(result))
                    elif kind is list:
                        held = alone + 1 if references(result) == alone else alone
                        copied = False
                        for one in result:
                            if references(one) == held:
                                append(one)
                            else:
                                append(taken(one))
                                copied = True
                        if copied:
                            self._writer.check_apart(result, self._input_row(batch, coming))
                    elif kind is row_kind:
                        append(taken(result))
                    else:
                        for one in result:
                            append(one if references(one) == alone else taken(one))
                if by_row:
                    given.upto(watermark_ms)
                if timers.next_ms <= watermark_ms:
                    self._advance(watermark_ms, given)  # for timers that this row registered for the past
        except UserCodeError:
            raise  # of a timer
        except Exception as error:
            self._check_handles()
            at = max(0, len(batch) - length_hint(coming) - 1)
            raise self._failed(error, call, key=user_keys[at], batch=batch.rows, row=at) from error
        if self._replaceable:
            self._check_handles()
        if given.rows:
            emit(given.batch(self._writer, batch.schema, batch.emit_ns))
        self._flush_sides(emit, batch.emit_ns)

    def _each_row(self, batch: Batch) -> Iterator[Any]:
        return (each_row_read if self._failures is None else each_row_tried)(batch, self._reads)

    def _input_row(self, batch: Batch, coming: Iterator[Any]) -> Callable[[], Row]:
        return row_again(batch, max(0, len(batch) - length_hint(coming) - 1), self._reads)

    def _stopped(self, batch: Batch, at: int, reached_ms: int) -> None:
        self._rest = batch.slice(at)
        self._going_to_ms = reached_ms

    def take_rest(self) -> Batch | None:
        rest, self._rest = self._rest, None
        return rest

    @property
    def going_to_ms(self) -> int | None:
        if self._going_to_ms is not None:
            return self._going_to_ms
        return self._watermark_ms if self._bound is not None and self._wall_timers.crowded else None

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        self._go_on(watermark_ms, emit, in_slices=False)

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        if self._bound is not None and self._wall_timers.crowded:
            if self._on_wall_timer is not None and self._wall_timers.any_due():
                self._fire_by_wall_clock(self._wall_timers.due_now(), emit)
            return False
        return self._go_on(watermark_ms, emit, in_slices=True)

    def _go_on(self, watermark_ms: int, emit: Emit, in_slices: bool) -> bool:
        if self._going_to_ms is not None:
            watermark_ms = max(watermark_ms, self._going_to_ms)
        elif watermark_ms <= self._watermark_ms:
            return True
        if self._bound is None:
            self._watermark_ms, self._going_to_ms = watermark_ms, None
            return True
        if self._reclaiming is not None:
            self._reclaiming.begin()
        given = YieldedRows(self._by_row)
        self._begin(None, self._watermark_ms if self._by_row else None)
        done = self._advance(watermark_ms, given, in_slices)
        self._going_to_ms = None if done else watermark_ms
        if given.rows:
            emit(given.batch(self._writer, self._seen, self._emit_ns))
        self._flush_sides(emit, self._emit_ns)
        return done

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        if self._bound is None or self._on_wall_timer is None or not self._wall_timers.any_due():
            return False
        self._fire_by_wall_clock(self._wall_timers.last_due() if last else self._wall_timers.due_now(), emit)
        return True

    def _fire_by_wall_clock(self, due: Iterable[tuple[tuple[Any, ...], int]], emit: Emit) -> None:
        """Event time stands still."""
        current, context, given, reached_ms = (
            self._current,
            self._context,
            YieldedRows(self._by_row),
            self._watermark_ms,
        )
        on_wall_timer: Any = self._on_wall_timer
        if self._reclaiming is not None:
            self._reclaiming.begin()
        self._begin(None, reached_ms if self._by_row else None)
        last_ms, context.timestamp, context.watermark = context.timestamp, None, reached_ms
        self._timing.event.instead_ms = reached_ms if reached_ms > WATERMARK_MIN or last_ms is None else last_ms
        try:
            for current.key, due_ms in due:
                context.key = self.codec.user_key(current.key)
                result = on_wall_timer(context.key, due_ms, context)
                if result is not None:
                    self._writer.take(self._writer.each(result), given.rows)
        except Exception as error:
            self._check_handles()
            raise self._failed(error, on_wall_timer, key=context.key) from error
        if self._replaceable:
            self._check_handles()
        context.timestamp, self._timing.event.instead_ms = last_ms, None
        given.upto(reached_ms)
        emit_ns = self.context.wall_ms() * 1_000_000  # however long ago the last row arrived
        if given.rows:
            emit(given.batch(self._writer, self._seen, emit_ns))
        self._flush_sides(emit, emit_ns)

    def _advance(self, watermark_ms: int, given: "YieldedRows", in_slices: bool = False) -> bool:
        """Advances event time, stopping at each due timer; False: the turn ended before."""
        current, context, on_timer = self._current, self._context, self._on_timer
        if on_timer is not None and self._timers.next_ms <= watermark_ms:
            time_slice = Slice(self.context.now_s) if in_slices else None
            try:
                for current.key, at_ms in self._timers.due(watermark_ms, time_slice):
                    if at_ms > self._watermark_ms:
                        self._watermark_ms = self._came_by_timer_ms = at_ms
                    context.timestamp, context.watermark = at_ms, self._watermark_ms
                    context.key = self.codec.user_key(current.key)
                    # rows with the timer's time are not late downstream
                    reached_ms = self._watermark_ms - (self._watermark_ms == self._came_by_timer_ms)
                    if self._by_row:
                        self._sides.reached_ms = reached_ms
                    result = on_timer(context.key, at_ms, context)
                    if result is not None:
                        self._writer.take(self._writer.each(result), given.rows)
                    given.upto(reached_ms)
            except Exception as error:
                raise self._failed(error, on_timer, key=context.key) from error
            if self._timers.next_ms <= watermark_ms:
                return False
        self._watermark_ms = context.watermark = max(self._watermark_ms, watermark_ms)
        self._came_by_timer_ms = None
        return True

    def _check_handles(self) -> None:
        for name, handle in self._replaceable.items():
            found = vars(self._target).get(name)
            if found is not handle:
                raise handle.assigned(found)

    def _timestamps(self, batch: Batch) -> Iterable[int | None]:
        if self._event_time is None:
            return itertools.repeat(None)
        times = batch.column(self._event_time)
        if not times.null_count:
            return list(event_times_ms(times).tolist())
        valid = iter(event_times_ms(times.drop_null()).tolist())
        return [next(valid) if known else None for known in times.is_valid().to_pylist()]

    def _failed(self, error: Exception, function: Any, **where: Any) -> Exception:
        return user_error(
            error, function=function_name(function), operator=self.name, subtask=self.context.subtask, **where
        )
