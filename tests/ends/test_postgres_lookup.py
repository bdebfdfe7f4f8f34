"""A lookup in a real PostgreSQL, which is killed in between."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from barrier_runtime import Cache, CollectSink, Dataflow, Retry
from examples.servers import PostgresServer
from tests.ends.postgres_tables import new_table

ROWS = 600
PATIENCE_S = 240


class Holders:
    """Looks up holders by a connection that is kept until a failure. Counts answers and failures for the test. While
    `waits`, there are few more than ten answers.
    """

    answered = 0
    failed = 0
    waits = False

    def __init__(self, url: str, table: str) -> None:
        self.url = url
        self.query = f"select n, t from {table} where n = any(%s)"

    async def open(self) -> None:
        self.connection = await self.connect()

    async def connect(self) -> psycopg.AsyncConnection[dict[str, Any]]:
        return await psycopg.AsyncConnection.connect(self.url, autocommit=True, connect_timeout=5, row_factory=dict_row)

    async def fetch_many(self, keys: list[int]) -> dict[int, Any]:
        while Holders.waits and Holders.answered >= 10:
            await asyncio.sleep(0.001)
        try:
            if self.connection.closed:
                self.connection = await self.connect()
            found = await (await self.connection.execute(self.query, (keys,))).fetchall()
        except psycopg.OperationalError:
            Holders.failed += 1
            raise
        Holders.answered += 1
        return {row["n"]: row for row in found}

    async def close(self) -> None:
        await self.connection.close()


@pytest.fixture
def holders(postgres: PostgresServer) -> Iterator[Holders]:
    Holders.answered = Holders.failed = 0
    Holders.waits = False
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        table = new_table(connection)
        connection.execute(f"insert into {table} select n, 'holder ' || n from generate_series(0, {ROWS}, 2) n")
    yield Holders(postgres.url, table)
    postgres.start()  # if a test failed before the close
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"drop table {table}")


def test_rows_are_completed_from_postgres_though_it_is_killed_and_started_again(
    postgres: PostgresServer, holders: Holders
) -> None:
    def strike() -> None:
        pause = threading.Event()
        while Holders.answered < 10 and not finished.is_set():
            pause.wait(0.001)
        postgres.kill()
        Holders.waits = False
        while not Holders.failed and not finished.is_set():
            pause.wait(0.001)
        postgres.start()

    def rows(index: int, of: int) -> Iterator[dict[str, int]]:
        return ({"n": at % ROWS, "at": at} for at in range(2 * ROWS))

    flow, sink = Dataflow("job"), CollectSink()
    flow.from_iterator("cards", rows, schema={"n": int, "at": int}, splits=1).lookup(
        "holder",
        holders,
        key="n",
        schema={"t": str},
        capacity=20,
        max_batch=5,
        timeout=timedelta(seconds=PATIENCE_S),
        retry=Retry(100, timedelta(milliseconds=50), (psycopg.OperationalError,)),
        cache=Cache(100),
    ).sink("out", sink)
    finished = threading.Event()
    Holders.waits = True
    striker = threading.Thread(target=strike)
    striker.start()
    try:
        flow.run_local(parallelism=1, checkpoint_interval=0.1)
    finally:
        finished.set()
        striker.join()
    assert Holders.failed > 0
    found = sorted((row["at"], row["n"], row["t"]) for row in sink.rows())
    assert found == [(at, at % ROWS, None if at % 2 else f"holder {at % ROWS}") for at in range(2 * ROWS)]


def test_a_lookup_is_opened_when_its_server_answers(postgres: PostgresServer, holders: Holders) -> None:
    """The job waits for a server that is away at the start, as sinks do."""
    postgres.kill()
    starter = threading.Timer(0.5, postgres.start)
    flow, sink = Dataflow("job"), CollectSink()
    rows = [{"n": 2}, {"n": 3}]
    stream = flow.from_iterator("cards", lambda index, of: iter(rows), schema={"n": int}, splits=1)
    stream.lookup("holder", holders, key="n", schema={"t": str}, retry=Retry(3)).sink("out", sink)
    starter.start()
    flow.run_local(parallelism=1, restart="fixed_delay", restart_attempts=None)
    starter.join()
    assert sorted((row["n"], row["t"]) for row in sink.rows()) == [(2, "holder 2"), (3, None)]
