"""A user's function of whole windows, which hold their rows (see `window_rows`) until they are over.

The function gets a few windows at a time, so that barriers come in between. Windows over all rows have a constant key,
absent from the output.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import RowClass, is_instance
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.schemas import described, fit
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.outputs.failures import NO_KEY, Failures
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.retry import RetriedCall, Retry
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.operators.windows.aggregate import Windows
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.entries import Ints
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.operators.windows.whole.window_rows import CHUNKS, TAIL, WindowRows
from barrier_runtime.state.columns.wide_columns import EMPTY, WIDE
from barrier_runtime.state.errors import InvalidJob

ONE_KEY = "__all_rows__"


class OneKeyOperator(Operator):
    def __init__(self, name: str) -> None:
        """Nothing depends on the name."""

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        columns = [*rows.columns, pa.array(np.zeros(len(rows), np.int64))]
        schema = rows.schema.append(pa.field(ONE_KEY, pa.int64()))
        emit(batch.having(pa.RecordBatch.from_arrays(columns, schema=schema)))


class OfAllRows:
    def __init__(self, function: Callable[[Any, Any, Any], Any], batches: bool) -> None:
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._batches = batches

    def __call__(self, key: Any, window: Any, rows: Any) -> Any:
        return self._function(None, window, _without(rows) if self._batches else rows.drop_columns([ONE_KEY]))


def _without(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.drop_columns([ONE_KEY])


_AT_ONCE = 16  # windows between two looks at the clock
_SMALL_AT_ONCE = 128  # the same for windows read together
_MAX_ROWS = 65_536
_ROWS_OF_ARROW = (pa.Table, pa.RecordBatch)
_ONE_RESULT = (dict, *_ROWS_OF_ARROW, Mapping)
StateKey: TypeAlias = tuple[Any, ...]
Part: TypeAlias = pa.RecordBatch | list[Row]
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class TimeWindow:
    """Window of a function call: [start, end), in ms since 1970 and as UTC datetimes; None for `Global`.

    >>> TimeWindow(0, 60_000).end.minute
    1
    """

    start_ms: int | None
    end_ms: int | None

    @property
    def start(self) -> datetime.datetime | None:
        """First time of the window, in UTC; None for `Global`."""
        return _datetime(self.start_ms)

    @property
    def end(self) -> datetime.datetime | None:
        """End of the window (exclusive), in UTC; None for `Global`."""
        return _datetime(self.end_ms)


def _datetime(time_ms: int | None) -> datetime.datetime | None:
    return None if time_ms is None else _EPOCH + datetime.timedelta(milliseconds=time_ms)


def milliseconds_of(time: datetime.datetime | None) -> int | None:
    return None if time is None else (time - _EPOCH) // datetime.timedelta(milliseconds=1)


class HeldWindows(Windows):
    small_at_once = _SMALL_AT_ONCE

    def bind(self, columns: pa.Schema) -> None:
        super().bind(columns)
        self._columns = columns.names
        self._held_rows = self._holder(columns)

    def _holder(self, columns: pa.Schema) -> WindowRows:
        return WindowRows(self.operator.backend, self.table, columns, self.operator.clock.column, self.where)

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return {CHUNKS: (WIDE, EMPTY), TAIL: (WIDE, EMPTY)}

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> Ints:
        row_ids = super().add(rows, starts, batch, of_row, emit)
        if rows.num_rows:
            self._held_rows.add(rows.select(self._columns), row_ids)
        return row_ids

    def _fire_parts(self, row_ids: Ints, emit: Emit) -> Iterator[None]:
        for part in self.parts(row_ids):
            if part is not None:
                for few in self._few(part):
                    self.fire(few, emit)
                    yield
            else:
                yield

    def _few(self, row_ids: Ints) -> Iterator[Ints]:
        """Splits `row_ids` into groups of only small, or only large windows."""
        small = self._held_rows.are_small(row_ids)
        for run in np.split(row_ids, np.flatnonzero(np.diff(small)) + 1):
            at_once = self.small_at_once if small[0] else _AT_ONCE
            small = small[len(run) :]
            yield from np.split(run, range(at_once, len(run), at_once))

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        results = Results(self, emit)
        state_keys = self.table.keys_of(row_ids)
        if self._held_rows.are_small(row_ids[:1])[0]:
            self._add_small(row_ids, state_keys, results)
        else:
            for row_id, state_key in zip(row_ids.tolist(), state_keys, strict=True):
                results.add_all(self._results_of(row_id, state_key), state_key)
        results.flush()
        self.remove(row_ids)

    def written(self, rows: list[tuple[list[Row], StateKey]]) -> pa.RecordBatch:
        """Returns the rows, given with their windows, in the form of the output."""
        raise NotImplementedError

    def _add_small(self, row_ids: Ints, state_keys: list[StateKey], results: "Results") -> None:
        raise NotImplementedError

    def _results_of(self, row_id: int, state_key: StateKey) -> Iterator[Part]:
        raise NotImplementedError

    def remove(self, row_ids: Ints) -> None:
        self._held_rows.remove(row_ids)
        super().remove(row_ids)


@dataclass(frozen=True)
class Applied:
    function: Callable[[Any, TimeWindow, Any], Any]
    output: pa.Schema | RowClass
    batches: bool = False  # the function gets an iterator of record batches instead of a table
    on_error: OnError | Retry = "fail"
    holds_rows = True

    @property
    def aggregates(self) -> Mapping[str, AnyAggregate]:
        return {}

    def definition(self, window: WindowAssigner, lateness_ms: int = 0, trigger: WindowTrigger | None = None) -> str:
        return f"{window.definition}, all rows"

    def entries(self, operator: WindowOperator) -> Windows:
        return AppliedWindows(operator, self)


class AppliedWindows(HeldWindows):
    def __init__(self, operator: WindowOperator, content: Applied) -> None:
        super().__init__(operator)
        function, on_error = content.function, content.on_error
        self._function = function
        self._given = content.output.schema if isinstance(content.output, RowClass) else content.output
        self._batches = content.batches
        self._said = f"{function_name(function)} of operator {operator.name!r}"
        self._writer = RowWriter(self._said, content.output)
        self._results: Callable[..., Iterable[Part]] = self._results_for
        self._failures = None
        if isinstance(on_error, Retry):
            said = function_name(function)
            self._results = RetriedCall(self._all_results_for, on_error, False, what="window", said=said)
        elif on_error != "fail":
            self._failures = Failures(on_error, operator.name, function_name(function))
            self._failures.opened(operator.context)

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        failures = self._failures
        if failures is None:
            super().fire(row_ids, emit)
            return
        failures.begin(None)
        super().fire(row_ids, emit)
        failures.flush(emit, self.operator.rows_emit_ns)

    def _results_of(self, row_id: int, state_key: StateKey) -> Iterator[Part]:
        held = self._held_rows
        return self._applied(row_id, state_key, partial(held.batches_of if self._batches else held.all_of, row_id))

    def _add_small(self, row_ids: Ints, state_keys: list[StateKey], results: "Results") -> None:
        rows, counts = self._held_rows.of_small(row_ids)
        first = 0
        for row_id, state_key, count in zip(row_ids.tolist(), state_keys, counts.tolist(), strict=True):
            its = rows.slice(first, count)
            first += count
            given = partial(iter, (its,)) if self._batches else partial(pa.Table.from_batches, (its,), rows.schema)
            results.add_all(self._applied(row_id, state_key, given), state_key)

    def _applied(self, row_id: int, state_key: StateKey, given: Callable[[], Any]) -> Iterator[Part]:
        keys, start_ms = state_key[:-1], state_key[-1]
        key = self.codec.user_key(keys) if keys else None
        span = (start_ms, self.window.last_ms(start_ms) + 1) if self.window.bounded else (None, None)
        try:
            results = self._results(key, TimeWindow(*span), given)
            yield from results if self._failures is None else list(results)
        except Exception as error:
            if self._failures is not None and self._failures.takes(error):
                self._failed_window(self._failures, error, row_id, state_key)
                return
            raise self._user_error(error, state_key) from error

    def _user_error(self, error: Exception, state_key: StateKey) -> Exception:
        return user_error(
            error,
            function=function_name(self._function),
            operator=self.operator.name,
            subtask=self.operator.context.subtask,
            key=self.codec.user_key(state_key[:-1]) if state_key[:-1] else None,
        )

    def _results_for(self, key: Any, window: TimeWindow, given: Callable[[], Any]) -> Iterator[Part]:
        return self._in_parts(self._function(key, window, given()))

    def _all_results_for(self, key: Any, window: TimeWindow, given: Callable[[], Any]) -> list[Part]:
        return list(self._results_for(key, window, given))

    def _failed_window(self, failures: Failures, error: Exception, row_id: int, state_key: StateKey) -> None:
        """The rows may exceed memory."""
        *keys, start_ms = state_key
        end_ms, told = self.window.last_ms(start_ms) + 1, dict[str, Any]({"rows": self._held_rows.count_of(row_id)})
        if self.window.bounded:
            window = TimeWindow(start_ms, end_ms)
            told = {"window_start": window.start, "window_end": window.end, **told}
        key = NO_KEY if self.operator.key_columns == (ONE_KEY,) else self.codec.user_key(tuple(keys))
        event_time_ms = end_ms - 1 if self.window.bounded else None
        failures.add(error, None, end_ms - 2 if self.operator.by_row else None, key, event_time_ms, told)

    def _in_parts(self, result: Any) -> Iterator[Part]:
        if result is None:
            return
        if isinstance(result, _ONE_RESULT) or type(result) is self._writer.row_kind:
            result = (result,)
        elif isinstance(result, str | bytes) or not isinstance(result, Iterable) or hasattr(result, "columns"):
            raise InvalidJob(
                f"{self._said} returned {type(result).__name__}: return a pyarrow.Table or RecordBatch, a dict of "
                "column name to value, any number of these, or None; a pandas.DataFrame as "
                "pyarrow.Table.from_pandas(frame, preserve_index=False)"
            )
        self._writer.check_apart(result)
        rows: list[Any] = []
        for one in result:
            if not isinstance(one, _ROWS_OF_ARROW):
                rows.append(self._writer.taken(one))
                if len(rows) < _MAX_ROWS:
                    continue
            if rows:
                yield rows
                rows = []
            if isinstance(one, pa.Table):
                yield from map(self._fitted, one.to_batches())
            elif isinstance(one, pa.RecordBatch):
                yield self._fitted(one)
        if rows:
            yield rows

    def written(self, rows: list[tuple[list[Row], StateKey]]) -> pa.RecordBatch:
        try:
            return self._writer.batch([row for its, _ in rows for row in its])
        except InvalidJob:
            for its, state_key in rows:  # finds the window of the error
                try:
                    self._writer.batch(its)
                except InvalidJob as error:
                    raise self._user_error(error, state_key) from error
            raise

    def _fitted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.schema.equals(self._given):
            return rows
        if sorted(rows.schema.names) != sorted(self._given.names):
            raise InvalidJob(
                f"{self._said} returned ({described(rows.schema)}), but "
                f"its schema is ({described(self._given)}): return these columns, or correct schema="
            )
        return fit(rows, self._given, self._said)


class Results:
    def __init__(self, windows: HeldWindows, emit: Emit) -> None:
        self._windows = windows
        self._emit = emit
        self._begin()

    def _begin(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows: list[tuple[list[Row], StateKey]] = []
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._count = 0

    def add_all(self, parts: Iterable[Part], state_key: StateKey) -> None:
        for part in parts:
            if isinstance(part, list):
                self._rows.append((part, state_key))
            else:
                self._write_rows()
                self._batches.append(part)
            self._counted((state_key[-1],), (len(part),))

    def add(self, rows: pa.RecordBatch, starts: Sequence[int], counts: Sequence[int]) -> None:
        self._write_rows()
        self._batches.append(rows)
        self._counted(starts, counts)

    def flush(self) -> None:
        self._write_rows()
        if self._count:
            reached = np.repeat(self._windows.window.ends(np.array(self._starts)) - 2, self._counts)
            self._windows.send(pa.concat_batches(self._batches), reached, self._emit)
        self._begin()

    def _counted(self, starts: Sequence[int], counts: Sequence[int]) -> None:
        self._starts += starts
        self._counts += counts
        self._count += sum(counts)
        if self._count >= _MAX_ROWS:
            self.flush()

    def _write_rows(self) -> None:
        if self._rows:
            self._batches.append(self._windows.written(self._rows))
            self._rows = []


# A user's function of each window's aggregates.


class OfAggregates:
    """Function for `flat_map` over results of windows: calls `function(key, window, values)`."""

    def __init__(self, function: Callable[[Any, TimeWindow, dict[str, Any]], Any], keys: tuple[str, ...]) -> None:
        """`keys`: names of the key columns; () if all rows are one key."""
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._keys = keys

    def __call__(self, row: Row) -> Iterable[Any]:
        values = dict(row)
        keys = tuple(values.pop(key) for key in self._keys)
        span = [milliseconds_of(values.pop(name, None)) for name in ("window_start", "window_end")]
        result = self._function(keys if len(keys) > 1 else keys[0] if keys else None, TimeWindow(*span), values)
        if result is None:
            return ()
        if isinstance(result, Mapping):
            return (dict(result),)
        return (result,) if is_instance(result) else result
