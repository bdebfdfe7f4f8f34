"""Rows of one open transaction, in memory until they are worked off: staged, sent, written.

Rows are added on the loop, one *lot* after the other. Full lots are worked off on any thread, in order, each once; a
lot whose work raised stays, and is worked off by whoever tries next.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import pyarrow as pa

_BATCH_OVERHEAD = 2_048  # bytes a RecordBatch costs beside its values, so that one-row batches count too
_MERGE_BATCHES = 64  # so many small ones become one; the first of them is weighed: asking each would cost too much

T = TypeVar("T")


class _Lot(Generic[T]):
    __slots__ = ("batches", "bytes", "merged", "result", "row_bytes")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.merged = 0  # so many at the front are merged ones
        self.bytes = 0.0  # estimated
        self.row_bytes = 0.0  # of the batch weighed last
        self.result: T | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        if len(self.batches) == self.merged:
            self.row_bytes = rows.nbytes / max(1, rows.num_rows)
        self.batches.append(rows)
        if len(self.batches) - self.merged >= _MERGE_BATCHES:
            self.batches[self.merged :] = [pa.concat_batches(self.batches[self.merged :])]
            self.merged += 1
        self.bytes += rows.num_rows * self.row_bytes + _BATCH_OVERHEAD


class BufferedRows(Generic[T]):
    """`T`: what working off one lot gives; not None."""

    def __init__(self) -> None:
        self._full: list[_Lot[T]] = []
        self._open: _Lot[T] = _Lot()
        self._working = threading.Lock()

    @property
    def open_bytes(self) -> float:
        """Estimated Arrow bytes of the open lot."""
        return self._open.bytes

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._open.add(rows)

    def close_lot(self) -> None:
        """What was added so far may be worked off. Only by who adds, or when nobody adds any more."""
        if self._open.batches:
            self._full.append(self._open)
            self._open = _Lot()

    def work_off(self, do: Callable[[Sequence[pa.RecordBatch]], T]) -> list[T]:
        """Call `do` with the batches of every full lot that it has not finished, oldest first; return what it gave for
        each of all full lots. May be called again after it raised."""
        with self._working:
            results: list[T] = []
            for lot in list(self._full):
                if lot.result is None:
                    lot.result = do(lot.batches)
                    lot.batches = []
                results.append(lot.result)
            return results
