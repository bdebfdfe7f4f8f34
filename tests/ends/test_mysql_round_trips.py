"""How often the MySQL sink waits for its server, and what lost connections, repeats and refused rows do to a group."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import InvalidJob, MySQLSink, Unavailable
from barrier_runtime.connectors.sink import SinkContext
from examples.servers import MariaServer
from tests.ends.round_trips import CountingProxy, counting_proxy
from tests.ends.test_mysql import Job, Table, staged, written


@pytest.fixture
def table(mariadb: MariaServer) -> Iterator[Table]:
    with contextlib.closing(Table(mariadb, "n bigint primary key")) as table:
        yield table


@pytest.fixture
def proxy(mariadb: MariaServer) -> Iterator[CountingProxy]:
    with counting_proxy(mariadb.port) as proxy:
        yield proxy


def behind(proxy: CountingProxy, table: Table, job: Job, token: int = 1, **arguments: Any) -> MySQLSink:
    url = table.server.url.replace(f":{table.server.port}/", f":{proxy.port}/")
    sink = MySQLSink(url, table.name, **arguments)
    sink.open(SinkContext(job.name, "out", token, 0, 1, lambda url: job.store, job.store, "line"))
    return sink


def numbers(table: Table) -> list[int]:
    return sorted(row["n"] for row in table.read())


@pytest.mark.parametrize("arguments", [{}, {"mode": "upsert", "key": ["n"]}], ids=["insert", "upsert"])
def test_a_checkpoint_is_committed_with_three_waits_and_so_are_ten(
    proxy: CountingProxy, table: Table, arguments: dict[str, Any]
) -> None:
    """The mark, the rows, the commit."""
    sink = behind(proxy, table, Job(), **arguments)
    written(sink, 1, [{"n": 1}])
    second = staged(sink, 2, [{"n": 2}])
    assert proxy.count(lambda: sink.commit_globally(2, [second])) == 3
    backlog = [staged(sink, number, [{"n": number}]) for number in range(3, 13)]
    assert proxy.count(lambda: sink.commit_globally(12, [second, *backlog])) == 3
    assert numbers(table) == list(range(1, 13))
    assert proxy.count(lambda: sink.commit_globally(12, backlog)) == 0
    sink.close()


def test_a_successor_writes_what_is_missing_after_a_look_at_the_mark(proxy: CountingProxy, table: Table) -> None:
    job = Job()
    first = behind(proxy, table, job)
    decided = [staged(first, number, [{"n": number}]) for number in (1, 2, 3)]
    first.commit_globally(1, decided[:1])
    successor = behind(proxy, table, job, token=2)
    successor.commit_globally(2, decided[:2])
    first.commit_globally(3, decided)  # a zombie, which knows of 1
    assert proxy.count(lambda: successor.commit_globally(3, decided)) == 3  # tries, looks, ends
    assert numbers(table) == [1, 2, 3]
    first.close()
    successor.close()


@pytest.mark.parametrize("with_answer", [False, True], ids=["answer-lost", "answered"])
@pytest.mark.parametrize("waits", [1, 2, 3])
def test_a_connection_that_ends_between_any_two_waits_loses_and_doubles_nothing(
    proxy: CountingProxy, table: Table, waits: int, with_answer: bool
) -> None:
    """T10: the answer of the COMMIT is among those that are lost."""
    sink = behind(proxy, table, Job())
    written(sink, 1, [{"n": 1}])
    backlog = [staged(sink, number, [{"n": number}]) for number in (2, 3)]
    proxy.cut_after(waits, with_answer=with_answer)
    for _ in range(2):  # a connection that ends in the middle of an answer is not tried again by the session
        with contextlib.suppress(Unavailable):
            sink.commit_globally(3, backlog)
    sink.commit_globally(4, [*backlog, staged(sink, 4, [{"n": 4}])])
    assert proxy.has_cut
    assert numbers(table) == [1, 2, 3, 4]
    sink.close()


def test_a_refused_row_holds_back_no_older_checkpoint(proxy: CountingProxy, table: Table) -> None:
    table.execute(f"insert into {table.name} values (3)")
    sink = behind(proxy, table, Job())
    backlog = [staged(sink, number, [{"n": number}]) for number in range(1, 6)]
    for _ in range(2):
        with pytest.raises(InvalidJob, match=r"committing checkpoint 3 failed .*Duplicate entry '3'"):
            sink.commit_globally(5, backlog)
        assert numbers(table) == [1, 2, 3]
    table.execute(f"delete from {table.name} where n = 3")
    sink.commit_globally(5, backlog)
    assert numbers(table) == [1, 2, 3, 4, 5]
    sink.close()


def test_a_mark_that_somebody_has_deleted_is_made_again(proxy: CountingProxy, table: Table) -> None:
    job = Job()
    sink = behind(proxy, table, job)
    written(sink, 1, [{"n": 1}])
    table.execute(f"delete from barrier_runtime_commits where job = '{job.name}'")
    second = staged(sink, 2, [{"n": 2}])
    with pytest.raises(Unavailable, match="barrier_runtime_commits has lost the row"):
        sink.commit_globally(2, [second])
    sink.commit_globally(2, [second])
    sink.commit_globally(2, [second])
    assert numbers(table) == [1, 2]
    sink.close()
