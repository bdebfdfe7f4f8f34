"""Source of a Python iterator, which a thread pulls in batches.

The thread stops at a full batch until the batch is taken.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.source import Polled, SourceOf, Split, SplitReader
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.row_class import AnyRow, RowClass, is_instance, row_class
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.schemas import Rows, SchemaOf, as_schema
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob

_TIMEOUT_S = 0.005  # of the wait for a full batch of a quick iterator
_CHUNK_ROWS = 1_024
_BATCH_CHUNKS = 4
_BATCH_BYTES = 8 << 20
_WEIGH_EVERY = 64  # rows per weighed row; large rows are all weighed
# Iterators without user code, which could change a yielded row.
_NO_CODE: tuple[type, ...] = (type(iter([])), type(iter(())))


MakeIterator = Callable[[int, int], Iterable[AnyRow]]

_POLL_NS = 1_000_000  # between polls of an iterator that waits …
_GATHER_NS = 5_000_000  # … and after rows: small batches are costly


class SplitShare(msgspec.Struct, frozen=True):
    """Payload of split `index` of `of`, which has the rows index, index + of, index + 2 * of, …"""

    index: int
    of: int


SHARE = msgspec.json.Decoder(SplitShare)


def shares(of: int) -> list[Split]:
    return [Split(f"{i}-of-{of}", msgspec.json.encode(SplitShare(i, of)), of=of) for i in range(of)]


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int


_POSITION = msgspec.json.Decoder(_Position)


@kinds_checked
@dataclass(frozen=True)
class IteratorSource(SourceOf[Rows]):
    """Rows of `make_iterator(i, n)`, which returns split i of n, as `rows[i::n]`; `splits=1`: all rows.

    Rows are dicts. `splits`: number of splits (default: one per subtask). Pass `splits=1` with a function that ignores
    `i` and `n`.

    After a failure the source skips the rows already read in a new iterator, so every iterator must yield the same
    rows; else set `replayable=False`, and the job cannot be exactly-once.

    The iterator runs in a thread, at most some thousand rows ahead, and may wait; after a failure a new iterator may
    start meanwhile.
    """

    make_iterator: MakeIterator
    _: KW_ONLY
    schema: SchemaOf[Rows]
    replayable: bool = True
    splits: int | None = None

    def named(self, name: str) -> "IteratedRows":
        """Checks the schema; calls nothing. Raises `InvalidJob`."""
        where = f"source {name!r}"
        if self.splits is not None and (type(self.splits) is not int or self.splits < 1):
            raise InvalidJob(f"{where}: splits={self.splits!r}: give a whole number, 1 or more")
        schema = as_schema(self.schema, where)
        return IteratedRows(
            name, self.make_iterator, schema, self.replayable, self.splits, row_class(self.schema, where)
        )


@dataclass(eq=False)
class IteratedRows:
    positions_in = "rows of an iterator"

    _name: str
    _make_iterator: MakeIterator
    schema: pa.Schema
    exactly_once: bool
    _splits: int | None
    _rows: RowClass | None = None

    def __repr__(self) -> str:
        return f"iterator {function_name(self._make_iterator)}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return shares(self._splits or parallelism)

    def reader(self, split: Split) -> SplitReader:
        return IteratorReader(self._name, self._make_iterator, SHARE.decode(split.payload), self.schema, self._rows)


class IteratorRaised(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class RowsAhead:
    """Pulls rows of the iterator that `begin` makes, both in a thread.

    The thread and the caller of `take` share `writer`.
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
        self._filling: list[Row] = []  # the newest rows: the thread appends, a caller reads
        self._taken = 0
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self.quick = True
        threading.Thread(target=self._run, name=f"rows-{name}", daemon=True).start()

    def take(self, limit: int) -> pa.RecordBatch | None:
        """At most `limit` rows; None if there are none now, or no more.

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
        return self._ended and not self._chunks and self._rest is None and self._error is None

    def _first(self, rows: pa.RecordBatch, limit: int) -> pa.RecordBatch:
        self._rest = rows.slice(limit) if rows.num_rows > limit else None
        return rows.slice(0, limit) if self._rest is not None else rows

    def _is_enough(self) -> bool:
        return len(self._chunks) >= _BATCH_CHUNKS or self._chunks_bytes >= _BATCH_BYTES or self._ended

    def close(self) -> None:
        """Does not wait for a waiting iterator."""
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
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_enough())
            return not self._closed

    def _fill(self, iterator: Iterator[Row]) -> bool:
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
        if not self._wide:
            return 0
        if isinstance(row, dict):
            return sum([_weight(row.get(name)) for name in self._wide])
        return _weight(row) if is_instance(row) else 0

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
    if is_instance(value):
        names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
        return sum(_weight(getattr(value, name, None)) for name in names)
    return 8


def _joined(chunks: list[pa.RecordBatch]) -> pa.RecordBatch:
    return chunks[0] if len(chunks) == 1 else pa.concat_batches(chunks)


class IteratorReader:
    def __init__(
        self,
        name: str,
        make_iterator: MakeIterator,
        part: SplitShare,
        schema: pa.Schema,
        rows: RowClass | None = None,
    ) -> None:
        self._name = name
        self._part = part
        self._make_iterator = make_iterator
        self._function = function_name(make_iterator)
        self._schema = schema
        self._rows = rows
        self._ahead: RowsAhead | None = None
        self._due_ns = 0
        self._count = 0

    @property
    def finished(self) -> bool:
        return self._ahead is not None and self._ahead.over

    def prepare(self) -> None:
        if self._ahead is None:
            self._ahead = self._begin(self._count)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.prepare()
        assert self._ahead is not None
        try:
            rows = self._ahead.take(max_rows)
        except IteratorRaised as raised:
            raise self._failed(raised.error) from raised.error
        self._due_ns = now_ns + (_POLL_NS if rows is None else _GATHER_NS)
        if rows is None:
            return None
        self._count += rows.num_rows
        return Polled(rows, now_ns)

    def next_due_ns(self) -> int | None:
        return None if self._ahead is None or self._ahead.quick else self._due_ns

    def position(self) -> bytes:
        return msgspec.json.encode(_Position(self._count))

    def seek(self, position: bytes) -> None:
        self._count = _POSITION.decode(position).count

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _begin(self, count: int) -> RowsAhead:
        part, writer = self._part, RowWriter(f"{self._function} of source {self._name!r}", self._rows or self._schema)

        def begin() -> Iterator[Any]:
            rows = iter(self._make_iterator(part.index, part.of))
            next(itertools.islice(rows, count, count), None)
            return rows

        return RowsAhead(begin, writer, self._schema, f"{self._name}-{part.index}")

    def _failed(self, error: Exception) -> Exception:
        return user_error(
            error,
            function=f"{self._function} (row {self._count} of split {self._part.index})",
            operator=self._name,
            subtask=self._part.index,
        )
