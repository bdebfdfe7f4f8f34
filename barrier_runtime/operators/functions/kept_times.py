"""Event times of rows that a function of a whole batch gives: a check that they are not earlier than those it got.

Windows behind such a function look for late rows where the source had some. A row that the function moves back may be
late where no row of the source was: then it depends on where batches end whether the row is late.
"""

import warnings
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch


class KeptTimes:
    """`columns`: those that the watermark is of. `function`: how messages name the function."""

    def __init__(self, columns: Collection[str], function: str) -> None:
        self._columns = tuple(sorted(columns))
        self._function = function

    def check(self, batch: Batch, made: pa.RecordBatch) -> None:
        """Warns once if rows of `made` are earlier than all rows of `batch`, of which it was made."""
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
