"""Exactly-once rows in a PostgreSQL table: inserted, or upserted by key.

Two ways to wait for the decision: `transactions="staged"` (`postgres/staged`, the default: readers see whole
checkpoints) and `"prepared"` (`postgres/prepared`, PostgreSQL's own two-phase commit, whose price is told there).

What can be wrong is found as early as it can be known: the table, the rights and the key when the sink opens, columns
and types with the first rows, before anything is staged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.postgres.columns import Convert, converters, encode_csv
from barrier_runtime.connectors.postgres.committable import (
    COMMITTABLE_VERSION,
    Names,
    PostgresCommittable,
    Transactions,
    decode_committable,
    digest,
    encode_committable,
)
from barrier_runtime.connectors.postgres.fence import fence_lock
from barrier_runtime.connectors.postgres.prepared import PreparedTransactions, check_limit
from barrier_runtime.connectors.postgres.session import PostgresSession, load_psycopg, parameters_of, shown_server
from barrier_runtime.connectors.postgres.staged import StagedTransactions
from barrier_runtime.connectors.postgres.target import PostgresTarget, make_layout, read_target
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import RowBuffer
from barrier_runtime.data.schemas import column_names
from barrier_runtime.state.errors import Fenced, InvalidJob

_RAISE_FENCE = """
insert into barrier_runtime.fences as f (job, sink, lineage, token) values (%s, %s, %s, %s)
on conflict (job, sink, lineage) do update set token = greatest(f.token, excluded.token) returning token
"""


@dataclass(frozen=True)
class _Part:
    """Rows that are encoded: `data` unless they are staged."""

    size: int  # bytes
    rows: int
    data: bytes = b""


class _Transaction:
    __slots__ = ("batch", "has_full_parts", "parts", "rows")

    def __init__(self, batch: str) -> None:
        self.batch = batch
        self.rows: RowBuffer[_Part] = RowBuffer()
        self.parts = 0  # staged
        self.has_full_parts = False  # that nobody has been told to stage


@kinds_checked
class PostgresSink(TwoPhaseCommitSink):
    """Rows into `schema.table`, whose columns have the names of the rows' columns (see `postgres/columns` for types).

    `url`: `postgresql://user@host:port/database` or libpq's `host=… dbname=…`; several hosts may be given, the writable
    one is used. A password belongs into PGPASSWORD, ~/.pgpass or a service file, on every host that runs slots; one in
    the url is used and never shown or stored. Connect to PostgreSQL itself, or through a pooler in session mode.

    `mode="upsert"`: a row replaces the one with the same `key` columns, which need a unique index. `statement_timeout`:
    seconds. `max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask before a part of it is staged
    early. The sink keeps its bookkeeping in the schema `barrier_runtime` of the same database.

    A row that the table refuses by its type, NOT NULL or CHECK is found before its checkpoint is decided. What staged
    rows can violate only in the table itself (unique and foreign keys, a missing partition, a trigger) is found by the
    commit, which is then tried until a person has changed the table: decided rows are never dropped.

    >>> PostgresSink("postgresql://app@db/shop", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "postgres"
    commits_only_globally = True

    def __init__(
        self,
        url: str,
        table: str,
        *,
        schema: str = "public",
        mode: Literal["insert", "upsert"] = "insert",
        key: Sequence[str] = (),
        transactions: Transactions = "staged",
        max_bytes_in_memory: int = 8 << 20,
        statement_timeout: float = 60.0,
    ) -> None:
        if mode not in ("insert", "upsert") or transactions not in ("staged", "prepared"):
            raise InvalidJob(
                f"PostgresSink: mode={mode!r}, transactions={transactions!r}: mode is 'insert' or 'upsert', "
                "transactions is 'staged' or 'prepared'"
            )
        if isinstance(key, str) or (mode == "upsert") != bool(key):
            raise InvalidJob(
                f"PostgresSink: mode={mode!r} with key={key!r}: mode='upsert' needs the list of the key's columns, "
                "key=['id'], and mode='insert' has none"
            )
        if mode == "upsert" and transactions == "prepared":
            raise InvalidJob(
                "PostgresSink: mode='upsert' needs transactions='staged': a prepared transaction keeps its rows locked "
                "until its checkpoint is decided, and the next checkpoint's rows of the same keys would wait for it"
            )
        if not 1 <= max_bytes_in_memory <= 256 << 20 or not 0 < statement_timeout <= 86_400:
            raise InvalidJob(
                f"PostgresSink: max_bytes_in_memory={max_bytes_in_memory!r}, statement_timeout={statement_timeout!r}: "
                "use up to 256 MiB, and seconds up to a day"
            )
        self._parameters, self._secrets = parameters_of(url)
        self.table = table
        self.schema = schema
        self.mode = mode
        self.key = column_names(key, "PostgresSink: key")
        self.transactions: Transactions = transactions
        self.max_bytes_in_memory = max_bytes_in_memory
        self.statement_timeout = statement_timeout
        self.global_committer = transactions == "staged"

    def __repr__(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "insert"
        return (
            f"PostgresSink({self.schema}.{self.table} at {shown_server(self._parameters)}, {how}, {self.transactions})"
        )

    def settings(self) -> dict[str, Any]:
        return {
            "url": load_psycopg().conninfo.make_conninfo(**self._parameters),
            "table": self.table,
            "schema": self.schema,
            "mode": self.mode,
            "key": list(self.key),
            "transactions": self.transactions,
            "max_bytes_in_memory": self.max_bytes_in_memory,
            "statement_timeout": self.statement_timeout,
        }

    def target(self) -> str:
        return f"table {self.schema}.{self.table}"

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._names = Names(
            context.job,
            context.sink,
            context.lineage,
            context.job_store.url,
            context.token,
            context.subtask,
            digest(context.new_id())[:8],
        )
        self._transactions_begun = 0
        self._convert: tuple[Convert, ...] | None = None
        self._columns: tuple[str, ...] = ()
        parameters = {**self._parameters, **self._secrets}
        staging, self._deciding = (PostgresSession(parameters, self.statement_timeout, self._where) for _ in range(2))
        self._sessions = (staging, self._deciding)
        self._target = self._open_target()
        self._staged: StagedTransactions | None = None
        self._prepared: PreparedTransactions | None = None
        if self.transactions == "staged":
            self._staged = StagedTransactions(
                context, self._names, self._target, self.key, staging, self._deciding, self._where
            )
        else:
            self._prepared = PreparedTransactions(
                context, self._names, self._target, staging, self._deciding, self._where
            )

    def _open_target(self) -> PostgresTarget:
        """Check all that is known without rows, then keep older generations out."""
        context = self._context

        def look(connection: Any) -> PostgresTarget:
            if self.transactions == "prepared":
                self.most_decided = check_limit(connection, context.parallelism, self._where)
            return read_target(connection, self.schema, self.table, self.key, self._where)

        def raise_fence(connection: Any) -> int:
            connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (fence_lock(context),))
            owner = (context.job, context.sink, context.lineage, context.token)
            return int(connection.execute(_RAISE_FENCE, owner).fetchone()[0])

        target = self._deciding.run("opening the sink", look)
        self._deciding.run(
            "making the bookkeeping's tables",
            lambda connection: make_layout(connection, self._where),
            autocommit=True,
        )
        token = self._deciding.run("opening the sink", raise_fence)
        if token > context.token:
            raise Fenced(f"{self._where}: generation {token} has taken over from generation {context.token}")
        return target

    # ------------------------------------------------------------ staging

    def begin_transaction(self) -> "_Transaction":
        self._transactions_begun += 1
        return _Transaction(self._names.batch(self._transactions_begun))

    def write(self, transaction: "_Transaction", rows: pa.RecordBatch) -> None:
        if self._convert is None:
            self._convert = converters(rows.schema, self._target.columns, self._target.shown, self._where, self.key)
            self._columns = tuple(rows.schema.names)
            for column in self.key:
                if column not in self._columns:
                    raise InvalidJob(f"{self._where}: the rows have no key column {column!r}: select() it")
        for chunk in _cut(rows, self.max_bytes_in_memory):
            transaction.rows.write(chunk)
            if transaction.rows.bytes_in_current >= self.max_bytes_in_memory:
                transaction.rows.fill_up()
                transaction.has_full_parts = True

    def stage_early(self, transaction: "_Transaction") -> Callable[[], None] | None:
        if self._staged is None or not transaction.has_full_parts:
            return None
        transaction.has_full_parts = False

        def stage() -> None:
            self._stage(transaction)

        return stage

    def pre_commit(self, transaction: "_Transaction", checkpoint: int) -> bytes | None:
        transaction.rows.fill_up()
        parts = self._stage(transaction)
        if not parts:
            return None
        name = transaction.batch
        if self._prepared is not None:
            name = self._names.gid(checkpoint)
            self._prepared.prepare(name, checkpoint, [part.data for part in parts], self._columns)
        context = self._context
        return encode_committable(
            PostgresCommittable(
                version=COMMITTABLE_VERSION,
                transactions=self.transactions,
                job=context.job,
                sink=context.sink,
                lineage=context.lineage,
                token=context.token,
                subtask=context.subtask,
                checkpoint=checkpoint,
                target=self._target.shown,
                columns=self._columns,
                name=name,
                sizes=tuple(part.size for part in parts),
                rows=sum(part.rows for part in parts),
            )
        )

    def _stage(self, transaction: "_Transaction") -> list["_Part"]:
        """Encode whatever is full and is not yet; make it durable as well, if this sink stages. May be called again
        after it raised."""

        def make(batches: Sequence[pa.RecordBatch]) -> _Part:
            data = self._encoded(batches)
            rows = sum(batch.num_rows for batch in batches)
            if self._staged is None:
                return _Part(len(data), rows, data)
            self._staged.stage_part(transaction.batch, transaction.parts, data, self._columns)
            transaction.parts += 1
            return _Part(len(data), rows)

        return transaction.rows.stage(make)

    def _encoded(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        assert self._convert is not None
        try:
            return encode_csv(batches, self._convert)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self._where}: a row cannot be written to {self._target.shown}: {error}. Filter or correct "
                "such rows before the sink"
            ) from error

    # ------------------------------------------------------------ deciding

    def commit(self, committable: bytes) -> None:
        """Staged rows are where they have to be: `commit_globally` moves those of all subtasks."""
        self._how.commit(self._decoded(committable))

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        assert self._staged is not None, "only staged transactions have a global committer"
        self._staged.commit_globally(checkpoint, [self._decoded(each) for each in committables])

    def abort(self, committable: bytes) -> None:
        self._how.abort(self._decoded(committable))

    def recover(self, decided: Sequence[bytes]) -> None:
        committables = [self._decoded(each) for each in decided]
        if self._staged is not None:
            self._staged.check_there(committables)
        else:
            for committable in committables:
                self._how.commit(committable)
        self._how.sweep(committables)

    @property
    def _how(self) -> StagedTransactions | PreparedTransactions:
        how = self._staged or self._prepared
        assert how is not None, "the sink is not open"
        return how

    def _decoded(self, committable: bytes) -> PostgresCommittable:
        context, target = self._context, self._target.shown
        return decode_committable(committable, context.job, context.sink, self.transactions, target, self._where)

    def close(self) -> None:
        for session in getattr(self, "_sessions", ()):
            session.close()


def _cut(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most about that size: a part is one value in a table, and must not grow without bound."""
    count = min(rows.num_rows, -(-rows.nbytes // most_bytes))
    if count <= 1:
        yield rows
        return
    step = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)
