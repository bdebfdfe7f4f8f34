"""Commits that earlier releases left in a PostgreSQL database, in their tables and in prepared transactions."""

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from barrier_runtime import PostgresSink
from barrier_runtime.state.errors import Corrupt, InvalidJob
from examples.servers import PostgresServer
from tests.ends.postgres_tables import STORE, new_job, new_table, opened, pre_committed, seen

LAYOUT = """
create schema barrier_runtime;
create table barrier_runtime.layout (version int primary key);
create table barrier_runtime.fences (
    job text, sink text, lineage text, token bigint not null, primary key (job, sink, lineage)
);
create table barrier_runtime.commits (
    job text, sink text, lineage text, checkpoint bigint not null, committed_at timestamptz not null default now(),
    primary key (job, sink, lineage)
);
create table barrier_runtime.staged (
    job text, sink text, batch text, part int, lineage text not null, store text not null, token bigint not null,
    subtask int not null, data bytea not null, primary key (job, sink, batch, part)
);
create table barrier_runtime.prepared_commits (
    job text, sink text, lineage text, subtask int, checkpoint bigint,
    primary key (job, sink, lineage, subtask, checkpoint)
);
insert into barrier_runtime.layout values (1);
"""


def digest(*parts: str) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


class EarlierDatabase:
    """A private database, with a table of numbers, as an earlier release left the table."""

    def __init__(self, server: PostgresServer, columns: str) -> None:
        name = f"earlier_{new_job().replace('-', '_')}"
        with psycopg.connect(server.url, autocommit=True) as maker:
            maker.execute(f"create database {name}")
        self.url = server.url.rpartition("/")[0] + f"/{name}"
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.connection.execute(LAYOUT)
        self.table, self.job = new_table(self.connection, columns), new_job()

    def _committable(self, transactions: str, name: str, checkpoint: int, subtask: int, **facts: Any) -> bytes:
        return msgspec.json.encode(
            {
                "version": 1,
                "transactions": transactions,
                "job": self.job,
                "sink": "out",
                "lineage": "lineage",
                "token": 1,
                "subtask": subtask,
                "checkpoint": checkpoint,
                "target": f"public.{self.table}",
                "columns": ["n", "t"],
                "name": name,
                **facts,
            }
        )

    def staged(self, checkpoint: int, *parts: str, subtask: int = 0) -> bytes:
        batch, data = f"1-{subtask}-ab12cd34-{checkpoint}", [part.encode() for part in parts]
        for number, part in enumerate(data):
            self.connection.execute(
                "insert into barrier_runtime.staged values (%s, 'out', %s, %s, 'lineage', %s, 1, %s, %s)",
                (self.job, batch, number, digest(STORE.url), subtask, part),
            )
        sizes = [len(part) for part in data]
        return self._committable("staged", batch, checkpoint, subtask, sizes=sizes, rows=len(parts))

    def prepared(self, checkpoint: int, number: int) -> bytes:
        owner, store, lineage = digest(self.job, "out"), digest(STORE.url), digest("lineage")
        gid = f"barrier_runtime:{owner}:{store}:{lineage}:1:0:{checkpoint}:ab12cd34:{self.job}"
        with psycopg.connect(self.url, autocommit=True) as own:
            own.execute("begin")
            own.execute(
                "insert into barrier_runtime.prepared_commits values (%s, 'out', 'lineage', 0, %s)",
                (self.job, checkpoint),
            )
            own.execute(f"insert into {self.table} values ({number}, 'prepared')")
            own.execute(f"prepare transaction '{gid}'")
        return self._committable("prepared", gid, checkpoint, 0, sizes=[10], rows=1)

    def opened(self, token: int = 2, **arguments: Any) -> PostgresSink:
        return opened(self.url, self.table, self.job, token=token, **arguments)

    def leftovers(self) -> list[str]:
        staged = self.connection.execute("select batch from barrier_runtime.staged").fetchall()
        prepared = self.connection.execute(
            "select gid from pg_prepared_xacts where database = current_database()"
        ).fetchall()
        return [name for (name,) in (*staged, *prepared)]


