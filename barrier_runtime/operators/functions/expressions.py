"""`filter`, `select` and `split` by expressions, without Python code per row.
Expressions are SQL or `pyarrow.compute`. In a separate file because Arrow's expression engine is slow to import: only
jobs with expressions pay."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.expressions import Compiled, evaluate
from barrier_runtime.data.plain_rows import PlainRows, without_views
from barrier_runtime.data.sql.shared_parts import Shared, shared
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.functions.batch_functions import column_of
from barrier_runtime.operators.outputs.split import SplitOperator
from barrier_runtime.state.errors import InvalidJob

if TYPE_CHECKING:
    from barrier_runtime.data.sql.expression import SqlExpression


class _Evaluation:
    """Expressions of a step.
    SQL is compiled for the rows that arrive if the columns were unknown when the flow was declared."""

    def __init__(self, expressions: "Sequence[Compiled | SqlExpression]", where: str) -> None:
        self._given = list(expressions)
        self._where = where
        self._plain = PlainRows()  # rows of a source or a function may have dictionaries
        self._schema: pa.Schema | None = None
        self._compiled: list[pc.Expression] = []
        self._shared = Shared({}, [])

    def __call__(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Returns an array per expression. Raises `InvalidJob`, with the expression, for rows without a value."""
        rows = self._plain(rows)
        if self._schema is not rows.schema and rows.schema != self._schema:
            self._schema = rows.schema
            self._compiled = [
                each.expression if isinstance(each, Compiled) else each.compiled(rows.schema) for each in self._given
            ]
            self._shared = shared(self._compiled, rows.schema.names)
        try:
            return evaluate(rows, self._shared.expressions, self._where, self._shared.parts)
        except InvalidJob:
            for given, compiled in zip(self._given, self._compiled, strict=True):  # finds the expression that failed
                evaluate(rows, [compiled], f"{self._where}: {given.text!r}")
            raise


class FilterExpressionOperator(Operator):
    """Keeps rows for which the expression is true (not null, not false)."""

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
    """Selects columns by name, renamed or computed, in the given order."""

    def __init__(self, name: str, columns: "Mapping[str, str | Compiled | SqlExpression]") -> None:
        """Texts in `columns` are names of columns."""
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
    """Sends each row to the branch that the expression returns as text."""

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
