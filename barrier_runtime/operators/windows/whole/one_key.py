"""Windows over all rows: windows by a key that is the same for all rows, which the output does not have."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit, Operator

ONE_KEY = "__all_rows__"  # the column


class OneKeyOperator(Operator):
    """Adds the column to rows."""

    def __init__(self, name: str) -> None:
        """Nothing of it depends on the name."""

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        columns = [*rows.columns, pa.array(np.zeros(len(rows), np.int64))]
        schema = rows.schema.append(pa.field(ONE_KEY, pa.int64()))
        emit(batch.having(pa.RecordBatch.from_arrays(columns, schema=schema)))


class OfAllRows:
    """A user's function of windows by `ONE_KEY`, which sees neither the key nor its column."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], batches: bool) -> None:
        self.__name__ = self.__qualname__ = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._batches = batches

    def __call__(self, key: Any, window: Any, rows: Any) -> Any:
        return self._function(None, window, _without(rows) if self._batches else rows.drop_columns([ONE_KEY]))


def _without(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.drop_columns([ONE_KEY])
