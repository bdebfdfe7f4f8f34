"""Differences between SQL databases."""

import contextlib
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.sql.columns import ColumnRules, Fitted, TableColumn, checked
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable

T = TypeVar("T")


MOST_ROWS = 1 << 18  # of a transaction; a larger checkpoint has its own
WRITE_ROWS = 4_096  # of a statement


@dataclass(frozen=True)
class SqlTarget:
    shown: str
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True)
class DeliveryMark:
    """Mark of a lineage: the last checkpoint whose rows are in the target. Marks only rise."""

    job: str
    sink: str
    lineage: str

    @property
    def names(self) -> Mapping[str, Any]:
        owner = hashlib.sha256("\x00".join((self.job, self.sink, self.lineage)).encode()).digest()
        return {"job": self.job, "sink": self.sink, "lineage": self.lineage, "owner": owner}


class Dialect(ABC):
    """Kind of database. Statements of marks take job, sink, lineage, owner, known and checkpoint."""

    name: ClassVar[str]
    column_table: ClassVar[ColumnRules]
    quote: ClassVar[str] = '"'
    marks: ClassVar[str] = "barrier_runtime_commits"
    mark_owner: ClassVar[str] = "job = %(job)s and sink = %(sink)s and lineage = %(lineage)s"
    make_mark: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> str:
        """Address and user of the database, without secrets."""

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Error classes of the client library."""

    @abstractmethod
    def connect(self, where: str) -> Any:
        """Connection on which statements form a transaction until `commit`."""

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """Returns whether a retry on a new connection may succeed."""

    @abstractmethod
    def translated(self, error: Exception, failure: str) -> BarrierRuntimeError:
        """Error whose class shows the caller's next action; `failure` begins the message."""

    def bounded(self, connection: Any) -> contextlib.AbstractContextManager[None]:
        """Context in which no call waits forever."""
        return contextlib.nullcontext()

    def end(self, connection: Any) -> None:
        """Closes a connection without waiting."""
        connection.close()

    @abstractmethod
    def read_target(self, connection: Any, table: str, key: Sequence[str], where: str) -> SqlTarget:
        """Reads the table from the catalog and checks everything that needs no rows. Raises `InvalidJob`."""

    @abstractmethod
    def make_marks(self, connection: Any, where: str) -> None:
        """Creates a missing table of marks. Raises `Corrupt` for a layout of a newer release."""

    def check_columns(self, target: Any, key: Sequence[str], names: Sequence[str], where: str) -> None:  # noqa: B027
        """Raises `InvalidJob` for columns that rows cannot have in this table with this key."""

    def checked(self, rows: pa.RecordBatch, fits: Sequence[Fitted], target: Any, where: str) -> pa.RecordBatch:
        return checked(rows, fits, target.shown, where)

    def mark_made(self, connection: Any, mark: DeliveryMark) -> int:
        """Returns the mark, created if missing, in a separate transaction: two inserts at once would deadlock later."""
        self.execute(connection, self.make_mark, mark.names)
        return self.mark_read(connection, mark)

    def mark_read(self, connection: Any, mark: DeliveryMark) -> int:
        statement = f"select checkpoint from {self.marks} where {self.mark_owner}"
        found = self.execute(connection, statement, mark.names).fetchone()
        if found is None:
            raise Unavailable(f"{self.marks} has lost the row of job {mark.job!r}: the next attempt makes it again")
        return int(found[0])

    @property
    def raise_mark(self) -> str:
        return (
            f"update {self.marks} set checkpoint = %(checkpoint)s, committed_at = current_timestamp "
            f"where {self.mark_owner} and checkpoint = %(known)s"
        )

    @abstractmethod
    def deliver(
        self,
        connection: Any,
        target: Any,
        key: Sequence[str],
        raising: Mapping[str, Any],
        objects: Sequence[StagedRows],
        read: Iterable[Sequence[pa.RecordBatch]],
    ) -> bool:
        """Raises the mark and writes the rows in one transaction; returns False if the mark is not as known.

        `raising`: the parameters of `raise_mark`; `read`: the rows of each object.
        """

    def execute(self, connection: Any, statement: str, given: Mapping[str, Any] | Sequence[Any] = ()) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement, given)
        return cursor

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote


