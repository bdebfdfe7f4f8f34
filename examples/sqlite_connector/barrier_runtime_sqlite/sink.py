"""Rows in a table of an SQLite file, exactly once: one SQL transaction writes a checkpoint's rows and its token.

flow = ….sink("rows", SqliteSink("results.db", "rows"))
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from barrier_runtime import InvalidJob, Unavailable, WriteAheadSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.write_ahead_committable import DeliveryToken

_TYPES = (
    (kinds.is_integer, "INTEGER"),
    (kinds.is_floating, "REAL"),
    (kinds.is_string, "TEXT"),
    (kinds.is_binary, "BLOB"),
)
_TOKENS = "CREATE TABLE IF NOT EXISTS barrier_runtime_tokens (origin TEXT PRIMARY KEY, checkpoint_id INTEGER NOT NULL)"


class SqliteSink(WriteAheadSink):
    """`path`: the database file, on a disk that all slots share. `table` is created when it is missing. Columns are
    integers, floats, texts or bytes; others are refused with the remedy."""

    kind: ClassVar[str] = "sqlite"

    def __init__(self, path: str, table: str) -> None:
        super().__init__()
        self.path = path
        self.table = table

    def settings(self) -> dict[str, Any]:
        return {"path": self.path, "table": self.table}

    def target(self) -> str:
        return self.table

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        for field in schema:
            if not any(of(field.type) for of, _ in _TYPES) or field.type == pa.uint64():
                raise InvalidJob(
                    f"{where}: SQLite has no type for column {field.name!r} ({field.type}): make it a text, bytes, a "
                    "float or an integer of 64 bits, as with select()"
                )

    def check_schema(self, schema: pa.Schema) -> None:
        self.check_columns(schema, self._where)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """SQLite would store NaN as null."""
        for batch in batches:
            for field, column in zip(batch.schema, batch.columns, strict=True):
                if kinds.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
                    raise InvalidJob(f"{self._where}: column {field.name!r} has NaN, unknown to SQLite: filter it out")
        return batches

    def open(self, context: SinkContext) -> None:
        super().open(context)
        with closing(self._connected()) as database:
            database.execute(_TOKENS)

    def delivered(self, token: DeliveryToken, rows: int) -> bool:
        with closing(self._connected()) as database:
            return _has(database, token)

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        """A token that is there already has no effect, however late a stalled process delivers."""
        with closing(self._connected()) as database:
            database.execute("BEGIN IMMEDIATE")  # one writer at a time
            if not _has(database, token):
                for batch in batches:
                    self._insert(database, batch)
                database.execute(
                    "INSERT INTO barrier_runtime_tokens VALUES (?, ?) "
                    "ON CONFLICT (origin) DO UPDATE SET checkpoint_id = excluded.checkpoint_id",
                    (_origin(token), token.checkpoint),
                )
            database.execute("COMMIT")

    def _insert(self, database: sqlite3.Connection, batch: pa.RecordBatch) -> None:
        names = ", ".join(_quoted(name) for name in batch.schema.names)
        types = ", ".join(f"{_quoted(field.name)} {_sql_type(field.type)}" for field in batch.schema)
        places = ", ".join("?" for _ in batch.schema)
        database.execute(f"CREATE TABLE IF NOT EXISTS {_quoted(self.table)} ({types})")
        columns = [column.to_pylist() for column in batch.columns]
        database.executemany(
            f"INSERT INTO {_quoted(self.table)} ({names}) VALUES ({places})", zip(*columns, strict=True)
        )

    def _connected(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(self.path, isolation_level=None, timeout=30)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._where}: {self.path} cannot be opened: {error}") from error


def _origin(token: DeliveryToken) -> str:
    """Within an origin, checkpoints only rise."""
    return f"{token.job}/{token.sink}/{token.lineage}/{token.subtask}"


def _has(database: sqlite3.Connection, token: DeliveryToken) -> bool:
    query = "SELECT checkpoint_id FROM barrier_runtime_tokens WHERE origin = ?"
    row = database.execute(query, (_origin(token),)).fetchone()
    return row is not None and row[0] >= token.checkpoint


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_type(kind: pa.DataType) -> str:
    return next(name for of, name in _TYPES if of(kind))
