"""Bad records of a source on a side output of their own, good rows on the main output.

A source that hands on what it cannot decode gives both in one batch, so that positions count all of them; here, right
behind it, they part.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.outputs.side_outputs import send

DEAD_LETTERS = "dead letters"  # tag of the side output


class DeadLetterOperator(Operator):
    def __init__(self, name: str, error: str, good: Sequence[str], dead_letter: Mapping[str, str]) -> None:
        """`error`: the column that is null in good rows. `good`: columns of these. `dead_letter`: of the others, new
        name to column."""
        self._error = error
        self._good = list(good)
        self._dead_letter = dict(dead_letter)

    def open(self, context: OperatorContext) -> None:
        self._metrics = context.metrics

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        errors = rows.column(self._error)
        if errors.null_count == rows.num_rows:
            emit(batch.having(rows.select(self._good)))
            return
        good = pc.is_null(errors)
        emit(batch.only(rows.filter(good).select(self._good), good))
        bad = pc.invert(good)
        of_bad = rows.filter(bad)
        columns = [of_bad.column(column) for column in self._dead_letter.values()]
        letters = pa.RecordBatch.from_arrays(columns, names=list(self._dead_letter))
        send(emit, DEAD_LETTERS, batch.only(letters, bad), self._metrics)
