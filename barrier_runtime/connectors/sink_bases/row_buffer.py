"""The rows of one open transaction, cut into parts: what is full is staged early, so that memory stays bounded.

Written on the loop, staged off it. `staging` guards every part but the last, which only the loop touches.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from barrier_runtime.data.few_rows import FewRows

_Staged = TypeVar("_Staged")
_BATCH_OVERHEAD = 2_048  # bytes a RecordBatch costs beside its values, so that one-row batches count too
_MERGE_BATCHES = 64  # so many small ones become one
_MEASURED_BYTES = 64 << 10
_MOST_GATHERED = 512  # rows of small batches that become one
_FEW_OVERHEAD = 512  # bytes that a small batch costs as lists, beside its values
_MERGE_BYTES = 64 << 20  # what is larger stays as it is: it needs no merging, and 32-bit offsets end at 2 GiB


class BufferPart(Generic[_Staged]):
    """`staged` is set once the rows are durable; then the rows are dropped."""

    __slots__ = ("batches", "bytes", "merged", "rows", "staged", "unmerged_bytes")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.merged = 0  # so many at the front are merged ones
        self.bytes = 0
        self.unmerged_bytes = 0  # of those behind the merged ones
        self.rows = 0
        self.staged: _Staged | None = None

    def content(self) -> Sequence[Any]:
        """The rows as `make` gets them, when the part is full."""
        return self.batches

    def drop(self) -> None:
        """The rows are durable."""
        self.batches = []


class RowBuffer(Generic[_Staged]):
    """Parts in the order of their rows; the last one is still written to."""

    __slots__ = ("_current", "_few", "_few_bytes", "_few_rows", "_full", "_staging")

    def __init__(self) -> None:
        self._few: list[FewRows] = []  # the last rows of the current part, not in Arrow yet
        self._few_rows = self._few_bytes = 0
        self._full: list[BufferPart[_Staged]] = []
        self._current: BufferPart[_Staged] = self._part()
        self._staging = threading.Lock()

    def _part(self) -> BufferPart[_Staged]:
        """A new one."""
        return BufferPart()

    @property
    def bytes_in_current(self) -> int:
        """Never less than the rows' Arrow bytes, and not much more."""
        return self._current.bytes + self._few_bytes

    def write_few(self, rows: FewRows) -> None:
        """The same for rows as lists: some hundreds become one batch of Arrow."""
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
            # A few microseconds here and there, instead of milliseconds in pre-commit during which the loop waits.
            if part.unmerged_bytes <= _MERGE_BYTES:
                merged = pa.concat_batches(part.batches[part.merged :])
                part.batches[part.merged :] = [merged]
                part.bytes += merged.get_total_buffer_size() - part.unmerged_bytes
            part.merged, part.unmerged_bytes = len(part.batches), 0

    def fill_up(self) -> None:
        """What was written so far is one part, to be staged as such."""
        self._write_gathered()
        if self._current.rows:
            self._full.append(self._current)
            self._current = self._part()

    def rest(self) -> Sequence[pa.RecordBatch]:
        """What is not full, when nobody writes to it any more. May be asked for again."""
        self._write_gathered()
        return tuple(self._current.batches)

    def stage(self, make: Callable[[Sequence[Any]], _Staged]) -> list[_Staged]:
        """Make durable, by `make`, whatever is full and is not yet. May be called again after it raised."""
        with self._staging:
            staged = []
            for part in list(self._full):
                if part.staged is None:
                    part.staged = make(part.content())
                    part.drop()
                staged.append(part.staged)
            return staged


def _weight(rows: pa.RecordBatch) -> int:
    """Bytes, not less than they are. To sum buffers takes half a microsecond, but counts all of what `rows` is only a
    slice of: too much by so little, until it is merged, that the measure, 12 microseconds, is kept for larger ones."""
    buffers: int = rows.get_total_buffer_size()
    return rows.nbytes if buffers > _MEASURED_BYTES else buffers


class InOrder(Generic[_Staged]):
    """Buffers of a sink that writes to its target before commit: rows go out in the order in which they came.

    Early staging of a newer transaction and the pre-commit of an older one run on threads of their own, and a
    pre-commit may be late or, when its checkpoint is given up, not come at all. So whoever stages stages everything
    older first."""

    def __init__(self) -> None:
        self._going_out = threading.Lock()
        self._begun: deque[RowBuffer[_Staged]] = deque()  # oldest first; the last one is still written to

    def begin(self) -> RowBuffer[_Staged]:
        buffer: RowBuffer[_Staged] = RowBuffer()
        self._begun.append(buffer)
        return buffer

    def stage(
        self, until: RowBuffer[_Staged], make: Callable[[Sequence[pa.RecordBatch]], _Staged], *, closed: bool
    ) -> None:
        """Stage every older buffer whole, then what is full of `until`; all of it if it is `closed`, that is, if nobody
        writes to it any more. May be called again after it raised."""
        with self._going_out:
            while until in self._begun:
                oldest = self._begun[0]
                whole = closed or oldest is not until
                if whole:
                    oldest.fill_up()
                oldest.stage(make)
                if not whole:
                    return
                self._begun.popleft()
