"""Given rows as the source of a checked flow, paced in virtual time; and differences of rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.data.row_class import record_of
from barrier_runtime.data.rows import RowWriter
from barrier_runtime.data.schemas import described, no_rows
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import shortened

GivenInput: TypeAlias = Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]] | pa.Table | pa.RecordBatch


@dataclass(frozen=True)
class GivenRows:
    """Rows by split. Row i of n is due at `start_ns` + length of the split · i / n (wall clock)."""

    name: str
    schema: pa.Schema
    tables: tuple[pa.RecordBatch, ...] = field(repr=False)
    start_ns: int
    lengths_ns: tuple[int, ...]  # per split, for all rows to arrive
    batch_rows: int
    exactly_once: bool  # that of the flow's own source

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(f"{self.name}-{index}", str(index).encode()) for index in range(len(self.tables))]

    def reader(self, split: Split) -> "GivenReader":
        number = int(split.payload)
        return GivenReader(self, self.tables[number], self.lengths_ns[number])


class GivenReader:
    def __init__(self, source: GivenRows, rows: pa.RecordBatch, length_ns: int) -> None:
        self._source = source
        self._length_ns = length_ns
        self._rows = rows
        self._count: int = rows.num_rows
        self._next = 0

    @property
    def finished(self) -> bool:
        return self._next >= self._count

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        source, rows = self._source, self._count
        due = min(rows, (now_ns - source.start_ns) * rows // self._length_ns + 1) - self._next
        if due <= 0:
            return None
        count = min(due, max_rows, source.batch_rows)
        polled = self._rows.slice(self._next, count)
        self._next += count
        return Polled(polled, 0)

    def next_due_ns(self) -> int | None:
        rows = self._count
        return 0 if self.finished else self._source.start_ns + -(-self._next * self._length_ns // rows)

    def position(self) -> bytes:
        return b"%d" % self._next

    def seek(self, position: bytes) -> None:
        self._next = int(position)

    def close(self) -> None:
        """Does nothing: the reader holds nothing open."""


def tables_of(source: str, given: GivenInput, schema: pa.Schema) -> tuple[pa.RecordBatch, ...]:
    """A batch per split. Raises `InvalidJob` for rows that do not fit the source's schema."""
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        given = [given.to_pylist()]
    splits = [given] if all(isinstance(row, Mapping) for row in given) else list(given)
    return tuple(_batch(source, split, schema) for split in splits)


def _batch(source: str, rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise InvalidJob(
            f"check: rows given for source {source!r} have columns that it lacks: {', '.join(sorted(unknown))}; "
            f"it has {', '.join(schema.names)}"
        )
    where, remedy = f"check: rows given for source {source!r}", "give values of the types of " + described(schema)
    plain = [record_of(row, where) for row in rows]
    return RowWriter(where, schema, remedy).batch(plain) if plain else no_rows(schema)


_SHOWN = 400


@dataclass(frozen=True)
class Difference:
    sink: str
    missing: tuple[Mapping[str, Any], ...]  # with repetitions
    unexpected: tuple[Mapping[str, Any], ...]

    def lines(self) -> list[str]:
        told = []
        if self.missing:
            told.append(f"missing rows: {len(self.missing)}, the first: {_shown(self.missing[0])}")
        if self.unexpected:
            told.append(f"rows too many: {len(self.unexpected)}, the first: {_shown(self.unexpected[0])}")
        return told


def difference(
    sink: str, expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> Difference | None:
    """Compares values with their types; NaN equals NaN."""
    missing = _beyond(expected, found)
    unexpected = _beyond(found, expected)
    return Difference(sink, missing, unexpected) if missing or unexpected else None


def _beyond(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    left = Counter(map(_key, others))
    beyond = []
    for row in rows:
        key = _key(row)
        if left[key]:
            left[key] -= 1
        else:
            beyond.append(row)
    return tuple(beyond)


def _key(row: Mapping[str, Any]) -> str:
    """Comparable text, in which the order of nested dicts does not matter."""
    return repr(_plain(row))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((name, _plain(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _shown(row: Mapping[str, Any]) -> str:
    return shortened(repr(dict(row)), _SHOWN)
