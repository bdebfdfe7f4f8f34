"""Source of the rows of a Python iterator.
The position is a count; a replay skips the rows that were read.

The slot's loop waits some milliseconds for a full batch of a quick iterator; from a slower iterator the loop takes the
available rows. After a reader is closed, the thread (`rows_ahead`) lives until the waiting iterator returns; these rows
are dropped.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.memory.rows_ahead import IteratorRaised, RowsAhead
from barrier_runtime.connectors.source import Polled, SourceSettings, Split, SplitReader
from barrier_runtime.data.rows import Row, RowWriter
from barrier_runtime.data.schemas import SchemaLike, as_schema
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob

MakeIterator = Callable[[int, int], Iterable[Row]]

_POLL_NS = 1_000_000  # between polls of an iterator that waits …
_GATHER_NS = 5_000_000  # … and after rows, because small batches cost more than they are worth


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
class IteratorSource(SourceSettings):
    """Rows (dicts) of `make_iterator(index, of)`, called for each of `splits` (default: one per subtask).

    After a failure a new iterator is made and the rows already read are skipped, so every iterator must yield the same
    rows. If this is impossible, set `replayable=False`; the job then cannot be exactly-once.

    The iterator runs in a thread, at most some thousand rows ahead, and may wait for a socket, an API or a clock. Rows
    are passed on as they are yielded. The thread is not interrupted: after a failure a new iterator may start while the
    old iterator still waits. An exception of the iterator fails the job, after the rows before the exception.
    """

    make_iterator: MakeIterator
    _: KW_ONLY
    schema: SchemaLike
    replayable: bool = True
    splits: int | None = None

    def named(self, name: str) -> "IteratedRows":
        """Checks the schema; calls nothing. Raises `InvalidJob`."""
        where = f"source {name!r}"
        if self.splits is not None and (type(self.splits) is not int or self.splits < 1):
            raise InvalidJob(f"{where}: splits={self.splits!r}: give a whole number, 1 or more")
        schema = as_schema(self.schema, where)
        return IteratedRows(name, self.make_iterator, schema, self.replayable, self.splits)


class IteratedRows:
    positions_in = "rows of an iterator"

    def __init__(
        self, name: str, make_iterator: MakeIterator, schema: pa.Schema, replayable: bool, splits: int | None
    ) -> None:
        self._name = name
        self._make_iterator = make_iterator
        self.schema = schema
        self.exactly_once = replayable
        self._splits = splits

    def __repr__(self) -> str:
        return f"iterator {function_name(self._make_iterator)}"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return shares(self._splits or parallelism)

    def reader(self, split: Split) -> SplitReader:
        return IteratorReader(self._name, self._make_iterator, SHARE.decode(split.payload), self.schema)


class IteratorReader:
    def __init__(self, name: str, make_iterator: MakeIterator, part: SplitShare, schema: pa.Schema) -> None:
        self._name = name
        self._part = part
        self._make_iterator = make_iterator
        self._function = function_name(make_iterator)
        self._schema = schema
        self._ahead: RowsAhead | None = None
        self._due_ns = 0  # for an iterator that is not quick
        self._count = 0

    @property
    def finished(self) -> bool:
        return self._ahead is not None and self._ahead.over

    def prepare(self) -> None:
        """Makes the iterator and skips the rows read before, in a thread."""
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
        part, writer = self._part, RowWriter(f"{self._function} of source {self._name!r}", self._schema)

        def begin() -> Iterator[Row]:
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
