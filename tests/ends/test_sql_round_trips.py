"""Waits of SQL sinks for their server: each wait is a round trip, and commits are sequential."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from barrier_runtime import MySQLSink, PostgresSink, Unavailable
from barrier_runtime.connectors.sink_bases.sql.sink import SqlSink
from tests.ends.round_trips import CountingProxy, PostgresWaits, Turns, counting_proxy
from tests.ends.sql_databases import Database, Job, MySQL, Postgres, pre_committed

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["n"]}
WAYS = pytest.mark.parametrize("arguments", [{}, UPSERT], ids=["insert", "upsert"])
COLUMNS = "n bigint not null unique, t varchar(100)"


@dataclass
class Far:
    """A database behind a proxy. `commit`: waits of a commit; `check`: waits of the check before the decision."""

    database: Database
    proxy: CountingProxy
    commit: int
    check: int

    @property
    def table(self) -> str:
        return self.database.table(COLUMNS)

    def opened(self, job: Job, table: str, **arguments: Any) -> SqlSink:
        """A connected sink, with temporary tables and checkpoint 1 committed."""
        sink = job.opened(table, **arguments)
        sink.commit_globally(1, [pre_committed(sink, 1, 1)])
        return sink


@pytest.fixture(params=["postgres", "mysql"])
def far(request: pytest.FixtureRequest) -> Iterator[Far]:
    server = request.getfixturevalue("postgres" if request.param == "postgres" else "mariadb")
    with contextlib.ExitStack() as kept:
        if request.param == "postgres":
            proxy = kept.enter_context(counting_proxy(server.port, PostgresWaits))
            url = f"postgresql://barrier@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"

            class Behind(Postgres):
                def sink(self, table: str, **arguments: Any) -> SqlSink:
                    return PostgresSink(url, table, **arguments)

            found = Far(Behind(server), proxy, commit=2, check=2)
        else:
            proxy = kept.enter_context(counting_proxy(server.port, Turns))
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")

            class BehindMySQL(MySQL):
                def sink(self, table: str, **arguments: Any) -> SqlSink:
                    return MySQLSink(url, table, **arguments)

            found = Far(BehindMySQL(server), proxy, commit=2, check=0)
        kept.callback(found.database.close)
        yield found


@WAYS
def test_ten_checkpoints_are_committed_with_the_waits_of_one(far: Far, arguments: dict[str, Any]) -> None:
    """Waits of COPY: the server takes rows, the result. MySQL: the mark, the rows with the commit."""
    job, table = Job(far.database), far.table
    sink = far.opened(job, table, **arguments)
    decided: list[bytes] = []
    assert far.proxy.count(lambda: decided.append(pre_committed(sink, 2, 2))) == far.check
    assert far.proxy.count(lambda: sink.commit_globally(2, decided)) == far.commit
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(3, 13)]
    assert far.proxy.count(lambda: sink.commit_globally(12, [*decided, *backlog])) == far.commit
    assert far.proxy.count(lambda: sink.commit_globally(12, backlog)) == 0
    assert far.database.numbers(table) == list(range(1, 13))
    sink.close()


def test_a_successor_writes_the_rest_after_a_look_at_the_mark(far: Far) -> None:
    job, table = Job(far.database), far.table
    first = far.opened(job, table)
    decided = [pre_committed(first, number, number) for number in (2, 3)]
    first.commit_globally(2, decided[:1])
    successor = job.opened(table, token=2)
    assert far.proxy.count(lambda: successor.recover(decided)) == 0
    assert far.proxy.count(lambda: successor.commit_globally(3, decided)) <= 3 + far.commit  # the mark, made and read
    first.commit_globally(3, decided)  # a zombie, which knows of 2
    assert far.database.numbers(table) == [1, 2, 3]
    first.close()
    successor.close()


@WAYS
@pytest.mark.parametrize("with_answer", [False, True], ids=["answer-lost", "answered"])
@pytest.mark.parametrize("waits", [1, 2, 3])
def test_a_connection_that_ends_between_any_two_waits_loses_and_doubles_nothing(
    far: Far, arguments: dict[str, Any], waits: int, with_answer: bool
) -> None:
    """T10: during the check, and during a commit of several checkpoints. The answer of a COMMIT is among the lost
    answers.
    """
    job, table = Job(far.database), far.table
    sink = far.opened(job, table, **arguments)
    if waits <= far.check:
        far.proxy.cut_after(waits, with_answer=with_answer)
    backlog = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in (2, 3, 4)]
    if waits <= far.commit:
        far.proxy.cut_after(waits, with_answer=with_answer)
    for _ in range(2):  # not every session retries when a connection ends within an answer
        with contextlib.suppress(Unavailable):
            sink.commit_globally(4, backlog)
    sink.commit_globally(5, [*backlog, pre_committed(sink, 5, 5)])
    assert far.proxy.has_cut
    assert far.database.numbers(table) == [1, 2, 3, 4, 5]
    assert job.staged() == []
    sink.close()
