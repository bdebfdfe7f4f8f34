"""A PostgreSQL server for commits: marks with locks, and rows of a table, in read-committed transactions.

The production sink runs down to its session's connection. A message is a transaction whose statements are separate
requests, so statements of several processes interleave. As at a real server, a client waits for a lock that another
transaction holds, and the server ends a transaction whose client is dead or silent for too long. A commit is a request
of its own: the commit or its answer may be lost or late. The server's check of rows before a decision always succeeds.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import psycopg
from servers import Doorway
from workload import AUDITED, Row

from barrier_runtime.connectors.postgres import dialect as postgres
from barrier_runtime.connectors.postgres import session as postgres_session
from barrier_runtime.connectors.postgres.columns import Column
from barrier_runtime.connectors.postgres.dialect import PostgresDialect, PostgresTarget
from barrier_runtime.connectors.postgres.session import Copy
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.state.errors import BarrierRuntimeError, Unavailable
from barrier_runtime.testing.simulation.loop import SECOND, SimProcess, Simulation

_TRAVEL_US = (200, 2_000)
_LOOK_AGAIN_US = (10_000, 60_000)  # interval of retries while a lock is held
_LOCK_TIMEOUT_US = 10 * SECOND
_IDLE_IN_TRANSACTION_US = 20 * SECOND
_LOST = 0.1  # chance that a statement loses the connection while the server is troubled
_PART_BYTES = 1_200
_TYPES = {"string": ("text", "text"), "int32": ("integer", "int4"), "int64": ("bigint", "int8")}
_TARGET = PostgresTarget(
    "public.rows", tuple(Column(each.name, *_TYPES[str(each.type)]) for each in AUDITED), "public", "rows", 1
)

Mark = tuple[str, str, str]  # job, sink, lineage


class _Lost(Exception):
    """The connection is lost."""


class _LockTimeout(Exception):
    """Another transaction holds the lock for too long."""


class _Locked(Exception):
    """Another transaction holds the lock now."""


@dataclass(eq=False)
class _Transaction:
    process: SimProcess
    heard_us: int
    changes: dict[Mark, int] = field(default_factory=dict)
    shown: list[Row] = field(default_factory=list)  # rows copied into the target
    raised: int = 0  # the checkpoint that the target has completely after the commit
    locked: set[Mark] = field(default_factory=set)
    ended: bool = False


@dataclass
class PostgresServer:
    """The server. A commit with rows calls `on_visible(mark, rows)`; the mark is 0 if none was committed with the rows.

    `note` is called for refused marks and for waits for a lock."""

    simulation: Simulation
    troubled: Callable[[], bool]
    on_visible: Callable[[int, list[Row]], None]
    note: Callable[[str], None]
    marks: dict[Mark, int] = field(default_factory=dict)
    transactions: dict[_Transaction, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.doorway = Doorway(self.simulation, self.troubled)

    def sink(self) -> PostgresSink:
        return PostgresSink("postgresql://app@sim/bank", "rows", max_bytes_in_memory=_PART_BYTES)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces connections, and the code that reads PostgreSQL's catalogue."""
        connect = lambda *_: _Connection(self)  # noqa: E731
        with (
            patch.object(PostgresDialect, "errors", lambda _: (_Lost, _LockTimeout)),
            patch.object(PostgresDialect, "is_lost", lambda _, error: isinstance(error, _Lost)),
            patch.object(PostgresDialect, "translated", _translated),
            patch.object(PostgresDialect, "bounded", lambda *_: contextlib.nullcontext()),
            patch.object(PostgresDialect, "read_target", lambda *_: _TARGET),
            patch.object(PostgresDialect, "make_marks", lambda *_: None),
            patch.object(postgres, "make_check_table", lambda *_: None),
            patch.object(postgres_session, "connect", connect),
            patch.object(postgres_session, "exchange", _exchanged),
        ):
            yield

    # ------------------------------------------------------------ transactions

    def begin(self, process: SimProcess) -> _Transaction:
        transaction = _Transaction(process, self.simulation.now_us)
        self.transactions[transaction] = None
        return transaction

    def hear(self, transaction: _Transaction) -> None:
        if transaction.ended or self._is_silent(transaction):
            self.end(transaction)
            raise _Lost("terminating connection due to idle-in-transaction timeout")
        transaction.heard_us = self.simulation.now_us

    def commit(self, transaction: _Transaction) -> None:
        self.hear(transaction)
        self.marks.update(transaction.changes)
        self.end(transaction)
        if transaction.shown:
            self.on_visible(transaction.raised, transaction.shown)

    def end(self, transaction: _Transaction) -> None:
        transaction.ended = True
        self.transactions.pop(transaction, None)

    def _is_silent(self, transaction: _Transaction) -> bool:
        return self.simulation.now_us - transaction.heard_us > _IDLE_IN_TRANSACTION_US

    def lock(self, transaction: _Transaction, mark: Mark) -> None:
        """Locks a mark. Raises `_Locked` if a live transaction holds the lock."""
        for other in list(self.transactions):
            if other is transaction or mark not in other.locked:
                continue
            if other.process.alive and not self._is_silent(other):
                raise _Locked
            self.end(other)
        transaction.locked.add(mark)

    # ------------------------------------------------------------ statements

    def execute(self, transaction: _Transaction, text: str, given: Any) -> list[tuple[Any, ...]]:
        self.hear(transaction)
        if text.startswith("drop table if exists pg_temp."):
            return []
        mark = (given["job"], given["sink"], given["lineage"])
        there = transaction.changes.get(mark, self.marks.get(mark))
        if text.startswith("select checkpoint from barrier_runtime.commits"):
            return [] if there is None else [(there,)]
        if text.startswith("insert into barrier_runtime.commits"):
            if there is None:
                self.lock(transaction, mark)
                transaction.changes[mark] = 0
            return []
        if text.startswith("with raised as (update barrier_runtime.commits"):
            return self._raise(transaction, text, mark, **given)
        raise AssertionError(f"the simulated PostgreSQL does not know this statement: teach it\n{text}")

    def _raise(self, transaction: _Transaction, text: str, mark: Mark, known: int, checkpoint: int, **_: Any) -> Any:
        self.lock(transaction, mark)
        if (
            self.marks.get(mark) != known and "checkpoint = %(known)s" in text
        ):  # as committed, after the wait for the lock
            self.note("a mark of PostgreSQL that another process has raised")
            raise psycopg.errors.InvalidTextRepresentation(postgres._ELSEWHERE)
        transaction.changes[mark] = transaction.raised = checkpoint
        return [(1,)]


