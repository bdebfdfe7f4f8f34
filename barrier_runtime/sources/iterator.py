"""A Python iterator as a source. Its position is a count; a replay makes the iterator anew and skips what was read.

That is exactly-once only if `make_iterator(index, of)` yields the same rows each time it is called: a generator over
fixed data does, a clock or a socket does not (declare it `replayable=False`). `next()` runs on the slot's loop: an
iterator that waits makes the slot wait.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.rows import Row, RowWriter
from barrier_runtime.sources.base import Polled, Split, SplitReader

MakeIterator = Callable[[int, int], Iterable[Row]]

_ROWS_PER_POLL = 1_024  # an iterator is slow; other subtasks wait meanwhile


class _Part(msgspec.Struct, frozen=True):
    index: int
    of: int


class _Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: int


class IteratorSource:
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
        of = self._splits or parallelism
        return [Split(f"{i}-of-{of}", msgspec.json.encode(_Part(i, of))) for i in range(of)]

    def reader(self, split: Split) -> SplitReader:
        return IteratorReader(
            self._name, self._make_iterator, msgspec.json.decode(split.payload, type=_Part), self.schema
        )


class IteratorReader:
    def __init__(self, name: str, make_iterator: MakeIterator, part: _Part, schema: pa.Schema) -> None:
        self._name = name
        self._part = part
        self._make_iterator = make_iterator
        self._function = function_name(make_iterator)
        self._writer = RowWriter(f"{self._function} of source {name!r}", schema)
        self._rows: Iterator[Row] | None = None
        self._count = 0
        self._finished = False

    @property
    def finished(self) -> bool:
        return self._finished

    def prepare(self) -> None:
        """Make the iterator (again) and skip what was read before."""
        try:
            self._rows = iter(self._make_iterator(self._part.index, self._part.of))
            next(itertools.islice(self._rows, self._count, self._count), None)
        except Exception as error:
            raise self._failed(error) from error

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if self._rows is None:
            self.prepare()
        assert self._rows is not None
        limit = min(max_rows, _ROWS_PER_POLL)
        rows: list[Row] = []
        try:
            rows.extend(itertools.islice(self._rows, limit))
        except Exception as error:
            raise self._failed(error, len(rows)) from error
        self._finished = len(rows) < limit
        if not rows:
            return None
        batch = self._writer.batch(rows)
        self._count += len(rows)
        return Polled(batch, now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return msgspec.json.encode(_Position(self._count))

    def seek(self, position: bytes) -> None:
        self._count = msgspec.json.decode(position, type=_Position).count

    def close(self) -> None:
        self._rows = None

    def _failed(self, error: Exception, ahead: int = 0) -> Exception:
        return user_error(
            error,
            function=f"{self._function} (row {self._count + ahead} of split {self._part.index})",
            operator=self._name,
            subtask=self._part.index,
        )
