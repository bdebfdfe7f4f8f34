"""Exactly-once rows in a table of an SQLite file (protocol: `sink_bases/sql`)."""

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.sql.columns import (
    ColumnRules,
    Fit,
    Rule,
    TableColumn,
    as_json,
    casting,
    negative_zeros,
)
from barrier_runtime.connectors.sink_bases.sql.dialect import SqlTarget, StatementDialect, check_key
from barrier_runtime.connectors.sink_bases.sql.sink import Mode, SqlSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable

_WAIT_S = 10.0  # for another process that writes to the file
_PASSING = ("locked", "busy", "disk i/o error", "disk is full", "unable to open")
_MAKE_MARKS = """
create table if not exists barrier_runtime_commits (
    job text, sink text, lineage text, checkpoint integer not null, committed_at text default current_timestamp,
    primary key (job, sink, lineage)
)
"""
_MOMENTS = ("TIMESTAMP", "DATETIME", "DATE", "TIME")
_NUMBERS = (
    (pc.is_nan, "is NaN, which SQLite stores as null"),
    (negative_zeros, "is -0.0, which SQLite stores as 0.0"),
)


def base_of(declared: str) -> str:
    """Affinity, by SQLite's rules in their order; declared dates and times by name."""
    if declared.upper() in _MOMENTS:
        return declared.upper()
    names = (("INT", "INTEGER"), ("CHAR|CLOB|TEXT", "TEXT"), ("BLOB|^$", "BLOB"), ("REAL|FLOA|DOUB", "REAL"))
    return next((found for pattern, found in names if re.search(pattern, declared.upper())), "NUMERIC")


def _into(*bases: str, make: Callable[[pa.DataType], Fit | None] = lambda kind: Fit()) -> Rule:
    return lambda kind, column: make(kind) if column.base in bases else None


_TEXT = _into("TEXT", make=lambda kind: Fit(casting(pa.string())))
_MOMENT = _into("TEXT", *_MOMENTS, make=lambda kind: Fit(casting(pa.string())))
SQLITE_COLUMNS = ColumnRules(
    {
        "bool": _into("INTEGER", make=lambda kind: Fit(casting(pa.int8()))),
        "integer": _into("INTEGER", make=lambda kind: None if kind == pa.uint64() else Fit()),
        "float": _into("REAL", make=lambda kind: Fit(casting(pa.float64()), _NUMBERS)),
        "decimal": _TEXT,
        "text": _TEXT,
        "bytes": _into("BLOB"),
        "timestamp": _MOMENT,
        "date": _into("TEXT", *_MOMENTS, make=lambda kind: Fit(lambda each: each.cast(pa.date32()).cast(pa.string()))),
        "time": _MOMENT,
        "nested": _into("TEXT", make=lambda kind: Fit(as_json)),
    }
)


class SqliteDialect(StatementDialect):
    name = "SQLite"
    column_table = SQLITE_COLUMNS
    make_mark = (
        "insert into barrier_runtime_commits (job, sink, lineage, checkpoint) "
        "values (%(job)s, %(sink)s, %(lineage)s, 0) on conflict do nothing"
    )

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def place(self) -> str:
        return self.path

    def errors(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def connect(self, where: str) -> Any:
        if not Path(self.path).is_file():
            raise InvalidJob(
                f"{where}: there is no file {self.path!r}: make the database and its table, or correct path="
            )
        connection = sqlite3.connect(self.path, timeout=_WAIT_S, check_same_thread=False, isolation_level="IMMEDIATE")
        connection.execute("pragma synchronous = full")
        return connection

    def is_lost(self, error: Exception) -> bool:
        return False

    def translated(self, error: Exception, failure: str) -> BarrierRuntimeError:
        if isinstance(error, sqlite3.OperationalError) and any(each in str(error).lower() for each in _PASSING):
            return Unavailable(f"{failure}: {error}. It is tried again")
        if isinstance(error, sqlite3.IntegrityError):
            return InvalidJob(
                f"{failure}: the server refuses a row: {error}. Filter or correct such rows before the sink, or change "
                "the table"
            )
        return InvalidJob(f"{failure}: {error}. Correct the table or the sink's arguments")

    def end(self, connection: Any) -> None:
        connection.rollback()  # close alone keeps the lock while an error refers to a statement
        connection.close()

    def read_target(self, connection: Any, table: str, key: Sequence[str], where: str) -> SqlTarget:
        kind = connection.execute("select type from sqlite_master where name = ?", (table,)).fetchone()
        if kind != ("table",):
            raise InvalidJob(f"{where}: there is no table {table!r} in {self.path!r}: create it, or correct its name")
        rows = connection.execute("select * from pragma_table_xinfo(?)", (table,)).fetchall()
        columns = tuple(_column(*row) for row in rows)
        unique = []
        for (index,) in connection.execute(
            'select name from pragma_index_list(?) where "unique" and not partial', (table,)
        ).fetchall():
            parts = connection.execute("select name, coll from pragma_index_xinfo(?) where key", (index,)).fetchall()
            unique.append({name for name, _ in parts})
            for name, collation in parts:
                if name in key and collation != "BINARY":
                    raise InvalidJob(
                        f"{where}: key column {name!r} of table {table} has the collation {collation}, to which "
                        "different texts are one key, so the last of their rows would replace the others: declare the "
                        "column without COLLATE"
                    )
        unique += [{name} for _, name, declared, _, _, pk, _ in rows if pk and declared.upper() == "INTEGER"]
        check_key(columns, unique, key, table, where)
        return SqlTarget(table, columns)

    def make_marks(self, connection: Any, where: str) -> None:
        connection.execute(_MAKE_MARKS)

    def row_statement(self, target: Any, names: Sequence[str], key: Sequence[str]) -> str:
        insert = self.insert_statement(target, names, "?")
        if not key:
            return insert
        changes = ", ".join(f"{each} = excluded.{each}" for each in (self.quoted(n) for n in names if n not in key))
        keys = ", ".join(map(self.quoted, key))
        return f"{insert} on conflict ({keys}) do {f'update set {changes}' if changes else 'nothing'}"

    def execute(self, connection: Any, statement: str, given: Mapping[str, Any] | Sequence[Any] = ()) -> Any:
        return super().execute(connection, re.sub(r"%\((\w+)\)s", r":\1", statement), given)


def _column(_: int, name: str, declared: str, not_null: int, default: Any, key: int, hidden: int) -> TableColumn:
    """An integer primary key fills nulls by numbers, so it is NOT NULL here."""
    counts = bool(key) and declared.upper() == "INTEGER"
    filled = counts or default is not None
    return TableColumn(name, declared, base_of(declared), bool(not_null) or counts, filled, hidden in (2, 3))


@kinds_checked
class SqliteSink(SqlSink):
    """Writes rows into `table` of the SQLite file `path`; columns match by name (docs/sqlite.md: types).

    All slots must share the disk of the file. Needs SQLite 3.26 or newer.

    `mode="upsert"`: a row replaces the row with equal `key` columns, which have a unique index. The sink keeps its
    marks in the table `barrier_runtime_commits` of the same file.

    >>> SqliteSink("shop.db", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "sqlite"

    def __init__(
        self,
        path: str,
        table: str,
        *,
        mode: Mode = "insert",
        key: str | Sequence[str] = (),
        max_bytes_in_memory: int = 32 << 20,
    ) -> None:
        self.path = str(path)
        super().__init__(SqliteDialect(self.path), table, mode=mode, key=key, max_bytes_in_memory=max_bytes_in_memory)

    def settings(self) -> dict[str, Any]:
        return {"path": self.path, **super().settings()}
