"""Changes of a table as upserts by key: the deletions of a version, then added and changed rows.

A row from before a version is deleted if no row from after has the same key; all rows of the files from after are
upserted. Blocks.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from barrier_runtime.data.schemas import key_columns, require_columns
from barrier_runtime.state.errors import InvalidJob

_ADDED = pa.schema([("deleted", pa.bool_()), ("changed_at", pa.timestamp("us", "UTC"))])
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def checked_key(key: str | Sequence[str], where: str) -> tuple[str, ...]:
    names = key_columns(key, f"{where}: key")
    if len(set(names)) < len(names):
        raise InvalidJob(f"{where}: key={key!r}: give the names of the columns that tell rows apart, each once")
    return names


@dataclass(frozen=True)
class Part:
    """File of a version. `deleted`: its rows are from before the version. `at`: commit time."""

    file: Any
    deleted: bool
    at: datetime


class Upserts:
    """`read(file, schema, before)`: returns the rows of a file from before or after a version."""

    def __init__(
        self,
        key: Sequence[str],
        read: Callable[[Any, pa.Schema, bool], list[pa.RecordBatch]],
        table: str,
        where: str,
    ) -> None:
        self._key = key
        self._read = read
        self._table = table
        self._where = where
        self._looking = threading.Lock()
        self._after: Sequence[Any] = ()  # files with rows from after the last version,
        self._keys_after: set[tuple[Any, ...]] | None = None  # and their keys; None: not read yet

    def schema(self, table: pa.Schema) -> pa.Schema:
        require_columns(table, tuple(self._key), f"{self._where}, key=")
        for name in self._key:
            if pa.types.is_nested(table.field(name).type):
                raise InvalidJob(f"{self._where}, key=: column {name!r} is {table.field(name).type}: use plain columns")
        for name in _ADDED.names:
            if name in table.names:
                raise InvalidJob(
                    f"{self._where}: {self._table} has a column {name!r}, which rows by key= need for themselves: read "
                    "it without key="
                )
        return pa.schema([*(field.with_nullable(True) for field in table), *_ADDED])

    def whole(self, files: Sequence[Any], at_ms: int) -> list[Part]:
        at = _EPOCH + timedelta(milliseconds=at_ms)
        return [Part(file, False, at) for file in files]

    def changes(self, before: Sequence[Any], after: Sequence[Any], at_ms: int) -> list[Part]:
        self._after, self._keys_after = after, None
        at = _EPOCH + timedelta(milliseconds=at_ms)
        return [*(Part(file, True, at) for file in before), *(Part(file, False, at) for file in after)]

    def rows(self, part: Part, schema: pa.Schema) -> list[pa.RecordBatch]:
        batches = self._read(part.file, pa.schema(list(schema)[: -len(_ADDED)]), part.deleted)
        if part.deleted:
            batches = [self._gone(batch) for batch in batches]
        told = [pa.scalar(value, field.type) for value, field in zip((part.deleted, part.at), _ADDED, strict=True)]
        return [
            pa.RecordBatch.from_arrays(
                [*batch.columns, *(pa.repeat(each, batch.num_rows) for each in told)], schema=schema
            )
            for batch in batches
            if batch.num_rows
        ]

    def _gone(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._looking:
            if self._keys_after is None:
                schema = pa.schema([batch.schema.field(name) for name in self._key])
                after = [each for file in self._after for each in self._read(file, schema, False)]
                self._keys_after = {key for each in after for key in self._keys(each)}
        gone = [key not in self._keys_after for key in self._keys(batch)]
        return batch.filter(pa.array(gone, pa.bool_()))

    def _keys(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        return zip(*(_comparable(batch.column(name)) for name in self._key), strict=True)


def _comparable(column: pa.Array) -> list[Any]:
    """Values equal exactly if identical in the column: NaN equals NaN, -0.0 differs from 0.0."""
    if pa.types.is_floating(column.type):
        return [repr(value) for value in column.to_pylist()]
    if pa.types.is_timestamp(column.type) or pa.types.is_time64(column.type) or pa.types.is_duration(column.type):
        return column.view(pa.int64()).to_pylist()  # type: ignore[no-any-return]  # Python's times lack nanoseconds
    return column.to_pylist()  # type: ignore[no-any-return]
