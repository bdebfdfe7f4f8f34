"""`filter`, `select` and `split` with `pyarrow.compute` expressions: a batch at a time, no Python per row.

A file of its own because Arrow's expression engine takes a while to import: only jobs that use expressions pay.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.expressions import evaluate
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.batch_functions import column_of
from barrier_runtime.operators.split import SplitOperator
from barrier_runtime.state.errors import InvalidJob


class FilterExpressionOperator(Operator):
    """Rows for which the expression is true (not null, not false)."""

    def __init__(self, name: str, expression: pc.Expression) -> None:
        self._where = f"filter {name!r}"
        self._expression = expression

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        mask = evaluate(batch.rows, [self._expression], self._where)[0]
        if not pa.types.is_boolean(mask.type):
            raise InvalidJob(f"{self._where}: the expression gives {mask.type}: use one that gives true or false")
        kept = mask.true_count
        if kept == len(mask):
            emit(batch)
        elif kept:
            emit(batch.only(batch.rows.filter(mask), mask))


class SelectExpressionsOperator(Operator):
    """Columns by name, renamed or computed, in the given order."""

    def __init__(self, name: str, columns: Mapping[str, str | pc.Expression]) -> None:
        self._where = f"select {name!r}"
        self._columns = dict(columns)
        self._expressions = [value for value in self._columns.values() if not isinstance(value, str)]

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        computed = iter(evaluate(batch.rows, self._expressions, self._where))
        arrays = [
            column_of(batch.rows, value, self._where) if isinstance(value, str) else next(computed)
            for value in self._columns.values()
        ]
        emit(batch.having(pa.RecordBatch.from_arrays(arrays, names=list(self._columns))))


class SplitExpressionOperator(SplitOperator):
    """Each row goes to the branch that the expression gives as text."""

    def _branches(self, batch: Batch) -> list[Any]:
        (branches,) = evaluate(batch.rows, [self._function], f"split {self._name!r}")
        found: list[Any] = branches.to_pylist()
        return found

    @property
    def _said(self) -> str:
        return f"the expression {self._function}"