class StatementDialect(Dialect):
    def deliver(
        self,
        connection: Any,
        target: Any,
        key: Sequence[str],
        raising: Mapping[str, Any],
        objects: Sequence[StagedRows],
        read: Iterable[Sequence[pa.RecordBatch]],
    ) -> bool:
        if self.execute(connection, self.raise_mark, raising).rowcount != 1:
            return False
        cursor = connection.cursor()
        for rows in _in_batches(batch for each in read for batch in each):
            values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            self.insert(cursor, self.row_statement(target, rows.schema.names, key), values, target)
        self.inserted(cursor)
        return True

    def insert(self, cursor: Any, statement: str, rows: list[tuple[Any, ...]], target: Any) -> None:
        cursor.executemany(statement, rows)

    def inserted(self, cursor: Any) -> None:
        """Called after the last `insert` of a transaction; may end the transaction."""

    @abstractmethod
    def row_statement(self, target: Any, names: Sequence[str], key: Sequence[str]) -> str:
        """Statement that inserts or, with a key, upserts a row."""

    def insert_statement(self, target: Any, names: Sequence[str], place: str) -> str:
        listed, places = ", ".join(map(self.quoted, names)), ", ".join([place] * len(names))
        return f"insert into {self.quoted(target.shown)} ({listed}) values ({places})"


def check_key(
    columns: Sequence[TableColumn], unique: Iterable[Iterable[str]], key: Sequence[str], table: str, where: str
) -> None:
    names = [column.name for column in columns]
    listed = ", ".join(key)
    for name in key:
        if name not in names:
            raise InvalidJob(f"{where}: table {table} has no key column {name!r}; it has {', '.join(names)}")
    if key and set(key) not in [set(index) for index in unique]:
        raise InvalidJob(
            f"{where}: mode='upsert' with key=({listed}) needs a unique index of exactly these columns, and table "
            f"{table} has none (partial, deferrable and expression indexes do not count): ALTER TABLE {table} ADD "
            f"UNIQUE ({listed})"
        )


def _in_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gathered: list[pa.RecordBatch] = []
    count = 0
    for rows in batches:
        if gathered and (count + rows.num_rows > WRITE_ROWS or gathered[0].schema != rows.schema):
            yield from _cut(gathered)
            gathered, count = [], 0
        gathered.append(rows)
        count += rows.num_rows
    yield from _cut(gathered)


def _cut(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        rows = pa.concat_batches(batches)
        for start in range(0, rows.num_rows, WRITE_ROWS):
            yield rows.slice(start, WRITE_ROWS)


class SqlSession:
    """Connection of a dialect, opened on demand; one thread at a time.

    A failed unit of work closes the connection, so every unit can be repeated.
    """

    def __init__(self, dialect: Dialect, where: str) -> None:
        self._dialect = dialect
        self._where = where
        self._using = threading.Lock()
        self._connection: Any = None
        self._closed = False

    def run(self, what: str, work: Callable[[Any], T]) -> T:
        """Runs `work(connection)` in one transaction and commits; `what` names the work in errors.

        If an older connection proves lost, `work` runs again on a new connection. Raises errors of this project.
        """
        dialect, errors = self._dialect, self._dialect.errors()
        with self._using:
            was_there = self._connection is not None
            try:
                return self._attempt(work)
            except errors as error:
                if not (was_there and dialect.is_lost(error)):
                    raise self._translated(error, what) from error
            try:
                return self._attempt(work)
            except errors as error:
                raise self._translated(error, what) from error

    def close(self) -> None:
        """Never waits: a running call closes the connection at the end."""
        self._closed = True
        if self._using.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._using.release()

    def _attempt(self, work: Callable[[Any], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._dialect.connect(self._where)
            with self._dialect.bounded(self._connection):
                result = work(self._connection)
                self._connection.commit()
                return result
        except BaseException:
            self._drop()
            raise
        finally:
            if self._closed:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                self._dialect.end(connection)

    def _translated(self, error: Exception, what: str) -> BarrierRuntimeError:
        dialect = self._dialect
        return dialect.translated(error, f"{self._where}: {what} failed at {dialect.name} {dialect.place}")
