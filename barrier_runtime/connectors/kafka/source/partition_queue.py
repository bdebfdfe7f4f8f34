"""Queue of fetched rows of a partition: filled by the fetching thread, emptied by the slot's loop.

Lock-free: each side writes a separate counter, and a deque hands rows over. An error is raised after the rows before
it.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from barrier_runtime.connectors.kafka.source.position import KafkaPosition
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows

_TOGETHER_BYTES = 256 * 1024  # up to which small chunks are joined


def no_wake() -> None:
    """For readers that are not woken."""


@dataclass(frozen=True)
class Fetched:
    """Rows, possibly none, and the position after them. `offsets`: of each row."""

    rows: pa.RecordBatch | FewRows | None
    offsets: Sequence[int]
    next_offset: int
    epoch: int | None
    at_ns: int  # steady clock, at arrival


class PartitionQueue:
    """Queue of `partition` from `position` on. `wake` is called for the first entry of an empty queue."""

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
        self.next_offset = position.offset  # to be fetched
        self.reached = position.offset  # by taken rows; belongs to the loop
        self.trouble: Exception | None = None
        self._items: deque[Fetched] = deque()
        self._put_bytes = 0
        self._taken_bytes = 0

    # ------------------------------------------------------------ the fetching thread

    @property
    def over(self) -> bool:
        """Returns whether nothing more of this partition is to be fetched."""
        return self.trouble is not None or (self.end is not None and self.next_offset >= self.end)

    @property
    def held_bytes(self) -> int:
        return self._put_bytes - self._taken_bytes

    def put(self, fetched: Fetched) -> None:
        self._put_bytes += _size(fetched)
        self.next_offset = fetched.next_offset
        if fetched.epoch is not None:
            self.epoch = fetched.epoch
        self._items.append(fetched)
        if len(self._items) == 1:  # with earlier entries the loop was woken before, and takes all
            self._wake()

    def fail(self, trouble: Exception) -> None:
        self.trouble = self.trouble or trouble
        self._wake()

    # ------------------------------------------------------------ the loop

    @property
    def waiting(self) -> bool:
        """Returns whether `take` would return rows or raise an error."""
        return bool(self._items) or self.trouble is not None

    def take(self, max_rows: int) -> Fetched | None:
        """Returns the next rows, at most `max_rows`; None if there are none.
        Raises the error after the last rows."""
        trouble = self.trouble  # read first: rows are put before the error is set
        if not self._items:
            if trouble is not None:
                raise trouble
            return None
        item, size = self._joined(max_rows)
        rows, offsets = item.rows, item.offsets
        if rows is None or len(offsets) <= max_rows:
            self._taken_bytes += size
            self.reached = item.next_offset
            return item
        taken, rest = _cut(rows, max_rows)
        later = Fetched(rest, offsets[max_rows:], item.next_offset, item.epoch, item.at_ns)
        self._taken_bytes += size - _size(later)
        self._items.appendleft(later)
        self.reached = offsets[max_rows - 1] + 1
        return Fetched(taken, offsets[:max_rows], self.reached, item.epoch, item.at_ns)

    def _joined(self, max_rows: int) -> tuple[Fetched, int]:
        """Returns the next chunk with following small chunks: a batch costs as much as hundreds of rows.

        Also returns their size when they were put, which may differ from the joined size.
        """
        taken = [self._items.popleft()]
        count, size = len(taken[0].offsets), _size(taken[0])
        while self._items:
            behind = self._items[0]
            if count + len(behind.offsets) > max_rows or size + _size(behind) > _TOGETHER_BYTES:
                break
            taken.append(self._items.popleft())
            count, size = count + len(behind.offsets), size + _size(behind)
        if len(taken) == 1:
            return taken[0], size
        joined = Fetched(
            _together([each.rows for each in taken if each.rows is not None]),
            list(itertools.chain.from_iterable(each.offsets for each in taken)),
            taken[-1].next_offset,
            next((each.epoch for each in reversed(taken) if each.epoch is not None), None),
            taken[0].at_ns,
        )
        return joined, size


def _size(fetched: Fetched) -> int:
    rows = fetched.rows
    if rows is None:
        return 0
    return rows.most_bytes if isinstance(rows, FewRows) else int(rows.nbytes)


def _cut(rows: pa.RecordBatch | FewRows, count: int) -> tuple[pa.RecordBatch | FewRows, pa.RecordBatch | FewRows]:
    if isinstance(rows, FewRows):
        return rows.take(range(count)), rows.take(range(count, rows.count))
    return rows.slice(0, count), rows.slice(count)


def _together(parts: Sequence[pa.RecordBatch | FewRows]) -> pa.RecordBatch | FewRows | None:
    few = [part for part in parts if isinstance(part, FewRows)]
    if not parts:
        return None
    if len(few) == len(parts):
        joined = FewRows.joined(few)
        return joined if joined.count <= MOST_ROWS else joined.record_batch()
    return pa.concat_batches([part.record_batch() if isinstance(part, FewRows) else part for part in parts])
