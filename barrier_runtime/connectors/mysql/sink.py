"""Exactly-once rows in a table of MySQL or MariaDB: inserted, or upserted by key; one SQL transaction per commit.

Rows wait in the job's storage until their checkpoint is decided; then subtask 0 writes those of all subtasks, and of
all checkpoints that were decided meanwhile, in one transaction of InnoDB: raise a mark, if it is still where this
process knows it; write the rows, some thousands with a statement; commit. The client waits once for each. If the mark
is elsewhere, the client looks it up, and writes what it does not cover. MySQL's own two-phase commit (XA) is not used:
a prepared transaction keeps its rows locked until somebody decides, and some releases and replicas forget it.

What happens where a process dies, or two deliver the same rows

| it dies, or stalls …                    | the next one                                                              |
|-----------------------------------------|---------------------------------------------------------------------------|
| before the decision                     | the rows are nowhere but in the job's storage, and are swept              |
| after it, before the transaction        | writes them                                                               |
| inside the transaction                  | waits until the server has ended it, then finds the mark as it was        |
| in the commit: nobody knows             | finds the mark raised, or not                                             |
| after it, before the rows were dropped  | finds the mark raised, and drops them                                     |

A zombie writes only what is decided, and finds the mark of its successor.

What a row violates only in the table itself (a unique or foreign key, a CHECK, a trigger) is found by the commit, which
is tried until a person has changed the table: decided rows are never dropped.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import pyarrow as pa

from barrier_runtime.connectors.commit_groups import CommitGroups
from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.mysql.columns import Fitted, checked, fitted
from barrier_runtime.connectors.mysql.session import MySQLSession, server_of
from barrier_runtime.connectors.mysql.target import (
    DeliveryMark,
    make_commits,
    read_target,
)
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.decided_batch import BatchingSink, DecidedBatch
from barrier_runtime.data.schemas import column_names
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound

_WRITE_ROWS = 4_096
_ROWS_TOGETHER = 1 << 18  # of the checkpoints of one transaction


@kinds_checked
class MySQLSink(BatchingSink):
    """Rows into `table`, a table of InnoDB whose columns have the names of the rows' columns (see `mysql/columns` for
    types). MySQL 5.7 and MariaDB 10.3, or newer.

    `url`: `mysql://user@host:port/database`, with `?ssl_ca=/path` for TLS. A password belongs into MYSQL_PWD or
    ~/.my.cnf, on every host that runs slots; one in the url is used and never shown or stored.

    `mode="upsert"`: a row replaces the one with the same `key` columns, which have a unique index, are NOT NULL and, if
    they are text, have a binary collation; of the rows of one checkpoint the last one of a key stays. `call_s`: the
    longest wait for one answer of the server. `max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask
    before a part of it is staged early. The sink keeps its bookkeeping in the table `barrier_runtime_commits` of the
    same database.

    >>> MySQLSink("mysql://app@db/shop", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "mysql"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Literal["insert", "upsert"] = "insert",
        key: Sequence[str] = (),
        max_bytes_in_memory: int = 32 << 20,
        call_s: float = 60.0,
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        if mode not in ("insert", "upsert"):
            raise InvalidJob(f"MySQLSink: mode={mode!r}: use 'insert' or 'upsert'")
        if isinstance(key, str) or (mode == "upsert") != bool(key):
            raise InvalidJob(
                f"MySQLSink: mode={mode!r} with key={key!r}: mode='upsert' needs the list of the key's columns, "
                "key=['id'], and mode='insert' has none"
            )
        if not table or "." in table:
            raise InvalidJob(f"MySQLSink: table={table!r}: give the name of a table; the url names its database")
        if not 0 < call_s <= 86_400:
            raise InvalidJob(f"MySQLSink: call_s={call_s!r}: give seconds, up to a day")
        self._server = server_of(url)
        self.table = table
        self.mode = mode
        self.key = column_names(key, "MySQLSink: key")
        self.call_s = call_s

    def __repr__(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "insert"
        return f"MySQLSink({self.table} at {self._server.url}, {how})"

    def settings(self) -> dict[str, Any]:
        return {
            "url": self._server.url,
            "table": self.table,
            "mode": self.mode,
            "key": list(self.key),
            "max_bytes_in_memory": self.max_bytes_in_memory,
            "call_s": self.call_s,
        }

    def target(self) -> str:
        return f"table {self.table}"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._fits: tuple[Fitted, ...] = ()
        self._marks: dict[str, DeliveryMark] = {}  # by lineage
        self._groups = CommitGroups(_ROWS_TOGETHER)
        self._session = MySQLSession(self._server, self.call_s, self._where)
        database = self._server.database
        self._target = self._session.run(
            "opening the sink", lambda cursor: read_target(cursor, database, self.table, self.key, self._where)
        )
        self._session.run("making the bookkeeping's table", lambda cursor: make_commits(cursor, database, self._where))

    def close(self) -> None:
        if hasattr(self, "_session"):
            self._session.close()

    # ------------------------------------------------------------ staging

    def check_schema(self, schema: pa.Schema) -> None:
        for name in self.key:
            if name not in schema.names:
                raise InvalidJob(f"{self._where}: the rows have no key column {name!r}: select() it")
        fits = fitted(schema, self._target.columns, self.table, self._where, self.key)
        if self.key:
            self._target.check_key(self.key, schema.names, self._where)
        self._fits = fits

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        return [checked(batch, self._fits, self._target.packet, self.table, self._where) for batch in batches]

    # ------------------------------------------------------------ delivering

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        for lineage in dict.fromkeys(batch.lineage for batch in batches):
            mark = self._marks.setdefault(lineage, DeliveryMark(batches[0].job, batches[0].sink, lineage))
            due = [batch for batch in batches if batch.lineage == lineage and batch.checkpoint > mark.known]
            self._groups.commit(due, _rows, partial(self._deliver, mark))

    def _deliver(self, mark: DeliveryMark, batches: Sequence[DecidedBatch]) -> None:
        """In one SQL transaction. `batches`: of one lineage, oldest first."""
        checkpoint = batches[-1].checkpoint
        session, what = self._session, f"committing checkpoint {checkpoint}"
        if not mark.is_there:
            session.run(what, mark.make)

        def write(cursor: Any) -> None:
            if due := mark.raised(cursor, batches):
                for rows in self._rows_of(due):
                    self._write(cursor, rows)

        try:
            session.run(what, write)
        except ObjectNotFound as error:
            # A successor may have written and dropped them between our look and our reading.
            if session.run(what, mark.looked_up) < checkpoint:
                raise Corrupt(
                    f"{self._where}: of the {sum(batch.rows for batch in batches)} rows that checkpoints up to "
                    f"{checkpoint} decided some are gone, and table {self.table} does not have them ({error}). Were "
                    "they aborted, moved or deleted? Restore the object from a backup; the commit is tried again"
                ) from error
        mark.known = max(mark.known, checkpoint)

    def _rows_of(self, batches: Sequence[DecidedBatch]) -> Iterator[pa.RecordBatch]:
        """All rows in order, as many as one statement takes at a time."""
        gathered: list[pa.RecordBatch] = []
        count = 0
        for read in self._read_all([staged for batch in batches for staged in batch.objects]):
            for rows in read:
                if gathered and (count + rows.num_rows > _WRITE_ROWS or gathered[0].schema != rows.schema):
                    yield from _cut(gathered)
                    gathered, count = [], 0
                gathered.append(rows)
                count += rows.num_rows
        yield from _cut(gathered)

    def _write(self, cursor: Any, rows: pa.RecordBatch) -> None:
        names = rows.schema.names
        values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        cursor.max_stmt_length = min(cursor.max_stmt_length, self._target.packet // 2)
        cursor.executemany(_statement(self.table, names, self.key), values)


def _rows(batch: DecidedBatch) -> int:
    return batch.rows


def _cut(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not batches:
        return
    rows = pa.concat_batches(batches)
    for start in range(0, rows.num_rows, _WRITE_ROWS):
        yield rows.slice(start, _WRITE_ROWS)


def _statement(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    listed, places = ", ".join(map(_quoted, names)), ", ".join(["%s"] * len(names))
    insert = f"insert into {_quoted(table)} ({listed}) values ({places})"
    if not key:
        return insert
    changed = [name for name in names if name not in key] or list(key)
    return f"{insert} on duplicate key update " + ", ".join(
        f"{_quoted(name)} = values({_quoted(name)})" for name in changed
    )


def _quoted(name: str) -> str:
    """As an identifier in a statement with places."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"
