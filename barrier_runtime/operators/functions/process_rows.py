"""`process` of a stream without key: a function of each row, with side outputs and metrics."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.row_class import RowClass
from barrier_runtime.data.rows import Row, RowWriter
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
from barrier_runtime.state.values.undo import Undo


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
