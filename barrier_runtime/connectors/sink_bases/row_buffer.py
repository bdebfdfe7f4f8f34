"""Rows of an open transaction, cut into parts: full parts are staged early, to bound memory.

The event loop writes, other threads stage. The lock `_staging` guards every part except the last, which only the event
loop touches.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows

_Staged = TypeVar("_Staged")
_BATCH_OVERHEAD = 2_048  # bytes of a RecordBatch besides the values
_MERGE_BATCHES = 64
_MEASURED_BYTES = 64 << 10
_MOST_GATHERED = 512  # rows
_FEW_OVERHEAD = 512  # bytes of a small batch, besides the values
_MERGE_BYTES = 64 << 20  # larger batches need no merging, and 32-bit offsets end at 2 GiB


class BufferPart(Generic[_Staged]):
    """Part of a transaction. `staged` is set as soon as the rows are durable; then the rows are dropped."""

    __slots__ = ("batches", "bytes", "merged", "rows", "staged", "unmerged_bytes")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.merged = 0  # batches at the front
        self.bytes = 0
        self.unmerged_bytes = 0
        self.rows = 0
        self.staged: _Staged | None = None

    def content(self) -> Sequence[Any]:
        return self.batches

    def drop(self) -> None:
        self.batches = []


class RowBuffer(Generic[_Staged]):
    """Parts in row order; only the last part receives rows."""

    __slots__ = ("_current", "_few", "_few_bytes", "_few_rows", "_full", "_staging")

    def __init__(self) -> None:
        self._few: list[FewRows] = []  # the last rows of the current part, not yet Arrow
        self._few_rows = self._few_bytes = 0
        self._full: list[BufferPart[_Staged]] = []
        self._current: BufferPart[_Staged] = self._part()
        self._staging = threading.Lock()

    def _part(self) -> BufferPart[_Staged]:
        return BufferPart()

    @property
    def bytes_in_current(self) -> int:
        """At least the Arrow bytes of the current part's rows."""
        return self._current.bytes + self._few_bytes

    def write_few(self, rows: FewRows) -> None:
        few = self._few
        if few and few[0].schema is not rows.schema:
            self._write_gathered()
        self._few.append(rows)
        self._few_rows += rows.count
        self._few_bytes += rows.most_bytes + _FEW_OVERHEAD
        if self._few_rows >= _MOST_GATHERED or self._few_bytes >= _MEASURED_BYTES:
            self._write_gathered()

    def _write_gathered(self) -> None:
        few, self._few = self._few, []
        self._few_rows = self._few_bytes = 0
        if few:
            self.write(FewRows.joined(few).record_batch())

    def write(self, rows: pa.RecordBatch) -> None:
        if self._few:
            self._write_gathered()
        part = self._current
        weight = _weight(rows)
        part.batches.append(rows)
        part.rows += rows.num_rows
        part.bytes += weight + _BATCH_OVERHEAD
        part.unmerged_bytes += weight
        if len(part.batches) - part.merged >= _MERGE_BATCHES:
            # Saves milliseconds in pre-commit, for which the event loop would wait.
            if part.unmerged_bytes <= _MERGE_BYTES:
                merged = pa.concat_batches(part.batches[part.merged :])
                part.batches[part.merged :] = [merged]
                part.bytes += merged.get_total_buffer_size() - part.unmerged_bytes
            part.merged, part.unmerged_bytes = len(part.batches), 0

    def fill_up(self) -> bool:
        """Ends the current part for the next `stage`. Returns False without rows."""
        self._write_gathered()
        if not self._current.rows:
            return False
        self._full.append(self._current)
        self._current = self._part()
        return True

    def rest(self) -> Sequence[pa.RecordBatch]:
        self._write_gathered()
        return tuple(self._current.batches)

    def stage(self, make: Callable[[Sequence[Any]], _Staged]) -> list[_Staged]:
        """Makes all full parts durable by `make`, once each; may be repeated after an error."""
        with self._staging:
            staged = []
            for part in list(self._full):
                if part.staged is None:
                    part.staged = make(part.content())
                    part.drop()
                staged.append(part.staged)
            return staged

    def hand_over(self, write_out: Callable[[Sequence[Any]], None]) -> None:
        """Stages all full parts, and forgets durable parts."""
        with self._staging:
            while self._full:
                write_out(self._full[0].content())
                del self._full[0]


def _weight(rows: pa.RecordBatch) -> int:
    """Arrow bytes, never too few. Small slices count whole buffers, because an exact measurement is slow."""
    buffers: int = rows.get_total_buffer_size()
    return rows.nbytes if buffers > _MEASURED_BYTES else buffers


class InOrder:
    """Buffers of a sink that writes before the commit: rows leave in the order of their arrival.

    The pre-commit of an older transaction may be late, or absent after an abort, so `stage` first stages all older
    buffers.
    """

    def __init__(self) -> None:
        self._going_out = threading.Lock()
        self._begun: deque[RowBuffer[None]] = deque()  # oldest first

    def begin(self) -> RowBuffer[None]:
        buffer: RowBuffer[None] = RowBuffer()
        self._begun.append(buffer)
        return buffer

    def stage(
        self, until: RowBuffer[None], write_out: Callable[[Sequence[pa.RecordBatch]], None], *, closed: bool
    ) -> None:
        """Stages every older buffer, then the full parts of `until` (all parts if `closed`).

        May be repeated after an error.
        """
        with self._going_out:
            while until in self._begun:
                oldest = self._begun[0]
                whole = closed or oldest is not until
                if whole:
                    oldest.fill_up()
                oldest.hand_over(write_out)
                if not whole:
                    return
                self._begun.popleft()
