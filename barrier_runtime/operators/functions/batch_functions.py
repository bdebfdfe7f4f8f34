"""`select` by names, `map_batches` and `union`, without Python code per row."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.rows import one_batch
from barrier_runtime.data.schemas import described, no_column
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.outputs.failures import Failures, in_parts
from barrier_runtime.operators.outputs.side_outputs import OnError
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted


class KeptTimes:
    """Check of a function's event times in the watermark's `columns`. `function`: name for messages.

    Later windows look for late rows only if the source had any.
    """

    def __init__(self, columns: Collection[str], function: str) -> None:
        self._columns = tuple(sorted(columns))
        self._function = function

    def check(self, batch: Batch, made: pa.RecordBatch) -> None:
        """Warns once if rows of `made` are earlier than all rows of `batch`."""
        if batch.reached is not None:
            return
        for column in self._columns:
            if column not in made.schema.names or column not in batch.schema.names:
                continue
            before, after = batch.column(column), made.column(column)
            if before.type == after.type and _least(after) < _least(before):
                warnings.warn(
                    f"{self._function} gives rows whose event time {column!r} is earlier than that of the rows it got, "
                    "so whether they are late depends on where batches end: call with_watermarks("
                    f"{column!r}) behind it, or pass one_to_one=True if it gives a row for each row",
                    stacklevel=2,
                )
                self._columns = ()
                return


def _least(times: pa.Array) -> int:
    least = pc.min(times.view(pa.int32() if pa.types.is_date32(times.type) else pa.int64())).as_py()
    return 2**63 if least is None else int(least)


class SelectColumnsOperator(Operator):
    def __init__(self, name: str, columns: Mapping[str, str]) -> None:
        self._where = f"select {name!r}"
        self._columns = dict(columns)
        self._from: pa.Schema | None = None
        self._to: pa.Schema | None = None
        self._positions: list[int] | None = None  # None: some are missing

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        few = batch.few
        if few is not None:
            if few.schema is not self._from:
                self._see(few)
            if self._positions is not None:
                columns = few.columns
                emit(batch.having(FewRows.made_of(self._to, [columns[at] for at in self._positions])))
                return
        arrays = [column_of(batch.rows, column, self._where) for column in self._columns.values()]
        emit(batch.having(pa.RecordBatch.from_arrays(arrays, names=list(self._columns))))

    def _see(self, few: FewRows) -> None:
        self._from, self._positions = few.schema, None
        positions, wanted = few.layout.positions, self._columns.values()
        if positions.keys() >= set(wanted):
            self._positions = [positions[column] for column in wanted]
            self._to = pa.schema([(new, few.schema.field(column).type) for new, column in self._columns.items()])


class MapBatchesOperator(Operator):
    def __init__(
        self,
        name: str,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema | None = None,
        on_error: OnError = "fail",
        one_to_one: bool = False,
        event_times: frozenset[str] = frozenset(),
    ) -> None:
        """`one_to_one`: the function returns a row for each row, in order. `event_times`: see `KeptTimes`."""
        self._one_to_one = one_to_one
        self._times = KeptTimes(event_times, f"{function_name(function)} of map_batches {name!r}")
        self._name = name
        self._function = function
        self._schema = schema
        self._subtask = 0
        self._failures = None if on_error == "fail" else Failures(on_error, name, function_name(function))

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        if self._failures is not None:
            self._failures.opened(context)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if not self.is_followed:
            self._call(batch.reaching(None), emit)
        elif self._one_to_one or batch.reached is None:
            self._call(batch, emit)
        else:
            for moment in batch.moments():
                self._call(moment, emit)

    def _call(self, batch: Batch, emit: Emit) -> None:
        failures = self._failures
        if failures is not None:
            for part, result in in_parts(batch, lambda part: self._function(part.rows), failures, self._failed):
                self._emit(result, part, emit)
            failures.flush(emit, batch.emit_ns)
            return
        try:
            result = self._function(batch.rows)
        except Exception as error:
            raise self._failed(error, batch) from error
        self._emit(result, batch, emit)

    def _failed(self, error: Exception, batch: Batch) -> Exception:
        return user_error(
            error,
            function=function_name(self._function),
            operator=self._name,
            subtask=self._subtask,
            batch=batch.rows,
        )

    def _emit(self, result: Any, batch: Batch, emit: Emit) -> None:
        if isinstance(result, pa.Table):
            result = one_batch(result, f"{function_name(self._function)} of operator {self._name!r}")
        if result is None:
            if self._one_to_one:
                raise self._not_one_to_one(0, batch)
            return
        if not isinstance(result, pa.RecordBatch):
            raise InvalidJob(
                f"{function_name(self._function)} of operator {self._name!r} returned {type(result).__name__}: "
                "return a pyarrow.RecordBatch, a pyarrow.Table or None"
            )
        if self._schema is None:
            self._schema = self._checked(result.schema)
        elif not result.schema.equals(self._schema):
            raise InvalidJob(
                f"{function_name(self._function)} of operator {self._name!r} returned ({described(result.schema)}), "
                f"but its schema is ({described(self._schema)}): return one schema always, or correct schema="
            )
        if self.is_followed:
            self._times.check(batch, result)
        if self._one_to_one:
            if result.num_rows != batch.count:
                raise self._not_one_to_one(result.num_rows, batch)
            emit(batch.having(result))
        elif result.num_rows:
            emit(batch.made(result))

    def _not_one_to_one(self, rows: int, batch: Batch) -> InvalidJob:
        return InvalidJob(
            f"{function_name(self._function)} of operator {self._name!r} returned {counted(rows, 'row')} for "
            f"{batch.count}, and one_to_one=True says that each row becomes one row: leave one_to_one out"
        )

    def _checked(self, schema: pa.Schema) -> pa.Schema:
        repeated = [name for name, count in Counter(schema.names).items() if count > 1]
        if repeated:
            raise InvalidJob(
                f"{function_name(self._function)} of operator {self._name!r} returned two columns {repeated[0]!r}: "
                "rename one of them"
            )
        return schema


class UnionOperator(Operator):
    """Emits the batches of all ports; the subtask's inputs merge the watermarks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._schema: pa.Schema | None = None

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        if self._schema is None:
            self._schema = batch.schema
        elif batch.schema is not self._schema and not batch.schema.equals(self._schema):
            raise InvalidJob(
                f"union {self._name!r}: input {port} has the columns {described(batch.schema)}, earlier ones had "
                f"{described(self._schema)}: select() the same columns in every input"
            )
        emit(batch)


def column_of(rows: pa.RecordBatch, column: str, where: str) -> pa.Array:
    try:
        return rows.column(column)
    except KeyError as error:
        raise no_column(column, rows.schema.names, where) from error
