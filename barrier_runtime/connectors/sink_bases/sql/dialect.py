"""What is different about each SQL database: its connection, its errors, its catalog, its columns and its statements.

The base has the statements that all databases understand; a dialect replaces those that its database does better.
"""

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from barrier_runtime.connectors.sink_bases.sql.columns import ColumnRules, Fitted, TableColumn, checked
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob, Unavailable

MOST_ROWS = 1 << 18  # of the checkpoints of one transaction, but for a larger one alone
WRITE_ROWS = 4_096  # of one statement


@dataclass(frozen=True)
class SqlTarget:
    """A table as it was when the sink opened. `shown`: its name, for people."""

    shown: str
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True)
class DeliveryMark:
    """The mark of one lineage: the last checkpoint whose rows are in the target. Within a lineage checkpoints only
    rise, so a mark that a process remembers is never too high."""

    job: str
    sink: str
    lineage: str

    @property
    def names(self) -> Mapping[str, Any]:
        """Parameters of statements."""
        owner = hashlib.sha256("\x00".join((self.job, self.sink, self.lineage)).encode()).digest()
        return {"job": self.job, "sink": self.sink, "lineage": self.lineage, "owner": owner}


class Dialect(ABC):
    """A database and how to reach it. `target` of a method is that of `read_target`. `make_mark` and `raise_mark` are
    statements with the parameters job, sink, lineage, owner, known and checkpoint."""

    name: ClassVar[str]  # of the kind of database, for messages
    column_table: ClassVar[ColumnRules]
    quote: ClassVar[str] = '"'
    marks: ClassVar[str] = "barrier_runtime_commits"  # the table of marks
    mark_owner: ClassVar[str] = "job = %(job)s and sink = %(sink)s and lineage = %(lineage)s"
    make_mark: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the database is and as whom, without a secret."""

    # ------------------------------------------------------------ connection

    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """Of the client library."""

    @abstractmethod
    def connect(self, where: str) -> Any:
        """A connection whose sessions are set as the sink needs them. Its statements are one transaction until
        `commit`."""

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """Whether the connection may have been lost, so that another one may help at once."""

    @abstractmethod
    def translated(self, error: Exception, failure: str) -> BarrierRuntimeError:
        """The kind of error that tells the caller what to do; `failure` begins the message."""

    def bounded(self, connection: Any) -> contextlib.AbstractContextManager[None]:
        """Within it no call waits for the server for ever."""
        return contextlib.nullcontext()

    def end(self, connection: Any) -> None:
        """Close a connection without waiting; its errors do not matter."""
        connection.close()

    # ------------------------------------------------------------ the table

    @abstractmethod
    def read_target(self, connection: Any, table: str, key: Sequence[str], where: str) -> SqlTarget:
        """Look the table up and check all that can be known without rows. `key` is empty for inserts. Raises
        `InvalidJob`."""

    @abstractmethod
    def make_marks(self, connection: Any, where: str) -> None:
        """Make the table of marks unless it is there; several may try at once. Raises `Corrupt` for a layout of a newer
        release."""

    def check_columns(self, target: Any, key: Sequence[str], names: Sequence[str], where: str) -> None:  # noqa: B027
        """Raise `InvalidJob` for columns that rows cannot have in this table with this key."""

    def checked(self, rows: pa.RecordBatch, fits: Sequence[Fitted], target: Any, where: str) -> pa.RecordBatch:
        return checked(rows, fits, target.shown, where)

    # ------------------------------------------------------------ marks

    def mark_made(self, connection: Any, mark: DeliveryMark) -> int:
        """The mark, made if it is missing. In a transaction of its own: two that insert it at once would deadlock
        later."""
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

    # ------------------------------------------------------------ rows

    def deliver(
        self,
        connection: Any,
        target: Any,
        key: Sequence[str],
        raising: Mapping[str, Any],
        objects: Sequence[StagedRows],
        read: Iterable[Sequence[pa.RecordBatch]],
    ) -> bool:
        """Raise the mark and write the rows, in one transaction. `raising`: parameters of `raise_mark`; `objects`: the
        staged objects; `read`: the rows of each. False, and nothing was written, if the mark is not where this process
        knows it."""
        if self.execute(connection, self.raise_mark, raising).rowcount != 1:
            return False
        for rows in _in_batches(batch for each in read for batch in each):
            values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
            self.insert(connection, self.row_statement(target, rows.schema.names, key), values, target)
        return True

    def insert(self, connection: Any, statement: str, rows: list[tuple[Any, ...]], target: Any) -> None:
        cursor = connection.cursor()
        cursor.executemany(statement, rows)

    @abstractmethod
    def row_statement(self, target: Any, names: Sequence[str], key: Sequence[str]) -> str:
        """Inserts one row, or replaces the one with the same key."""

    def insert_statement(self, target: Any, names: Sequence[str], place: str) -> str:
        listed, places = ", ".join(map(self.quoted, names)), ", ".join([place] * len(names))
        return f"insert into {self.quoted(target.shown)} ({listed}) values ({places})"

    def execute(self, connection: Any, statement: str, given: Mapping[str, Any] | Sequence[Any] = ()) -> Any:
        """A cursor, after the statement."""
        cursor = connection.cursor()
        cursor.execute(statement, given)
        return cursor

    def quoted(self, name: str) -> str:
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote


def check_key(
    columns: Sequence[TableColumn], unique: Iterable[Iterable[str]], key: Sequence[str], table: str, where: str
) -> None:
    """Raise `InvalidJob` unless the key's columns are there and have a unique index of their own."""
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
    """All rows in order, at most `WRITE_ROWS` of equal columns at a time."""
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
