"""Rows of a user's iterator, batched in a separate thread, so that taking rows never waits long.

The thread builds chunks, small enough that their rows stay in the processor's cache until they become columns, and
stops at a full batch, bounded by rows and bytes, until the batch is taken: two threads should rarely alternate at the
interpreter. While the iterator waits, incomplete batches can be taken.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from barrier_runtime.data.rows import Row, RowWriter

_TIMEOUT_S = 0.005  # for an iterator that was quick so far
_CHUNK_ROWS = 1_024
_BATCH_CHUNKS = 4
_BATCH_BYTES = 8 << 20
_WEIGH_EVERY = 64  # of so many rows one is weighed, of large rows every row
# These iterators run no user code that could change a row after it was yielded.
_NO_CODE: tuple[type, ...] = (type(iter([])), type(iter(())))


class IteratorRaised(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class RowsAhead:
    """Pulls rows in a thread.

    `begin` makes the iterator, also in the thread, and may take any time. The thread and the caller of `take` share
    `writer`.
    """

    def __init__(
        self,
        begin: Callable[[], Iterator[Row]],
        writer: RowWriter,
        schema: pa.Schema,
        name: str,
    ) -> None:
        self._begin = begin
        self._writer = writer
        self._wide = [field.name for field in schema if not _is_narrow(field.type)]
        self._changed = threading.Condition()
        self._rest: pa.RecordBatch | None = None  # the oldest rows, owned by the caller; then …
        self._chunks: list[pa.RecordBatch] = []
        self._chunks_bytes = 0
        self._filling: list[Row] = []  # the newest rows, to which the thread appends while a caller reads
        self._taken = 0  # rows of `_filling` that were taken
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self.quick = True  # full batches came in time
        threading.Thread(target=self._run, name=f"rows-{name}", daemon=True).start()

    def take(self, limit: int) -> pa.RecordBatch | None:
        """Returns the next rows, at most `limit`; None if there are none now, or no more.

        Raises `IteratorRaised` or an error of the writer after all earlier rows were taken.
        """
        if self._rest is not None:
            return self._first(self._rest, limit)
        with self._changed:
            if self.quick:
                self._changed.wait_for(self._is_enough, _TIMEOUT_S)
            self.quick = self._is_enough()
            if self._chunks:
                chunks, self._chunks, self._chunks_bytes = self._chunks, [], 0
                self._changed.notify()
                return self._first(_joined(chunks), limit)
            if self._error is not None:
                raise self._error
            rows = self._filling[self._taken : self._taken + limit]
            self._taken += len(rows)
        return self._writer.batch(rows) if rows else None

    @property
    def over(self) -> bool:
        """Returns whether every row was taken and no more rows follow."""
        return self._ended and not self._chunks and self._rest is None and self._error is None

    def _first(self, rows: pa.RecordBatch, limit: int) -> pa.RecordBatch:
        self._rest = rows.slice(limit) if rows.num_rows > limit else None
        return rows.slice(0, limit) if self._rest is not None else rows

    def _is_enough(self) -> bool:
        return len(self._chunks) >= _BATCH_CHUNKS or self._chunks_bytes >= _BATCH_BYTES or self._ended

    def close(self) -> None:
        """Does not wait for a waiting iterator: the thread ends when the iterator returns."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._pull()
        except BaseException as raised:  # `take` raises the exception again
            error = raised
        with self._changed:
            self._error = error
            self._ended = True
            self._changed.notify()

    def _pull(self) -> None:
        try:
            iterator = self._begin()
        except Exception as error:
            raise IteratorRaised(error) from error
        more = True
        while more and self._has_room():
            try:
                more = self._fill(iterator)
            except Exception as error:
                raise IteratorRaised(error) from error
            finally:
                self._hand_over()

    def _has_room(self) -> bool:
        """Waits until a full batch was taken. Returns False after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_enough())
            return not self._closed

    def _fill(self, iterator: Iterator[Row]) -> bool:
        """Fills a chunk. Returns False at the end of the iterator."""
        rows = self._filling
        weight, wanted, size = self._chunks_bytes, 0, 1 if self._wide else _CHUNK_ROWS
        while wanted < _CHUNK_ROWS and weight < _BATCH_BYTES and not self._closed:
            size = min(size, _CHUNK_ROWS - wanted)
            wanted += size
            chunk = itertools.islice(iterator, size)
            if type(iterator) in _NO_CODE:
                rows.extend(chunk)
            else:
                self._writer.take(chunk, rows)
            if len(rows) < wanted:
                return False
            each = self._weight(rows[-1])
            weight += each * size
            size = 1 if each * _WEIGH_EVERY > _BATCH_BYTES else min(2 * size, _WEIGH_EVERY)
        return True

    def _weight(self, row: Row) -> int:
        """Approximate bytes of a row. Values that are not rows are refused later."""
        if not self._wide or not isinstance(row, dict):
            return 0
        return sum([_weight(row.get(name)) for name in self._wide])

    def _hand_over(self) -> None:
        with self._changed:
            rows, self._filling, self._taken = self._filling[self._taken :], [], 0
        if rows:
            batch = self._writer.batch(rows)
            with self._changed:
                self._chunks.append(batch)
                self._chunks_bytes += batch.nbytes
                if self._is_enough():
                    self._changed.notify()


def _is_narrow(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


def _weight(value: Any) -> int:
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_weight, value)) + sum(map(_weight, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return sum(map(_weight, value))
    return 8


def _joined(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)
