"""A PostgreSQL server as far as staged transactions need it: the statements that the sink issues, on rows with locks,
in transactions that read what is committed. The production sink runs down to its session.

Each statement travels by itself, or with those that are sent with it, so those of several processes come between each
other; a lock that somebody holds is waited for as the server would have it, and a transaction whose client is dead, or
silent for too long, is ended by it. A commit travels by itself here: it may be lost, or its answer, or come late.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from servers import Doorway
from workload import AUDITED, Row

from barrier_runtime.connectors.postgres import sink as postgres
from barrier_runtime.connectors.postgres import staged as postgres_staged
from barrier_runtime.connectors.postgres.columns import Column
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.postgres.target import PostgresTarget
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.testing.simulation.loop import SECOND, SimProcess, Simulation

_TRAVEL_US = (200, 2_000)
_LOOK_AGAIN_US = (10_000, 60_000)  # a lock that is held
_LOCK_TIMEOUT_US = 10 * SECOND
_IDLE_IN_TRANSACTION_US = 20 * SECOND
_LOST = 0.1  # of a statement, while the server is hard to reach
_PART_BYTES = 1_200
_TYPES = {"string": ("text", "text"), "int32": ("integer", "int4"), "int64": ("bigint", "int8")}

Key = tuple[Any, ...]  # table and primary key


class _Lost(Exception):
    """The connection is gone."""


class _LockTimeout(Exception):
    """Somebody else has the lock for too long."""


class _Locked(Exception):
    """Somebody else has the lock now."""


class _Part(NamedTuple):
    lineage: str
    store: str
    token: int
    subtask: int
    data: bytes


@dataclass(eq=False)
class _Transaction:
    process: SimProcess
    heard_us: int
    changes: dict[Key, Any] = field(default_factory=dict)  # None: deleted
    shown: list[Row] = field(default_factory=list)  # copied into the target
    raised: int = 0  # the checkpoint up to which the target is whole then
    exclusive: set[Key] = field(default_factory=set)
    shared: set[Key] = field(default_factory=set)
    ended: bool = False


@dataclass
class PostgresServer:
    """`on_visible(checkpoint, rows)` is told of rows in the target and the number that was committed with them, 0 if
    none was; `wrong(checker, what)` of what should never be; `note` of what was refused."""

    simulation: Simulation
    troubled: Callable[[], bool]
    on_visible: Callable[[int, list[Row]], None]
    wrong: Callable[[str, str], None]
    note: Callable[[str], None]
    rows: dict[Key, Any] = field(default_factory=dict)
    transactions: dict[_Transaction, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.doorway = Doorway(self.simulation, self.troubled)

    def sink(self) -> PostgresSink:
        return PostgresSink("postgresql://app@sim/bank", "rows", max_bytes_in_memory=_PART_BYTES)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """In place of the sessions, and of what looks at tables that only PostgreSQL has."""
        columns = tuple(Column(each.name, *_TYPES[str(each.type)]) for each in AUDITED)
        with (
            patch.object(postgres, "PostgresSession", lambda parameters, timeout_s, where: _Session(self, where)),
            patch.object(postgres, "read_target", lambda *_: PostgresTarget("public", "rows", 1, columns)),
            patch.object(postgres, "make_layout", lambda *_: None),
            patch.object(postgres_staged, "make_check_table", lambda *_: None),
            patch.object(postgres_staged, "copy_into", _copied),
            patch.object(postgres_staged, "at_once", lambda connection: connection.at_once()),
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
        for key, value in transaction.changes.items():
            if value is None:
                self.rows.pop(key, None)
                continue
            self.rows[key] = value
            if isinstance(value, _Part):
                self._judge_staged(key, value)
        self.end(transaction)
        if transaction.shown:
            self.on_visible(transaction.raised, transaction.shown)

    def _judge_staged(self, key: Key, part: _Part) -> None:
        newest = self.rows.get(("fences", *key[1:3], part.lineage), 0)
        if part.token < newest:
            self.wrong("FencedStageNothing", f"generation {part.token} stages {key} after the fence was at {newest}")

    def end(self, transaction: _Transaction) -> None:
        transaction.ended = True
        self.transactions.pop(transaction, None)

    def _is_silent(self, transaction: _Transaction) -> bool:
        return self.simulation.now_us - transaction.heard_us > _IDLE_IN_TRANSACTION_US

    def lock(self, transaction: _Transaction, *keys: Key, share: bool = False) -> None:
        """All of them, or none and `_Locked`."""
        for other in list(self.transactions):
            held = other.exclusive if share else other.exclusive | other.shared
            if other is transaction or held.isdisjoint(keys):
                continue
            if other.process.alive and not self._is_silent(other):
                raise _Locked
            self.end(other)
        (transaction.shared if share else transaction.exclusive).update(keys)

    # ------------------------------------------------------------ rows, as one transaction sees them

    def get(self, transaction: _Transaction, key: Key) -> Any:
        return transaction.changes[key] if key in transaction.changes else self.rows.get(key)

    def staged(self, transaction: _Transaction, job: str, sink: str) -> dict[Key, _Part]:
        seen = {**self.rows, **transaction.changes}
        return {key: seen[key] for key in seen if key[:3] == ("staged", job, sink) and seen[key] is not None}

    def delete(self, transaction: _Transaction, keys: Sequence[Key]) -> None:
        self.lock(transaction, *keys)
        transaction.changes.update(dict.fromkeys(keys))

    # ------------------------------------------------------------ statements

    def execute(self, transaction: _Transaction, text: str, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.hear(transaction)
        for lock in (" for update", " for share"):
            if text.endswith(lock):
                text = text.removesuffix(lock)
                table = text.split(" from barrier_runtime.")[1].split()[0]
                self.lock(transaction, (table, *given), share=lock == " for share")
        if text.startswith("insert into barrier_runtime.staged"):
            return self.insert_part(transaction, text, *given)
        statement = _STATEMENTS.get(text)
        if statement is None:
            raise AssertionError(f"the simulated PostgreSQL does not know this statement: teach it\n{text}")
        return statement(self, transaction, *given) or []

    def take_advisory_lock(self, transaction: _Transaction, name: str) -> list[tuple[Any, ...]]:
        self.lock(transaction, ("advisory", name))
        return [("",)]

    def raise_fence(self, transaction: _Transaction, *given: Any) -> list[tuple[Any, ...]]:
        key = ("fences", *given[:3])
        self.lock(transaction, key)
        transaction.changes[key] = max(self.get(transaction, key) or 0, given[3])
        return [(transaction.changes[key],)]

    def insert_part(self, transaction: _Transaction, text: str, *given: Any) -> list[tuple[Any, ...]]:
        """A row for the part that was inserted. `text` may lack what keeps an older generation's rows out."""
        batch, part, store, token, subtask, data, job, sink, lineage, _ = given
        fence, key = ("fences", job, sink, lineage), ("staged", job, sink, batch, part)
        if " for share" in text:
            self.lock(transaction, fence, share=True)
        newest = self.get(transaction, fence)
        if newest is None or ("token <= %s" in text and newest > token):
            self.note("an older generation's rows refused by PostgreSQL")
            return []
        self.lock(transaction, key)
        if self.get(transaction, key) is not None:
            return []
        transaction.changes[key] = _Part(lineage, store, token, subtask, data)
        return [(1,)]

    def read_fence(self, transaction: _Transaction, *key: str) -> list[tuple[Any, ...]]:
        token = self.get(transaction, ("fences", *key))
        return [] if token is None else [(token,)]

    def there(
        self, transaction: _Transaction, batches: list[str], lineages: list[str], job: str, sink: str, *_: str
    ) -> list[tuple[Any, ...]]:
        parts = [key[3] for key in self.staged(transaction, job, sink)]
        return [
            (batch, parts.count(batch), self.get(transaction, ("commits", job, sink, lineage)) or 0)
            for batch, lineage in zip(batches, lineages, strict=True)
        ]

    def read_commits(self, transaction: _Transaction, *key: str) -> list[tuple[Any, ...]]:
        checkpoint = self.get(transaction, ("commits", *key))
        return [] if checkpoint is None else [(checkpoint,)]

    def insert_commits(self, transaction: _Transaction, *key: str) -> None:
        if self.get(transaction, ("commits", *key)) is None:
            self.lock(transaction, ("commits", *key))
            transaction.changes[("commits", *key)] = 0

    def update_commits(self, transaction: _Transaction, checkpoint: int, *key: str) -> None:
        self.lock(transaction, ("commits", *key))
        transaction.changes[("commits", *key)] = transaction.raised = checkpoint

    def take_parts(
        self, transaction: _Transaction, batches: list[str], parts: list[int], job: str, sink: str
    ) -> list[tuple[Any, ...]]:
        wanted = [("staged", job, sink, *each) for each in zip(batches, parts, strict=True)]
        self.lock(transaction, *wanted)
        found = [(key, self.get(transaction, key)) for key in wanted]
        there = [(key, part) for key, part in found if part is not None]
        self.delete(transaction, [key for key, _ in there])
        return [(key[3], key[4], part.data) for key, part in there]

    def drop_batch(self, transaction: _Transaction, job: str, sink: str, batch: str) -> None:
        self.delete(transaction, [key for key in self.staged(transaction, job, sink) if key[3] == batch])

    def sweep(self, transaction: _Transaction, *given: Any) -> None:
        job, sink, token, parallelism, subtask, lineage, store, kept = given
        leftovers = [
            key
            for key, part in self.staged(transaction, job, sink).items()
            if part.token < token
            and part.subtask % parallelism == subtask
            and (part.lineage == lineage or part.store == store)
            and key[3] not in kept
        ]
        self.delete(transaction, leftovers)
        if leftovers:
            self.note("staged rows that nobody decided swept from PostgreSQL")


