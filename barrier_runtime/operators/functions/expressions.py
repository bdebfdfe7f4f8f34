"""`filter`, `select` and `split` by expressions, and `explode`, without Python code per row.

A separate file, because Arrow's expression engine is slow to import.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.expression_tree import FunctionCalls
from barrier_runtime.data.expressions import Compiled, Shared, calls, evaluate, shared
from barrier_runtime.data.plain_rows import PlainRows, without_views
from barrier_runtime.data.values.json_columns import is_list
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.functions.batch_functions import column_of
from barrier_runtime.operators.outputs.split import SplitOperator
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.data.sql.expression import SqlExpression


_IN_PARTS = 32_768  # rows: of a larger batch, Arrow's engine computes parts that fit a processor's cache


class _Evaluation:
    """Expressions of a step; SQL without known columns is compiled for the rows that arrive."""

    def __init__(self, expressions: "Sequence[Compiled | SqlExpression]", where: str) -> None:
        self._given = list(expressions)
        self._where = where
        self._plain = PlainRows()  # rows of a source or a function may have dictionaries
        self._schema: pa.Schema | None = None
        self._compiled: list[pc.Expression] = []
        self._shared = Shared({}, [])
        self._calls: FunctionCalls | None = None

    def __call__(self, rows: pa.RecordBatch) -> list[pa.Array]:
        rows = self._plain(rows)
        if self._schema is not rows.schema and rows.schema != self._schema:
            self._schema = rows.schema
            self._compiled = [
                each.expression if isinstance(each, Compiled) else each.compiled(rows.schema) for each in self._given
            ]
            self._shared = shared(self._compiled, rows.schema.names)
            self._calls = calls(self._shared, rows.schema)
        if self._calls is not None and len(rows) <= _IN_PARTS:
            try:
                return self._calls(rows)
            except pa.ArrowException:
                pass  # the engine refuses as well, and says which expression
        try:
            return evaluate(rows, self._shared.expressions, self._where, self._shared.parts)
        except InvalidJob:
            for given, compiled in zip(self._given, self._compiled, strict=True):  # finds the expression that failed
                evaluate(rows, [compiled], f"{self._where}: {given.text!r}")
            raise


class FilterExpressionOperator(Operator):
    def __init__(self, name: str, expression: "Compiled | SqlExpression") -> None:
        self._where = f"filter {name!r}"
        self._evaluate = _Evaluation([expression], self._where)
        self._takeable = PlainRows(without_views)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        batch = self._takeable.batch(batch)
        (mask,) = self._evaluate(batch.rows)
        if not pa.types.is_boolean(mask.type):
            raise InvalidJob(f"{self._where}: the expression gives {mask.type}: use one that gives true or false")
        kept = mask.true_count
        if kept == len(mask):
            emit(batch)
        elif kept:
            emit(batch.only(batch.rows.filter(mask), mask))


class SelectExpressionsOperator(Operator):
    def __init__(self, name: str, columns: "Mapping[str, str | Compiled | SqlExpression]") -> None:
        self._where = f"select {name!r}"
        self._columns = dict(columns)
        expressions = [value for value in self._columns.values() if not isinstance(value, str)]
        self._evaluate = _Evaluation(expressions, self._where)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        computed = iter(self._evaluate(batch.rows))
        arrays = [
            column_of(batch.rows, value, self._where) if isinstance(value, str) else next(computed)
            for value in self._columns.values()
        ]
        emit(batch.having(pa.RecordBatch.from_arrays(arrays, names=list(self._columns))))


class SplitExpressionOperator(SplitOperator):
    def __init__(self, name: str, function: "Compiled | SqlExpression", into: Sequence[str]) -> None:
        super().__init__(name, function, into)
        self._text = function.text
        self._evaluate = _Evaluation([function], f"split {name!r}")

    def _branches(self, batch: Batch) -> list[Any]:
        (branches,) = self._evaluate(batch.rows)
        found: list[Any] = branches.to_pylist()
        return found

    @property
    def _said(self) -> str:
        return f"the expression {self._text!r}"


POSITION = pa.int32()  # of an element, as in Spark


class ExplodeOperator(Operator):
    """Emits the other columns of a row with each element, in order."""

    def __init__(self, name: str, column: str, into: Sequence[str], outer: bool, position: str | None) -> None:
        """`into`: names of the element, or of key and value. `outer`: keeps rows without elements, with nulls."""
        self._where = f"explode {name!r}"
        self._column = column
        self._into = list(into)
        self._outer = outer
        self._position = position
        self._takeable = PlainRows(without_views)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        batch = self._takeable.batch(batch)
        rows = batch.rows
        begins, counts, children = _parts(column_of(rows, self._column, self._where))
        given = np.maximum(counts, 1) if self._outer else counts
        parents = np.repeat(np.arange(len(rows)), given)
        if not len(parents):
            return
        places = np.arange(len(parents)) - np.repeat(np.cumsum(given) - given, given)
        absent = counts[parents] == 0
        at = pa.array(begins[parents] + places, mask=absent)
        columns: dict[str, pa.Array] = {}
        for field in rows.schema:
            if field.name == self._column:
                columns.update(zip(self._into, (child.take(at) for child in children), strict=True))
            else:
                columns[field.name] = rows.column(field.name).take(pa.array(parents))
        if self._position is not None:
            columns[self._position] = pa.array(places.astype(np.int32), mask=absent)
        emit(batch.only(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), parents))


def _parts(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[pa.Array]]:
    """Returns per row the first element and the number of elements; and the children."""
    if not pa.types.is_map(column.type) and not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_numpy().astype(np.int64)
    counts = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
    is_map = pa.types.is_map(column.type)
    return offsets[:-1], counts, [column.keys, column.items] if is_map else [column.values]


def exploded(
    schema: pa.Schema, column: str, into: Sequence[str] | None, position: str | None, where: str
) -> tuple[list[str], pa.Schema]:
    kind = schema.field(column).type
    if pa.types.is_map(kind):
        names, kinds = list(into or ("key", "value")), [kind.key_type, kind.item_type]
    elif is_list(kind):
        names, kinds = list(into or (column,)), [kind.value_type]
    else:
        raise InvalidJob(f"{where}: column {column!r} is {kind}: it takes an array or a map")
    if len(names) != len(kinds):
        wanted = "names of the key and the value" if len(kinds) > 1 else "one name"
        raise InvalidJob(f"{where}: into={names!r}: give {wanted}")
    fields = list(schema)
    at = schema.names.index(column)
    fields[at : at + 1] = [pa.field(name, each) for name, each in zip(names, kinds, strict=True)]
    if position is not None:
        fields.append(pa.field(position, POSITION))
    output = pa.schema(fields)
    if twice := sorted({name for name in output.names if output.names.count(name) > 1}):
        raise InvalidJob(f"{where}: the output column {twice[0]!r} exists already: choose another name by into=")
    return names, output
