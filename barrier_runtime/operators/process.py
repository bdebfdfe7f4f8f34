"""`process`: the user's row-wise function per key, with state and event-time timers bound to the key of the row at
hand.

The cost beside the user's own call is kept to a few attribute writes: state handles do not know keys, they share one
`CurrentKey`.
"""

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from barrier_runtime.elements import Batch
from barrier_runtime.event_time import check_event_time_type, event_times_ms
from barrier_runtime.keyed_state import CurrentKey, ValueState
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed_operator import KeyedOperator
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.rows import Row, RowWriter, each_row
from barrier_runtime.timers import TABLE, Timers, decode_timer, encode_timer
from state.errors import InvalidJob


class ProcessContext:
    """`ctx` of a keyed function.

    `key`: of the row or timer: the column's value, or a tuple of several columns' values. `timestamp`: event time of
    the row (when `event_time=` is given; None if null) or of the timer, ms. `watermark`: event time the stream has
    reached, ms. `state`: the states by name. `timers`: `register(ms)` and `delete(ms)`.
    """

    __slots__ = ("key", "operator", "state", "subtask", "timers", "timestamp", "watermark")

    def __init__(self, operator: str, subtask: int, watermark: int, timers: Timers, state: SimpleNamespace) -> None:
        self.key: Any = None
        self.timestamp: int | None = None
        self.watermark = watermark
        self.timers = timers
        self.state = state
        self.operator = operator
        self.subtask = subtask


def declared_states(function: Any, extra: Mapping[str, ValueState[Any]] | None = None) -> dict[str, ValueState[Any]]:
    """States declared as attributes of a class (or of its instance), and those given beside it."""
    states = {name: value for name in dir(function) if isinstance(value := getattr(function, name, None), ValueState)}
    for name, value in (extra or {}).items():
        if name in states:
            raise InvalidJob(f"state {name!r} is declared in {function_name(function)} and in state=: keep one")
        if not isinstance(value, ValueState):
            raise InvalidJob(f"state {name!r} is {value!r}: declare it as ValueState(type)")
        states[name] = value
    return states


class ProcessOperator(KeyedOperator):
    kind = "process"

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        function: Any,
        states: Mapping[str, ValueState[Any]] | None = None,
        event_time: str | None = None,
        output: pa.Schema | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        """`function`: a class (or object) with `process(self, key, row, ctx)`, or a function of (key, row, ctx)."""
        super().__init__(name, keys, keys, schema)
        self._function = function
        self._extra = dict(states or {})
        self._event_time = event_time
        self._output = output
        self._current = CurrentKey()

    def bind(self, columns: pa.Schema) -> None:
        width = len(self._key_columns)
        target = self._function
        if isinstance(target, type):
            try:
                target = target()
            except Exception as error:
                raise self._failed(error, self._function) from error
        elif hasattr(target, "process"):
            target = copy.deepcopy(target)  # subtasks of one process must not share attributes
        self._call = target.process if hasattr(target, "process") else target
        self._on_timer = getattr(target, "on_timer", None)
        self._writer = RowWriter(f"{function_name(self._call)} of operator {self.name!r}", self._output)
        state = SimpleNamespace()
        for name, declared in declared_states(target, self._extra).items():
            where = f"{self.where}, state {name!r}"
            table = self.backend.table(
                name, declared.encoder(where), declared.decoder(where), width, immutable=declared.immutable
            )
            handle = declared.bind(name, table, self._current)
            setattr(state, name, handle)
            if name not in self._extra:
                setattr(target, name, handle)
        timers_table = self.backend.table(TABLE, encode_timer, decode_timer, width, immutable=True)
        timers = Timers(timers_table, self._current, None if self._on_timer else function_name(self._call))
        self._timers = timers
        self._context = ProcessContext(self.name, self.context.subtask, self._watermark_ms, timers, state)

    def on_input_schema(self, schema: pa.Schema) -> None:
        if self._event_time is not None:
            if self._event_time not in schema.names:
                raise InvalidJob(f"{self.where}: there is no event-time column {self._event_time!r} in its rows")
            check_event_time_type(schema.field(self._event_time).type, self._event_time, self.where)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        self._check(rows.schema)
        self._emit_ns = max(self._emit_ns, batch.emit_ns)
        state_keys = self.codec.state_keys(rows)
        user_keys = self.codec.user_keys(rows, state_keys)
        times = self._timestamps(rows)
        current, context, call = self._current, self._context, self._call
        results: list[Row] = []
        append, extend = results.append, results.extend
        at = 0
        try:
            for at, current.key, key, context.timestamp, row in zip(  # noqa: B007 - `at` is for the error
                range(rows.num_rows), state_keys, user_keys, times, each_row(rows), strict=False
            ):
                context.key = key
                result = call(key, row, context)
                if result is not None:
                    if type(result) is dict:
                        append(result)
                    else:
                        extend(result)
        except Exception as error:
            raise self._failed(error, call, key=user_keys[at], batch=rows, row=at) from error
        if results:
            emit(Batch(self._writer.batch(results), batch.emit_ns))

    def on_watermark(self, watermark_ms: int, emit: Emit) -> None:
        if watermark_ms <= self._watermark_ms:
            return
        self._watermark_ms = watermark_ms
        if self._bound is None:
            return  # no row came yet, so there is no timer
        current, context, on_timer = self._current, self._context, self._on_timer
        context.watermark = watermark_ms
        if on_timer is None:
            return
        results: list[Row] = []
        try:
            for current.key, context.timestamp in self._timers.due(watermark_ms):
                context.key = self.codec.user_key(current.key)
                result = on_timer(context.key, context.timestamp, context)
                if result is not None:
                    if type(result) is dict:
                        results.append(result)
                    else:
                        results.extend(result)
        except Exception as error:
            raise self._failed(error, on_timer, key=context.key) from error
        if results:
            emit(Batch(self._writer.batch(results), self._emit_ns))

    def _timestamps(self, rows: pa.RecordBatch) -> Iterable[int | None]:
        if self._event_time is None:
            return itertools.repeat(None)
        times = rows.column(self._event_time)
        if not times.null_count:
            return list(event_times_ms(times).tolist())
        valid = iter(event_times_ms(times.drop_null()).tolist())
        return [next(valid) if known else None for known in times.is_valid().to_pylist()]

    def _failed(self, error: Exception, function: Any, **where: Any) -> Exception:
        return user_error(
            error, function=function_name(function), operator=self.name, subtask=self.context.subtask, **where
        )
