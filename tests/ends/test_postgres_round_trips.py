"""How often the PostgreSQL sink waits for its server: each wait costs a round trip, and commits follow one another."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from barrier_runtime import PostgresSink
from examples.servers import PostgresServer
from tests.ends.postgres_tables import left_over, made_visible, new_job, new_table, opened, pre_committed, seen
from tests.ends.round_trips import CountingProxy, PostgresWaits, counting_proxy

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["n"]}
MODES = pytest.mark.parametrize("arguments", [{}, UPSERT], ids=["insert", "upsert"])


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CountingProxy]:
    with counting_proxy(postgres.port, PostgresWaits) as proxy:
        yield proxy


def url_of(proxy: CountingProxy) -> str:
    return f"postgresql://barrier@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"


def behind(proxy: CountingProxy, table: str, job: str, **arguments: Any) -> PostgresSink:
    """A sink that has connected, made its temporary tables and committed checkpoint 1."""
    sink = opened(url_of(proxy), table, job, **arguments)
    made_visible(sink, 1, [pre_committed(sink, 1, 1)])
    return sink


@MODES
def test_rows_are_checked_and_staged_with_three_waits(
    proxy: CountingProxy, connection: psycopg.Connection[Any], arguments: dict[str, Any]
) -> None:
    """COPY has two: for the server to take rows, and for its verdict."""
    sink = behind(proxy, new_table(connection, "n bigint unique, t text"), new_job(), **arguments)
    assert proxy.count(lambda: pre_committed(sink, 2, 2)) == 3
    sink.close()


@MODES
def test_a_checkpoint_is_committed_with_four_waits_and_so_are_ten(
    proxy: CountingProxy, connection: psycopg.Connection[Any], arguments: dict[str, Any]
) -> None:
    table, job = new_table(connection, "n bigint unique, t text"), new_job()
    sink = behind(proxy, table, job, **arguments)
    second = pre_committed(sink, 2, 2)
    assert proxy.count(lambda: made_visible(sink, 2, [second])) == 4
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(3, 13)]
    assert proxy.count(lambda: made_visible(sink, 12, [second, *backlog])) == 4
    assert seen(connection, table) == list(range(1, 13))
    assert left_over(connection, job) == []
    sink.close()


def test_what_is_known_to_be_visible_is_not_asked_for_again(
    proxy: CountingProxy, connection: psycopg.Connection[Any]
) -> None:
    sink = behind(proxy, new_table(connection), new_job())
    second = pre_committed(sink, 2, 2)
    made_visible(sink, 2, [second])
    assert proxy.count(lambda: made_visible(sink, 2, [second])) == 0
    assert proxy.count(lambda: made_visible(sink, 3, [])) == 0
    sink.close()


def test_a_successor_learns_with_two_waits_what_is_visible_and_commits_the_rest(
    proxy: CountingProxy, connection: psycopg.Connection[Any]
) -> None:
    table, job = new_table(connection), new_job()
    first = behind(proxy, table, job)
    decided = [pre_committed(first, checkpoint, checkpoint) for checkpoint in (2, 3)]
    made_visible(first, 2, decided[:1])
    successor = opened(url_of(proxy), table, job, token=2)
    assert proxy.count(lambda: successor.recover(decided)) == 2
    assert proxy.count(lambda: made_visible(successor, 3, decided)) == 2 + 4
    assert seen(connection, table) == [1, 2, 3]
    first.close()
    successor.close()


@MODES
@pytest.mark.parametrize("with_answer", [False, True], ids=["answer-lost", "answered"])
@pytest.mark.parametrize("waits", [1, 2, 3, 4])
def test_a_connection_that_ends_between_any_two_waits_loses_and_doubles_nothing(
    proxy: CountingProxy, connection: psycopg.Connection[Any], arguments: dict[str, Any], waits: int, with_answer: bool
) -> None:
    """T10: of staging, and of a commit of several checkpoints. The answer of a COMMIT is among those that are lost."""
    table, job = new_table(connection, "n bigint unique, t text"), new_job()
    sink = behind(proxy, table, job, **arguments)
    if waits <= 3:
        proxy.cut_after(waits, with_answer=with_answer)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in (2, 3, 4)]
    proxy.cut_after(waits, with_answer=with_answer)
    made_visible(sink, 4, backlog)
    made_visible(sink, 5, [*backlog, pre_committed(sink, 5, 5)])
    assert proxy.has_cut
    assert seen(connection, table) == [1, 2, 3, 4, 5]
    assert left_over(connection, job) == []
    sink.close()