def _plain(statement: str) -> str:
    return " ".join(statement.split())


_STATEMENTS: dict[str, Callable[..., list[tuple[Any, ...]] | None]] = {
    _plain(text): run
    for text, run in (
        ("select pg_advisory_xact_lock(hashtextextended(%s, 0))", PostgresServer.take_advisory_lock),
        (postgres._RAISE_FENCE, PostgresServer.raise_fence),
        (postgres_staged._TAKE_PARTS, PostgresServer.take_parts),
        (postgres_staged._SWEEP, PostgresServer.sweep),
        (
            "select token from barrier_runtime.fences where job = %s and sink = %s and lineage = %s",
            PostgresServer.read_fence,
        ),
        (postgres_staged._THERE, PostgresServer.there),
        (postgres_staged._LOCK_MARK.replace(" for update", ""), PostgresServer.read_commits),
        (postgres_staged._MAKE_MARK, PostgresServer.insert_commits),
        (postgres_staged._RAISE_MARK, PostgresServer.update_commits),
        ("drop table if exists pg_temp.barrier_runtime_check", lambda *_: None),
        (
            "delete from barrier_runtime.staged where job = %s and sink = %s and batch = %s",
            PostgresServer.drop_batch,
        ),
    )
}


class _Session:
    """`postgres/session.PostgresSession`: of one thread at a time, as two executors of a sink use two of them."""

    def __init__(self, server: PostgresServer, where: str) -> None:
        self._server = server
        self._where = where
        self._connection: _Connection | None = None
        self._closed = False

    def run(self, what: str, work: Callable[[Any], Any], *, autocommit: bool = False) -> Any:
        fresh = self._connection is None
        try:
            try:
                return self._attempt(work, autocommit)
            except _Lost:
                if fresh:
                    raise
                return self._attempt(work, autocommit)
        except (_Lost, _LockTimeout) as error:
            raise Unavailable(f"{self._where}: {what} failed at PostgreSQL: {error}. It is tried again") from error

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _attempt(self, work: Callable[[Any], Any], autocommit: bool) -> Any:
        connection = self._connection = self._connection or _Connection(self._server)
        connection.autocommit = autocommit
        try:
            result = work(connection)
            if not autocommit:
                connection.commit()
        except BaseException:
            self._drop()
            raise
        if self._closed:
            self._drop()
        return result

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Cursor:
    """Over the rows of one statement."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.found: list[tuple[Any, ...]] = []

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> "_Cursor":
        self._connection.send(_plain(statement), parameters, self)
        return self

    @property
    def rowcount(self) -> int:
        return len(self.found)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.found[0] if self.found else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.found

    def close(self) -> None:
        """It holds nothing."""


class _Connection:
    """A connection of psycopg. Without `begin` each statement of one with `autocommit` is a transaction."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._simulation = server.simulation
        self._transaction: _Transaction | None = None
        self._sent_together: list[tuple[str, Sequence[Any], _Cursor]] | None = None
        self.autocommit = False

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> _Cursor:
        return self.cursor().execute(statement, parameters)

    def cursor(self, binary: bool = False) -> _Cursor:
        return _Cursor(self)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        self._sent_together = []
        try:
            yield
            together = self._sent_together
        finally:
            self._sent_together = None
        self._carried_out(together)

    def send(self, text: str, parameters: Sequence[Any], cursor: _Cursor) -> None:
        if self._sent_together is not None:
            self._sent_together.append((text, parameters, cursor))
        else:
            self._carried_out([(text, parameters, cursor)])

    def _carried_out(self, statements: Sequence[tuple[str, Sequence[Any], _Cursor]]) -> None:
        """All up to a commit in one trip, but for locks that are waited for."""
        left = list(statements)
        explicit = self._transaction is not None or not self.autocommit
        waits_until_us = self._simulation.now_us + _LOCK_TIMEOUT_US
        while left:
            text = left[0][0]
            if text in ("begin", "commit", "rollback"):
                del left[0]
                if text == "commit":
                    self.commit()
                elif text == "rollback":
                    self.close()
                explicit = text == "begin"
                continue
            transaction = self._begun()
            try:
                self._asked(partial(self._executed, transaction, left, explicit))
            except _Locked:
                self._server.note("a lock of PostgreSQL waited for")
                if self._simulation.now_us > waits_until_us:
                    raise _LockTimeout("canceling statement due to lock timeout") from None
                self._simulation.jobs.block(self._simulation.between_us(*_LOOK_AGAIN_US))
                continue
            if not explicit:
                self.commit()

    def _executed(
        self, transaction: _Transaction, left: list[tuple[str, Sequence[Any], _Cursor]], explicit: bool
    ) -> None:
        """At the server: those that belong to the transaction, or the first."""
        while left and left[0][0] not in ("begin", "commit", "rollback"):
            text, parameters, cursor = left[0]
            cursor.found = self._server.execute(transaction, text, parameters)
            del left[0]
            if not explicit:
                return

    def copy(self, columns: Sequence[str], parts: Sequence[bytes]) -> None:
        transaction = self._begun()
        rows = [row for part in parts for row in _rows(columns, part)]

        def copied() -> None:
            self._server.hear(transaction)
            transaction.shown.extend(rows)

        self._asked(copied)

    def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            self._server.doorway.ask("postgres commit", lambda: self._server.commit(transaction), _Lost)

    def close(self) -> None:
        """The server learns of it."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not self._simulation.closed:
            self._simulation.after(self._simulation.between_us(*_TRAVEL_US), self._server.end, transaction)

    def _begun(self) -> _Transaction:
        if self._transaction is None:
            self._transaction = self._server.begin(self._simulation.jobs.running("a statement").process)
        return self._transaction

    def _asked(self, effect: Callable[[], Any]) -> Any:
        simulation = self._simulation
        if self._server.troubled() and simulation.chance(_LOST):
            simulation.jobs.block(simulation.between_us(1_000, 3_000_000))
            raise _Lost("server closed the connection unexpectedly")
        return simulation.jobs.request(simulation.between_us(*_TRAVEL_US), effect, simulation.between_us(*_TRAVEL_US))


def _copied(connection: _Connection, table: Any, columns: Sequence[str], parts: Sequence[bytes]) -> None:
    if table != postgres_staged._temporary():
        connection.copy(columns, parts)


def _rows(columns: Sequence[str], part: bytes) -> list[Row]:
    found = csv.DictReader(io.StringIO(part.decode()), fieldnames=list(columns))
    return [Row(**{name: value if name == "source" else int(value) for name, value in row.items()}) for row in found]
