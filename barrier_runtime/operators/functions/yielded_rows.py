"""Rows that a keyed function gave while a batch was processed."""

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row, RowWriter


class YieldedRows:
    """Rows that a function gave, and the event time reached at each of them if that is told on."""

    __slots__ = ("_by_row", "_reached", "rows")

    def __init__(self, by_row: bool) -> None:
        self.rows: list[Row] = []
        self._by_row = by_row
        self._reached: list[int] = []

    def upto(self, reached_ms: int) -> None:
        """Of the rows that came since the last call."""
        if self._by_row and len(self._reached) < len(self.rows):
            self._reached += [reached_ms] * (len(self.rows) - len(self._reached))

    def batch(self, writer: RowWriter, like: pa.Schema | None, emit_ns: int) -> Batch:
        reached = np.array(self._reached, np.int64) if self._by_row else None
        return Batch(writer.made(self.rows, like), emit_ns, reached)
