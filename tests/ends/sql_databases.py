"""Parts shared by tests of SQL sinks: a database of each kind with private tables, and sinks opened by hand."""

import contextlib
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa

from barrier_runtime import MySQLSink, PostgresSink, SqliteSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.sql.sink import SqlSink
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore
from examples.servers import MariaServer, PostgresServer

DATABASES = ("postgres", "mysql", "sqlite")


class Database(ABC):
    """`connection`: private to the test. All databases understand the statements."""

    marks: ClassVar[str] = "barrier_runtime_commits"
    connection: Any

    def table(self, columns: str = "n bigint not null, t varchar(100)", more: str = "") -> str:
        name = f"rows_{uuid.uuid4().hex[:8]}"
        self.execute(f"create table {name} ({columns}) {more}")
        return name

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def read(self, table: str) -> list[dict[str, Any]]:
        cursor = self.connection.cursor()
        cursor.execute(f"select * from {table}")
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def reset(self, table: str) -> None:
        self.execute(f"truncate table {table}")

    def numbers(self, table: str) -> list[int]:
        return [n for (n,) in self.execute(f"select n from {table}")]

    @abstractmethod
    def beside(self) -> "Database":
        """The same database, for another thread."""

    @abstractmethod
    def sink(self, table: str, **arguments: Any) -> SqlSink: ...

    def close(self) -> None:
        self.connection.close()


@dataclass
class Postgres(Database):
    server: PostgresServer
    marks: ClassVar[str] = "barrier_runtime.commits"

    def __post_init__(self) -> None:
        self.connection = psycopg.connect(self.server.url, autocommit=True)

    def beside(self) -> Database:
        return Postgres(self.server)

    def sink(self, table: str, **arguments: Any) -> SqlSink:
        return PostgresSink(self.server.url, table, **arguments)


@dataclass
class MySQL(Database):
    server: MariaServer

    def __post_init__(self) -> None:
        self.connection = self.server.connect()

    def beside(self) -> Database:
        return MySQL(self.server)

    def sink(self, table: str, **arguments: Any) -> SqlSink:
        return MySQLSink(self.server.url, table, **arguments)


@dataclass
class Sqlite(Database):
    path: Path

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)

    def beside(self) -> Database:
        return Sqlite(self.path)

    def reset(self, table: str) -> None:
        self.execute(f"delete from {table}")

    def sink(self, table: str, **arguments: Any) -> SqlSink:
        return SqliteSink(str(self.path), table, **arguments)


def new_name() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def no_store(url: str) -> ObjectStore:
    raise AssertionError("the sink has nothing but the job's store")


@dataclass
class Job:
    database: Database
    name: str = field(default_factory=new_name)
    store: ObjectStore = field(default_factory=MemoryStore)

    def opened(
        self,
        table: str,
        *,
        token: int = 1,
        subtask: int = 0,
        parallelism: int = 1,
        lineage: str = "lineage",
        **arguments: Any,
    ) -> SqlSink:
        sink = self.database.sink(table, **arguments)
        sink.open(SinkContext(self.name, "out", token, subtask, parallelism, no_store, self.store, lineage))
        return sink

    def staged(self) -> list[str]:
        """Objects of rows that are not visible yet, or were left over."""
        return [info.key for info in self.store.list("") if "staged" in info.key]


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64()), "t": pa.array([f"text {value}" for value in values])})


def pre_committed(sink: SqlSink, checkpoint: int, *rows: int | pa.Table) -> bytes:
    """A committable of these numbers, or of these tables."""
    transaction = sink.begin_transaction()
    for table in rows if rows and isinstance(rows[0], pa.Table) else [numbers(*rows)]:  # type: ignore[arg-type]
        for batch in table.to_batches():  # type: ignore[union-attr]
            sink.write(transaction, batch)
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def written(sink: SqlSink, checkpoint: int, *rows: int | pa.Table) -> None:
    sink.commit_globally(checkpoint, [pre_committed(sink, checkpoint, *rows)])


@contextlib.contextmanager
def closing_all(sinks: Sequence[SqlSink]) -> Iterator[None]:
    try:
        yield
    finally:
        for sink in sinks:
            sink.close()