def _translated(dialect: PostgresDialect, error: Exception, failure: str) -> BarrierRuntimeError:
    return Unavailable(f"{failure}: {error}. It is tried again")


class _Cursor:
    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.found: list[tuple[Any, ...]] = []

    def execute(self, statement: str, parameters: Any = ()) -> "_Cursor":
        self.found = self._connection.carried_out(" ".join(statement.split()), parameters)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.found[0] if self.found else None


class _Connection:
    """A connection of psycopg in autocommit mode: each statement outside a message is a transaction."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._simulation = server.simulation
        self._transaction: _Transaction | None = None

    def execute(self, statement: str, parameters: Any = ()) -> _Cursor:
        return self.cursor().execute(statement, parameters)

    def cursor(self) -> _Cursor:
        return _Cursor(self)

    def commit(self) -> None:
        """Does nothing: no transaction is open between messages."""

    def carried_out(self, text: str, parameters: Any) -> list[tuple[Any, ...]]:
        found = self.asked(text, parameters)
        self.end_of_message()
        return found

    def asked(self, text: str, parameters: Any) -> list[tuple[Any, ...]]:
        """Executes a statement, and waits for a lock. Raises `_LockTimeout`."""
        waits_until_us = self._simulation.now_us + _LOCK_TIMEOUT_US
        while True:
            transaction = self._begun()
            try:
                found: list[tuple[Any, ...]] = self._ask(partial(self._server.execute, transaction, text, parameters))
                return found
            except _Locked:
                self._server.note("a lock of PostgreSQL waited for")
                if self._simulation.now_us > waits_until_us:
                    raise _LockTimeout("canceling statement due to lock timeout") from None
                self._simulation.jobs.block(self._simulation.between_us(*_LOOK_AGAIN_US))

    def copy(self, columns: Sequence[str], parts: Iterable[bytes]) -> None:
        transaction = self._begun()
        rows = [row for part in parts for row in _rows(columns, part)]

        def copied() -> None:
            self._server.hear(transaction)
            transaction.shown.extend(rows)

        self._ask(copied)

    def end_of_message(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._server.doorway.ask("postgres commit", lambda: self._server.commit(transaction), _Lost)

    def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._server.end(transaction)

    def close(self) -> None:
        """Closes the connection; the server ends its transaction when the message arrives."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not self._simulation.closed:
            self._simulation.after(self._simulation.between_us(*_TRAVEL_US), self._server.end, transaction)

    def _begun(self) -> _Transaction:
        if self._transaction is None:
            self._transaction = self._server.begin(self._simulation.jobs.running("a statement").process)
        return self._transaction

    def _ask(self, effect: Callable[[], Any]) -> Any:
        simulation = self._simulation
        if self._server.troubled() and simulation.chance(_LOST):
            simulation.jobs.block(simulation.between_us(1_000, 3_000_000))
            raise _Lost("server closed the connection unexpectedly")
        return simulation.jobs.request(simulation.between_us(*_TRAVEL_US), effect, simulation.between_us(*_TRAVEL_US))


def _exchanged(
    connection: _Connection,
    statements: Sequence[tuple[Any, Mapping[str, Any] | None] | Copy],
    copies: Iterable[Iterable[bytes]] = (),
) -> None:
    """Replacement of `postgres/session.exchange`. Rows for the temporary table are not checked."""
    windows = iter(copies)
    try:
        for each in statements:
            if isinstance(each, Copy):
                rows = next(windows)
                if each.into == _TARGET.identifier:
                    connection.copy(each.columns, rows)
            else:
                connection.asked(*each)
    except psycopg.Error:
        connection.roll_back()
        raise
    connection.end_of_message()


def _rows(columns: Sequence[str], part: bytes) -> list[Row]:
    found = csv.DictReader(io.StringIO(bytes(part).decode()), fieldnames=list(columns))
    return [Row(**{name: value if name == "source" else int(value) for name, value in row.items()}) for row in found]