@pytest.fixture
def earlier(postgres: PostgresServer) -> Iterator[EarlierDatabase]:
    made = EarlierDatabase(postgres, "n bigint not null unique, t text")
    yield made
    made.connection.close()


@pytest.mark.parametrize("arguments", [{}, {"mode": "upsert", "key": ["n"]}], ids=["insert", "upsert"])
def test_staged_rows_of_an_earlier_release_are_committed_with_its_mark(
    earlier: EarlierDatabase, arguments: dict[str, Any]
) -> None:
    """T3, T10: also by two processes at once; then rows of this release follow under the same mark."""
    decided = [
        earlier.staged(3, '"1","a"\n', '"2","b"\n'),
        earlier.staged(3, '"3","c"\n', subtask=1),
        earlier.staged(4, '"4","d"\n'),
    ]
    earlier.staged(5, '"5","undecided"\n')
    earlier.connection.execute(
        "insert into barrier_runtime.commits values (%s, 'out', 'lineage', 2, now())", (earlier.job,)
    )
    sinks = [earlier.opened(token, **arguments) for token in (2, 3)]
    for sink in sinks:
        sink.recover(decided)
    assert len(earlier.leftovers()) == 4
    threads = [threading.Thread(target=sink.commit_globally, args=(4, decided)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen(earlier.connection, earlier.table) == [1, 2, 3, 4]
    assert earlier.leftovers() == []
    newest = pre_committed(sinks[0], 5, 5)
    for _ in range(2):
        sinks[0].commit_globally(5, [*decided, newest])
    assert seen(earlier.connection, earlier.table) == [1, 2, 3, 4, 5]
    for sink in sinks:
        sink.close()


def test_prepared_transactions_of_an_earlier_release_are_committed_or_rolled_back(earlier: EarlierDatabase) -> None:
    """T3, T6"""
    decided = [earlier.prepared(3, 1), earlier.prepared(4, 2)]
    aborted = earlier.prepared(5, 3)
    earlier.prepared(6, 4)  # not decided
    sink = earlier.opened()
    for _ in range(2):
        sink.abort(aborted)
    for _ in range(2):
        sink.recover(decided)
    sink.commit_globally(4, decided)
    assert seen(earlier.connection, earlier.table) == [1, 2]
    assert earlier.leftovers() == []
    with pytest.raises(Corrupt, match=r"the 1 row that checkpoint 5 decided are gone: the server has no prepared"):
        sink.recover([aborted])
    sink.close()


def test_rows_of_an_earlier_release_that_are_gone_stop_the_commit(earlier: EarlierDatabase) -> None:
    """T6"""
    decided = earlier.staged(3, '"1","a"\n', '"2","b"\n')
    sink = earlier.opened()
    sink.abort(decided)
    with pytest.raises(Corrupt, match=r"barrier_runtime\.staged has 0 of 2 parts"):
        sink.commit_globally(3, [decided])
    sink.close()


def test_a_process_of_an_earlier_release_stages_no_more_rows(earlier: EarlierDatabase) -> None:
    """Z2: the fence that such a process asks is at the token of the newest generation."""
    sink = earlier.opened(token=7)
    assert earlier.connection.execute("select token from barrier_runtime.fences").fetchall() == [(7,)]
    sink.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"job": "other"}, Corrupt, "which this sink did not make"),
        ({"name": "2-0-ab12cd34-3"}, Corrupt, "which this sink did not make"),
        ({"name": "1-0-ab12cd34-3' or true"}, Corrupt, "which this sink did not make"),
        ({"transactions": "prepared"}, Corrupt, "which this sink did not make"),
        ({"target": "public.others"}, InvalidJob, "run the job once more with the old table"),
        ({"version": 2}, InvalidJob, "newer"),
        ({"more": 1}, Corrupt, "a committable"),
    ],
)
def test_committables_that_an_earlier_release_cannot_have_made_are_refused(
    earlier: EarlierDatabase, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    made = msgspec.json.decode(earlier.staged(3, '"1","a"\n'))
    sink = earlier.opened()
    with pytest.raises(error, match=message):
        sink.recover([msgspec.json.encode({**made, **changes})])
    assert len(earlier.leftovers()) == 1
    sink.close()
