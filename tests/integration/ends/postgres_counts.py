"""Tables of counted numbers in PostgreSQL and SQLite: all rows, and the newest row of each key; their readers."""

import contextlib
import sqlite3
from typing import Any

import psycopg

from tests.integration.ends.audit import Seen

TABLE, NEWEST = "counts", "newest"
KEYS = 50


def make_table(url: str, table: str = TABLE, key: str | None = None) -> None:
    """`place` is the order in which the rows were inserted, whatever place the server finds for them."""
    unique = f", unique ({key})" if key else ""
    with psycopg.connect(url) as connection:
        connection.execute(f"create table {table} (place bigserial, value bigint, key bigint, n bigint{unique})")


class Reader:
    """Reads a table of counts; each failure replaces the connection. `since_last`: only the rows inserted since the
    last look.
    """

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


class SqliteReader:
    """Reads the whole file with each look."""

    def __init__(self, path: str) -> None:
        self._path = path
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"create table if not exists {TABLE} (value integer, key integer, n integer)")

    def look(self) -> Seen:
        with contextlib.closing(sqlite3.connect(self._path, timeout=60)) as connection:
            rows = connection.execute(f"select value, n from {TABLE} order by rowid").fetchall()
        return Seen([value for value, _ in rows], [n for _, n in rows], whole=True)


def left_over(url: str) -> list[str]:
    """Sessions of the sink."""
    with psycopg.connect(url) as connection:
        ours = "select state from pg_stat_activity where application_name = 'barrier-runtime'"
        return [str(state) for (state,) in connection.execute(ours).fetchall()]
