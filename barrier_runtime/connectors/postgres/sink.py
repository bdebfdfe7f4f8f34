"""Exactly-once rows in a PostgreSQL table (protocol: `sink_bases/sql`)."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from barrier_runtime.connectors.postgres.columns import encode_csv
from barrier_runtime.connectors.postgres.dialect import PostgresDialect, staged_csv
from barrier_runtime.connectors.postgres.earlier import EarlierCommits
from barrier_runtime.connectors.postgres.session import load_psycopg, parameters_of
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.sql.dialect import SqlSession
from barrier_runtime.connectors.sink_bases.sql.sink import Mode, SqlSink
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
class PostgresSink(SqlSink):
    """Writes rows into `schema.table`; columns match by name, types as in docs/postgres.md.

    `url`: `postgresql://user@host:port/database` or libpq's `host=… dbname=…`; of several hosts the sink uses the
    writable host. Give a password by PGPASSWORD, ~/.pgpass or a service file, on every host that runs slots; a password
    in the url is never shown or stored. Poolers must be in session mode.

    `mode="upsert"`: a row replaces the row with equal `key` columns, which need a unique index. `statement_timeout`:
    seconds. `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction before a part is staged early. The sink
    keeps its marks in the schema `barrier_runtime` of the same database.

    The sink checks type, NOT NULL and CHECK of each row before a checkpoint is decided. Other errors (unique and
    foreign keys, a missing partition, a trigger) fail the commit, which is retried until a person has changed the
    table.

    >>> PostgresSink("postgresql://app@db/shop", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "postgres"
    former_settings = frozenset({"transactions"})

    def __init__(
        self,
        url: str,
        table: str,
        *,
        schema: str = "public",
        mode: Mode = "insert",
        key: str | Sequence[str] = (),
        max_bytes_in_memory: int = 8 << 20,
        statement_timeout: float = 60.0,
    ) -> None:
        if not 0 < statement_timeout <= 86_400:
            raise InvalidJob(f"PostgresSink: statement_timeout={statement_timeout!r}: use seconds up to a day")
        self.schema = schema
        self.statement_timeout = statement_timeout
        self._postgres = PostgresDialect(*parameters_of(url), schema, statement_timeout)
        super().__init__(self._postgres, table, mode=mode, key=key, max_bytes_in_memory=max_bytes_in_memory)

    @property
    def shown_table(self) -> str:
        """Name of the table, with its schema."""
        return f"{self.schema}.{self.table}"

    def settings(self) -> dict[str, Any]:
        return {
            "url": load_psycopg().conninfo.make_conninfo(**self._postgres.parameters),
            **super().settings(),
            "schema": self.schema,
            "statement_timeout": self.statement_timeout,
        }

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._staging = SqlSession(self._postgres, self._where)  # pre-commits run in parallel to commits
        self._earlier = EarlierCommits(context, self._postgres, self._session, self._target, self.key)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        return [self._accepted(rows) for rows in super().prepare(batches)]

    def _accepted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        target, columns = self._target, rows.schema.names
        try:
            data = encode_csv(rows)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self._where}: a row cannot be written to {target.shown}: {error}. Filter or correct such rows "
                "before the sink"
            ) from error
        self._staging.run(
            "checking rows",
            lambda connection: self._postgres.check_rows(connection, target, self.key, columns, data),
        )
        return staged_csv(data, columns)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        super().commit_globally(checkpoint, self._earlier.committed(committables))

    def abort(self, committable: bytes) -> None:
        for ours in self._earlier.aborted(committable):
            super().abort(ours)

    def recover(self, decided: Sequence[bytes]) -> None:
        super().recover(self._earlier.recovered(decided))

    def close(self) -> None:
        super().close()
        if hasattr(self, "_staging"):
            self._staging.close()
