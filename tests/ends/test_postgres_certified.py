"""Both ways of the PostgreSQL sink crashed at every point of the contract, against a real server."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg.rows
import pytest

from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.testing import certify
from examples.servers import PostgresServer


class Table:
    """An empty table of the test's own, and what is staged or prepared for it."""

    def __init__(self, connection: psycopg.Connection[Any], key: str = "") -> None:
        self.name = f"certified_{uuid.uuid4().hex[:8]}"
        self._connection = connection
        connection.execute(f"create table {self.name} (id bigint{key}, key text, value bigint)")

    def read(self) -> list[dict[str, Any]]:
        with self._connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(f"select * from {self.name}").fetchall()

    def reset(self) -> None:
        self._connection.execute(f"truncate {self.name}")

    def leftovers(self) -> list[str]:
        staged = self._connection.execute("select batch from barrier_runtime.staged").fetchall()
        prepared = self._connection.execute("select gid from pg_prepared_xacts").fetchall()
        return [name for (name,) in (*staged, *prepared)]


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


def lose_connections(sink: Any) -> None:
    """As the kernel does when the process dies."""
    with contextlib.suppress(AttributeError):  # it died before it had any
        sink.close()


@pytest.mark.parametrize("how", ["insert", "upsert", "prepared"])
def test_the_sink_is_exactly_once_wherever_it_crashes(
    postgres: PostgresServer, connection: psycopg.Connection[Any], how: str
) -> None:
    """T1, T2, T3, T6, T7, T8, T9, T10, T11, T14, T15: see the scenarios of `certify`."""
    table = Table(connection, " primary key" if how == "upsert" else "")
    ways: dict[str, dict[str, Any]] = {
        "insert": {},
        "upsert": {"mode": "upsert", "key": ["id"]},
        "prepared": {"transactions": "prepared"},
    }
    certificate = certify(
        lambda: PostgresSink(postgres.url, table.name, **ways[how]),
        table.read,
        scenarios=12,
        seeds=range(2),
        ordered=how == "insert",
        kill=lose_connections,
        leftovers=table.leftovers,
        reset=table.reset,
    )
    print(certificate)
    assert certificate.scenarios > 25
    assert certificate.crashes > 10
