"""`map`, `filter` and `flat_map` with Python functions of one row (a dict)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.elements import Batch
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.rows import Row, RowWriter, each_row


class RowwiseOperator(Operator):
    """What the three share: rows in, the user's function per row, an error that shows the row."""

    def __init__(self, name: str, function: Callable[[Row], Any], schema: pa.Schema | None = None) -> None:
        self._name = name
        self._function = function
        self._writer = RowWriter(f"{function_name(function)} of operator {name!r}", schema)
        self._subtask = 0

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask

    def _failed(self, error: Exception, batch: Batch, row: int) -> Exception:
        return user_error(
            error,
            function=function_name(self._function),
            operator=self._name,
            subtask=self._subtask,
            batch=batch.rows,
            row=row,
        )

    def _emit_rows(self, rows: list[Row], batch: Batch, emit: Emit) -> None:
        if rows:
            emit(Batch(self._writer.batch(rows), batch.emit_ns))


class MapOperator(RowwiseOperator):
    """One row in, one row out."""

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        function = self._function
        results: list[Row] = []
        try:
            for row in each_row(batch.rows):
                results.append(function(row))
        except Exception as error:
            raise self._failed(error, batch, len(results)) from error
        self._emit_rows(results, batch, emit)


class FilterOperator(RowwiseOperator):
    """Rows for which the function is true."""

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        function = self._function
        keep: list[bool] = []
        try:
            for row in each_row(batch.rows):
                keep.append(bool(function(row)))
        except Exception as error:
            raise self._failed(error, batch, len(keep)) from error
        if all(keep):
            emit(batch)
        elif any(keep):
            emit(Batch(batch.rows.take(pa.array(np.flatnonzero(keep))), batch.emit_ns))


class FlatMapOperator(RowwiseOperator):
    """One row in, any number of rows out."""

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        function: Callable[[Row], Iterable[Row]] = self._function
        results: list[Row] = []
        at = -1
        try:
            for at, row in enumerate(each_row(batch.rows)):  # noqa: B007 - `at` is for the error
                results.extend(function(row))
        except Exception as error:
            raise self._failed(error, batch, at) from error
        self._emit_rows(results, batch, emit)
