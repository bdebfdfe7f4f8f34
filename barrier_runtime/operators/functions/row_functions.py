"""`map`, `filter` and `flat_map` with Python functions of one row."""

from collections.abc import Callable, Iterable, Iterator
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
from barrier_runtime.operators.outputs.failures import Failures
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob

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
