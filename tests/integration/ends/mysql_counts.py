"""The table of MariaDB that a kill test fills, and the table's reader."""

import contextlib
from typing import Any

from examples.servers import MariaServer
from tests.integration.ends.audit import Seen

TABLE = "counts"


def make_table(server: MariaServer) -> None:
    """`place` is the order in which the rows were inserted."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"create table {TABLE} (place bigint auto_increment primary key, value bigint, `key` bigint, n bigint)"
        )


class Reader:
    """Reads the rows inserted since the last look, by a private connection, which each failure replaces."""

    def __init__(self, server: MariaServer) -> None:
        self._server = server
        self._place = 0
        self._connection: Any = None

    def look(self) -> Seen:
        query = f"select place, value, n from {TABLE} where place > %s order by place"
        try:
            if self._connection is None:
                self._connection = self._server.connect()
            with self._connection.cursor() as cursor:
                cursor.execute(query, (self._place,))
                rows = cursor.fetchall()
        except Exception:
            if self._connection is not None:
                with contextlib.suppress(Exception):  # the connection is already broken
                    self._connection.close()
            self._connection = None
            raise
        if rows:
            self._place = rows[-1][0]
        return Seen([value for _, value, _ in rows], [n for _, _, n in rows], whole=False)


def left_over(server: MariaServer) -> list[str]:
    """Transactions and sessions that are open."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("select trx_state from information_schema.innodb_trx")
        return [str(row) for row in cursor.fetchall()]
