"""Three PostgreSQL tables of counted numbers: of staged rows, of the newest row of each key, and of prepared
transactions; their readers."""

from typing import Any

import psycopg

from tests.integration.ends.audit import Seen

TABLE, NEWEST, PREPARED = "counts", "newest", "prepared"
KEYS = 50


def make_table(url: str, table: str = TABLE, key: str | None = None) -> None:
    """`place` is the order in which the rows were inserted, whatever place the server finds for them."""
    unique = f", unique ({key})" if key else ""
    with psycopg.connect(url) as connection:
        connection.execute(f"create table {table} (place bigserial, value bigint, key bigint, n bigint{unique})")


class Reader:
    """Another connection after each failure; `since_last`: only what was inserted since the last look."""

    def __init__(self, url: str, *, since_last: bool, table: str = TABLE) -> None:
        self._url = url
        self._table = table
        self._since_last = since_last
        self._place = 0
        self._connection: psycopg.Connection[Any] | None = None

    def look(self) -> Seen:
        rows = self._rows(f"select place, value, n from {self._table} where place > %s order by place", (self._place,))
        if self._since_last and rows:
            self._place = rows[-1][0]
        return Seen([value for _, value, _ in rows], [n for _, _, n in rows], whole=not self._since_last)

    def look_at_keys(self) -> dict[int, tuple[int, int]]:
        return {key: (value, n) for key, value, n in self._rows(f"select key, value, n from {self._table}", ())}

    def _rows(self, query: str, arguments: tuple[Any, ...]) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=15)
            return self._connection.execute(query, arguments).fetchall()
        except psycopg.Error:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            raise


def left_over(url: str) -> list[str]:
    """Staged batches, prepared transactions and sessions of the sink."""
    with psycopg.connect(url) as connection:
        queries = (
            "select batch from barrier_runtime.staged",
            "select gid from pg_prepared_xacts",
            "select state from pg_stat_activity where application_name = 'barrier-runtime'",
        )
        return [str(row[0]) for query in queries for row in connection.execute(query).fetchall()]
