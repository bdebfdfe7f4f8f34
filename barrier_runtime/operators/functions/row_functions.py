"""`map`, `filter` and `flat_map` with Python functions of one row; and `process` of a stream without key."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.plain_rows import PlainRows, without_views
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import Row, RowWriter, cut, preview
from barrier_runtime.data.values.references import references
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.functions.columns_read import each_row_read, row_again, rows_read
from barrier_runtime.operators.functions.user_metrics import UserMetrics
from barrier_runtime.operators.outputs.failures import Failures
from barrier_runtime.operators.outputs.side_outputs import EmittedByCall, OnError, SideOutputs
from barrier_runtime.operators.retry import RetriedCall, Retry
from barrier_runtime.operators.uncopyable import own_function
from barrier_runtime.operators.user_code import (
    KEYED,
    Context,
    close_function,
    function_name,
    open_function,
    user_error,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.undo import Undo

_TRUTHS = frozenset({bool, np.bool_})


class RowwiseOperator(Operator):
    def __init__(
        self,
        name: str,
        function: Callable[[Row], Any],
        schema: pa.Schema | RowClass | None = None,
        on_error: OnError = "fail",
        rows: RowClass | None = None,
    ) -> None:
        self._name = name
        self._function = function
        where = f"{function_name(function)} of operator {name!r}"
        self._reads = rows_read(function, 0, rows)
        self._writer = RowWriter(where, schema)
        self._declared = schema is not None
        self._subtask = 0
        self._failures = None if on_error == "fail" else Failures(on_error, name, function_name(function))

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        if self._failures is not None:
            self._failures.opened(context)

    def _tried(
        self, failures: Failures, batch: Batch, call: Callable[[Row], Any], failed: Any, raised: dict[int, Exception]
    ) -> Iterator[Any]:
        """Yields the result of `call` for each row; `failed` if `call` raises, with the error in `raised`."""
        failures.begin(batch)
        rows = each_row_read(batch, self._reads)
        for at in range(len(batch)):
            try:
                result = call(next(rows))
            except Exception as error:
                if not failures.takes(error):
                    raise self._failed(error, batch, at) from error
                raised[at] = error
                result = failed
            yield result

    def _add(self, failures: Failures, batch: Batch, raised: dict[int, Exception]) -> None:
        for at in sorted(raised):
            failures.add(raised[at], at, None if batch.reached is None else int(batch.reached[at]))

    def _results(self, call: Callable[[Row], Iterable[Row]], batch: Batch, failures: Failures, emit: Emit) -> None:

        def given(row: Row) -> list[Row]:
            rows: list[Row] = []
            self._writer.take(call(row), rows, row_again(batch, len(results), self._reads))
            return rows

        results: list[list[Row]] = []
        raised: dict[int, Exception] = {}
        for rows in self._tried(failures, batch, given, [], raised):
            results.append(rows)
        made = self._fitting(results, batch, raised)
        self._add(failures, batch, raised)
        if made is not None:
            reached = None if batch.reached is None else np.repeat(batch.reached, list(map(len, results)))
            emit(Batch(made, batch.emit_ns, reached))
        failures.flush(emit, batch.emit_ns)

    def _fitting(
        self, results: list[list[Row]], batch: Batch, raised: dict[int, Exception]
    ) -> pa.RecordBatch | FewRows | None:
        """Converts results. Omits misfits of a declared schema, with the error in `raised`."""
        try:
            return self._made(results, batch)
        except InvalidJob:
            if not self._declared:
                raise
        for at, rows in enumerate(results):
            try:
                self._made([rows], batch)
            except InvalidJob as error:
                raised[at], results[at] = error, []
        return self._made(results, batch)

    def _made(self, results: list[list[Row]], batch: Batch) -> pa.RecordBatch | FewRows | None:
        rows = list(chain.from_iterable(results))
        return self._writer.made(rows, batch.schema) if rows else None

    def _failed(self, error: Exception, batch: Batch, row: int) -> Exception:
        return user_error(
            error,
            function=function_name(self._function),
            operator=self._name,
            subtask=self._subtask,
            batch=batch.rows,
            row=row,
        )

    def _check_all(self, called: int, batch: Batch) -> None:
        if called < len(batch):
            error = StopIteration(
                "the iterator that its next() asks has ended: give it a default, as in next(it, None)"
            )
            raise self._failed(error, batch, called)

    def _emit_rows(self, rows: list[Row], batch: Batch, reached: npt.NDArray[np.int64] | None, emit: Emit) -> None:
        if rows:
            emit(Batch(self._writer.made(rows, batch.schema), batch.emit_ns, reached))


class MapOperator(RowwiseOperator):
    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        function = self._function
        if self._failures is not None:
            self._results(lambda row: (function(row),), batch, self._failures, emit)
            return
        results: list[Row] = []
        append, taken, alone = results.append, self._writer.taken, self._writer.alone
        given = each_row_read(batch, self._reads)
        try:
            # `map` holds no reference to the row
            for result in map(function, given):
                append(result if references(result) == alone else taken(result))
        except Exception as error:
            raise self._failed(error, batch, len(results)) from error
        self._check_all(len(results), batch)
        self._emit_rows(results, batch, batch.reached, emit)


class FilterOperator(RowwiseOperator):
    def __init__(
        self, name: str, function: Callable[[Row], Any], on_error: OnError = "fail", rows: RowClass | None = None
    ) -> None:
        super().__init__(name, function, on_error=on_error, rows=rows)
        self._takeable = PlainRows(without_views)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        batch = self._takeable.batch(batch)
        keep: list[bool] = []
        if self._failures is not None:
            raised: dict[int, Exception] = {}
            keep.extend(self._tried(self._failures, batch, self._function, False, raised))
            self._add(self._failures, batch, raised)
        else:
            given = each_row_read(batch, self._reads)
            try:
                keep.extend(map(self._function, given))
            except Exception as error:
                raise self._failed(error, batch, len(keep)) from error
            self._check_all(len(keep), batch)
        if not _TRUTHS.issuperset(map(type, keep)):
            self._refuse_others(keep, batch)
        if all(keep):
            emit(batch)
        elif any(keep):
            kept = np.flatnonzero(keep)
            few = batch.few
            rows = batch.rows.take(pa.array(kept)) if few is None else few.take(kept.tolist())
            emit(batch.only(rows, kept))
        if self._failures is not None:
            self._failures.flush(emit, batch.emit_ns)

    def _refuse_others(self, keep: list[Any], batch: Batch) -> None:
        row = next(at for at, kept in enumerate(keep) if type(kept) not in (bool, np.bool_))
        raise InvalidJob(
            f"{function_name(self._function)} of operator {self._name!r} gave {cut(repr(keep[row]))} where True or "
            f"False is expected: return one of them, as in bool(…)\n  record: {preview(batch.rows, row)}"
        )


class Inspected:
    def __init__(self, function: Callable[[Row], Any]) -> None:
        self.__qualname__ = function_name(function)[:-2]
        self._function = function

    def __call__(self, row: Row) -> bool:
        self._function(row)
        return True


class FlatMapOperator(RowwiseOperator):
    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        function: Callable[[Row], Iterable[Row]] = self._function
        if self._failures is not None:
            self._results(lambda row: _rows(function(row)), batch, self._failures, emit)
            return
        results: list[Row] = []
        append, taken, alone = results.append, self._writer.taken, self._writer.alone
        done, reached = 0, batch.reached
        ends: list[int] = []
        given = each_row_read(batch, self._reads)
        try:
            for rows in map(function, given):
                if type(rows) is list:
                    held = alone + 1 if references(rows) == alone else alone
                else:
                    _rows(rows)
                    held = alone
                copied = False
                for one in rows:
                    if references(one) == held:
                        append(one)
                    else:
                        append(taken(one))
                        copied = True
                if copied:
                    self._writer.check_apart(rows, row_again(batch, done, self._reads))
                if reached is not None:
                    ends.append(len(results))
                done += 1
        except Exception as error:
            raise self._failed(error, batch, done) from error
        self._check_all(done, batch)
        if reached is not None:
            reached = np.repeat(reached, np.diff(ends, prepend=0))
        self._emit_rows(results, batch, reached, emit)


def _rows(given: Any) -> Any:
    """Refuses a dict: iterating over a dict gives keys."""
    if type(given) is dict:
        raise InvalidJob("it gave one row, and flat_map takes any number of them: return [row], yield it, or use map()")
    return given


class YieldedRows:
    __slots__ = ("_by_row", "_reached", "rows")

    def __init__(self, by_row: bool) -> None:
        self.rows: list[Row] = []
        self._by_row = by_row
        self._reached: list[int] = []

    def upto(self, reached_ms: int) -> None:
        if self._by_row and len(self._reached) < len(self.rows):
            self._reached += [reached_ms] * (len(self.rows) - len(self._reached))

    def batch(self, writer: RowWriter, like: pa.Schema | None, emit_ns: int) -> Batch:
        reached = np.array(self._reached, np.int64) if self._by_row else None
        return Batch(writer.made(self.rows, like), emit_ns, reached)


class RowContext(Context):
    """`ctx` of a function without key.

    `emit(name, row)`: sends a row, as it is now, to a side output. `metrics`: `counter(name).inc()` and
    `gauge(name).set(value)`, exported with the step's metrics. `operator`: the step's name; `subtask`: number of the
    subtask.
    """

    __slots__ = ("emit", "metrics", "operator", "subtask")

    def __init__(self, operator: str, subtask: int, sides: SideOutputs, metrics: UserMetrics) -> None:
        self.operator = operator
        self.subtask = subtask
        self.emit = sides.emit
        self.metrics = metrics

    def said_instead(self, name: str) -> str:
        if name in KEYED:
            return f"ctx has no {name!r}, which belongs to a key: call .key_by(…) before process()"
        return super().said_instead(name)


class ProcessRowsOperator(Operator):
    def __init__(
        self,
        name: str,
        function: Any,
        schema: pa.Schema | RowClass | None = None,
        side: Mapping[str, pa.Schema | RowClass] | None = None,
        on_error: OnError | Retry = "fail",
        rows: RowClass | None = None,
    ) -> None:
        self._name = name
        self._where = f"process {name!r}"
        self._function = function
        self._schema = schema
        self._rows = rows
        self._sides = SideOutputs(self._where, side or {})
        self._on_error = on_error
        self._failures: Failures | None = None
        self._to_close: Any = None

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        self._metrics = context.metrics
        target, self._call = own_function(self._function, "process", self._where, self._failed)
        name, undo = function_name(self._call), None
        where = f"{name} of operator {self._name!r}"
        self._reads = rows_read(self._call, 0, self._rows)
        self._writer = RowWriter(where, self._schema)
        if isinstance(self._on_error, Retry):
            undo = Undo()
            undo.add(EmittedByCall(self._sides))
            self._call = RetriedCall(self._call, self._on_error, True, undo=undo)
        elif self._on_error != "fail":
            self._failures = Failures(self._on_error, self._name, name)
            self._failures.opened(context)
        metrics = UserMetrics(self._where, context.metrics, undo)
        self._context = RowContext(self._name, context.subtask, self._sides, metrics)
        open_function(target, self._context, self._failed)
        self._sides.check_none("open()")
        self._to_close = target

    def close(self) -> None:
        target, self._to_close = self._to_close, None
        self._sides.begin(None)
        close_function(target, self._failed)
        self._sides.check_none("close()")

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        sides, failures, reached = self._sides, self._failures, batch.reached
        sides.begin(None)
        if failures is not None:
            failures.begin(batch)
        results: list[Row] = []
        counts: list[int] = []
        rows = each_row_read(batch, self._reads)
        for at in range(len(batch)):
            if reached is not None:
                sides.reached_ms = int(reached[at])
            before, emitted = len(results), sides.counts()
            try:
                row = next(rows)  # held, so that a result that is this row is copied
                result = self._call(row, self._context)
                if result is not None:
                    given = self._writer.each(result)
                    self._writer.take(given, results, row_again(batch, at, self._reads))
            except Exception as error:
                if failures is None or not failures.takes(error):
                    raise self._failed(error, self._call, batch=batch.rows, row=at) from error
                del results[before:]
                sides.back_to(emitted)
                failures.add(error, at, sides.reached_ms)
            counts.append(len(results) - before)
        if results:
            spread = None if reached is None else np.repeat(reached, counts)
            emit(Batch(self._writer.made(results, batch.schema), batch.emit_ns, spread))
        sides.flush(emit, batch.emit_ns, self._metrics)
        if failures is not None:
            failures.flush(emit, batch.emit_ns)

    def _failed(self, error: Exception, function: Any, **where: Any) -> Exception:
        return user_error(error, function=function_name(function), operator=self._name, subtask=self._subtask, **where)
