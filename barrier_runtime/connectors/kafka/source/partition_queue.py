"""Queue of fetched rows of a partition: filled by the fetching thread, emptied by the slot's loop.

Lock-free: each side writes a separate counter; a deque hands rows over. Batches grow while the source is behind.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.kafka.source.position import KafkaPosition
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows

_TOGETHER_BYTES = 4 * 1024 * 1024
_GATHERED_BYTES = _TOGETHER_BYTES // 2  # limits of gathered rows: size,
_GATHERED_ROWS = 32_768  # number,
_GATHERED_NS = 100_000_000  # age
_MOST_CHUNKS = 512  # each takes some microseconds


def no_wake() -> None:
    """For readers that are not woken."""


@dataclass(frozen=True)
class Fetched:
    """Rows in the queue, possibly none, and the position after them.

    `offsets`: of each row; `size`: an upper bound of the rows' bytes; `nulls`: records without value up to
    `next_offset`, skipped or not.
    """

    rows: pa.RecordBatch | FewRows | None
    offsets: Sequence[int]
    next_offset: int
    epoch: int | None
    at_ns: int  # steady clock, at arrival
    size: int = 0
    nulls: int = 0

    def cut(self, count: int) -> "tuple[Fetched, Fetched]":
        assert self.rows is not None
        first, rest = _cut(self.rows, count)
        offsets, size = self.offsets, self.size * count // len(self.offsets)
        return (
            Fetched(first, offsets[:count], offsets[count - 1] + 1, self.epoch, self.at_ns, size),
            Fetched(rest, offsets[count:], self.next_offset, self.epoch, self.at_ns, self.size - size, self.nulls),
        )


@dataclass(frozen=True)
class Taken:
    """`rows`: possibly none. `next_offset`: after the rows. `at_ns`: arrival of the oldest row."""

    rows: pa.RecordBatch | FewRows | None
    next_offset: int
    epoch: int | None
    at_ns: int
    nulls: int = 0


class PartitionQueue:
    """`wake` is called for the first entry of an empty queue."""

    def __init__(
        self, topic: str, partition: int, position: KafkaPosition, where: str, wake: Callable[[], None] = no_wake
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.where = where
        self._wake = wake
        self.start = position
        self.end = position.end
        self.epoch = position.epoch  # of the last fetched record; belongs to the fetching thread, as the next field
        self.next_offset = position.offset
        self.reached = position.offset  # by taken rows; belongs to the loop
        self.trouble: Exception | None = None
        self.known_end: int | None = None
        self._gathered: list[Fetched] = []  # belongs to the fetching thread, as the next two fields
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._items: deque[Fetched] = deque()
        self._put_bytes = 0
        self._taken_bytes = 0

    # ------------------------------------------------------------ the fetching thread

    @property
    def over(self) -> bool:
        return self.trouble is not None or (self.end is not None and self.next_offset >= self.end)

    @property
    def held_bytes(self) -> int:
        return self._put_bytes - self._taken_bytes

    def put(self, fetched: Fetched) -> None:
        self.gather(fetched)
        self.flush()

    def gather(self, fetched: Fetched) -> None:
        self._put_bytes += fetched.size
        self.next_offset = fetched.next_offset
        if fetched.epoch is not None:
            self.epoch = fetched.epoch
        self._gathered.append(fetched)
        self._gathered_rows += len(fetched.offsets)
        self._gathered_bytes += fetched.size

    def gathers(self, now_ns: int) -> bool:
        return (
            0 < len(self._gathered) < _MOST_CHUNKS
            and self._gathered_rows < _GATHERED_ROWS
            and self._gathered_bytes < _GATHERED_BYTES
            and now_ns - self._gathered[0].at_ns < _GATHERED_NS
        )

    def flush(self) -> None:
        if not self._gathered:
            return
        chunks, self._gathered, self._gathered_rows, self._gathered_bytes = self._gathered, [], 0, 0
        self._items.append(chunks[0] if len(chunks) == 1 else _as_one(chunks))
        if len(self._items) == 1:  # with earlier entries the loop was woken before, and takes all
            self._wake()

    def fail(self, trouble: Exception) -> None:
        self.flush()
        self.trouble = self.trouble or trouble
        self._wake()

    # ------------------------------------------------------------ the loop

    @property
    def waiting(self) -> bool:
        return bool(self._items) or self.trouble is not None

    def take(self, max_rows: int) -> Taken | None:
        """Raises the error after the last rows."""
        trouble = self.trouble  # read first: rows are put before the error is set
        if not self._items:
            if trouble is not None:
                raise trouble
            return None
        chunks = self._next(max_rows)
        self._taken_bytes += sum(chunk.size for chunk in chunks)
        self.reached = chunks[-1].next_offset
        return Taken(_rows_of(chunks), self.reached, _epoch_of(chunks), chunks[0].at_ns, _nulls_of(chunks))

    def _next(self, max_rows: int) -> list[Fetched]:
        first = self._items.popleft()
        count, size = len(first.offsets), first.size
        if count > max_rows:
            first, rest = first.cut(max_rows)
            self._items.appendleft(rest)
            return [first]
        chunks = [first]
        while self._items and len(chunks) < _MOST_CHUNKS:
            count, size = count + len(self._items[0].offsets), size + self._items[0].size
            if count > max_rows or size > _TOGETHER_BYTES:
                break
            chunks.append(self._items.popleft())
        return chunks


def _cut(rows: pa.RecordBatch | FewRows, count: int) -> tuple[pa.RecordBatch | FewRows, pa.RecordBatch | FewRows]:
    if isinstance(rows, FewRows):
        return rows.take(range(count)), rows.take(range(count, rows.count))
    return rows.slice(0, count), rows.slice(count)


def _as_one(chunks: Sequence[Fetched]) -> Fetched:
    offsets = list(chain.from_iterable(chunk.offsets for chunk in chunks))
    size, reached = sum(chunk.size for chunk in chunks), chunks[-1].next_offset
    return Fetched(_rows_of(chunks), offsets, reached, _epoch_of(chunks), chunks[0].at_ns, size, _nulls_of(chunks))


def _nulls_of(chunks: Sequence[Fetched]) -> int:
    return sum(chunk.nulls for chunk in chunks)


def _epoch_of(chunks: Sequence[Fetched]) -> int | None:
    return next((chunk.epoch for chunk in reversed(chunks) if chunk.epoch is not None), None)


def _rows_of(chunks: Sequence[Fetched]) -> pa.RecordBatch | FewRows | None:
    parts = [chunk.rows for chunk in chunks if chunk.rows is not None]
    runs = [_joined(list(run)) for _, run in groupby(parts, type)]
    if len(runs) < 2:
        return runs[0] if runs else None
    return pa.concat_batches([run.record_batch() if isinstance(run, FewRows) else run for run in runs])


def _joined(run: list[Any]) -> pa.RecordBatch | FewRows:
    if len(run) == 1:
        return run[0]
    if not isinstance(run[0], FewRows):
        return pa.concat_batches(run)
    joined = FewRows.joined(run)
    return joined if joined.count <= MOST_ROWS else joined.record_batch()
