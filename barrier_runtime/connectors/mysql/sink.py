"""Exactly-once rows in a table of MySQL or MariaDB: inserted or upserted (protocol: `sink_bases/sql`).

Only the commit can find a row that violates the table itself (a unique or foreign key, a CHECK, a trigger). The commit
is then retried until a person has changed the table: decided rows are never dropped.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.mysql.dialect import MySQLDialect
from barrier_runtime.connectors.mysql.session import server_of
from barrier_runtime.connectors.sink_bases.sql.sink import Mode, SqlSink
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
class MySQLSink(SqlSink):
    """Writes rows into `table`, a table of InnoDB; columns match by name (see `mysql/columns` for types).

    Needs MySQL 5.7 or MariaDB 10.3, or newer.

    `url`: `mysql://user@host:port/database`, with `?ssl_ca=/path` for TLS. A password belongs into MYSQL_PWD or
    ~/.my.cnf, on every host that runs slots; a password in the url is used but never shown or stored.

    `mode="upsert"`: a row replaces the row with equal `key` columns, which have a unique index, are NOT NULL and, if
    text, have a binary collation; the last row of a key in a checkpoint stays. `call_s`: the longest wait for an answer
    of the server, in seconds. `max_bytes_in_memory`: Arrow bytes of an open transaction of a subtask before a part is
    staged early. The sink keeps its marks in the table `barrier_runtime_commits` of the same database.

    >>> MySQLSink("mysql://app@db/shop", "totals", mode="upsert", key=["shop"])  # doctest: +SKIP
    """

    kind: ClassVar[str] = "mysql"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        mode: Mode = "insert",
        key: Sequence[str] = (),
        max_bytes_in_memory: int = 32 << 20,
        call_s: float = 60.0,
    ) -> None:
        if not table or "." in table:
            raise InvalidJob(f"MySQLSink: table={table!r}: give the name of a table; the url names its database")
        if not 0 < call_s <= 86_400:
            raise InvalidJob(f"MySQLSink: call_s={call_s!r}: give seconds, up to a day")
        self._server = server_of(url)
        self.call_s = call_s
        dialect = MySQLDialect(self._server, call_s)
        super().__init__(dialect, table, mode=mode, key=key, max_bytes_in_memory=max_bytes_in_memory)

    def settings(self) -> dict[str, Any]:
        return {"url": self._server.url, **super().settings(), "call_s": self.call_s}
