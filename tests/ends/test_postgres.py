"""Behaviours of the PostgreSQL sink alone, against a real server; `test_sql_sinks` has those of all SQL databases."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from barrier_runtime.connectors.postgres.dialect import LAYOUT_LOCK, PostgresDialect
from barrier_runtime.connectors.postgres.session import parameters_of
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.sink_bases.sql.dialect import SqlSession
from barrier_runtime.state.errors import InvalidJob
from examples.servers import PostgresServer
from tests.ends.postgres_tables import made_visible, new_job, new_table, opened, pre_committed, seen
from tests.waiting import until

PATIENCE_S = 120.0


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(connection: psycopg.Connection[Any]) -> str:
    return new_table(connection)


def test_subtasks_that_open_a_new_database_together_create_its_tables_once(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    name = f"fresh_{new_job().replace('-', '_')}"
    connection.execute(f"create database {name}")
    url = postgres.url.rpartition("/")[0] + f"/{name}"
    opened_ones: list[PostgresSink] = []
    with psycopg.connect(url, autocommit=True) as holder:
        table, job = new_table(holder), new_job()
        holder.execute("select pg_advisory_lock(%s)", (LAYOUT_LOCK,))

        def work(subtask: int) -> None:
            opened_ones.append(opened(url, table, job, subtask=subtask, parallelism=3))

        threads = [threading.Thread(target=work, args=(subtask,)) for subtask in range(3)]
        for thread in threads:
            thread.start()
        waiting = "select 1 from pg_locks where locktype = 'advisory' and not granted"
        until(lambda: len(holder.execute(waiting).fetchall()) == 3, "all have seen that the tables are not there")
        holder.execute("select pg_advisory_unlock(%s)", (LAYOUT_LOCK,))
        for thread in threads:
            thread.join(PATIENCE_S)
        made_visible(opened_ones[0], 1, [pre_committed(sink, 1, sink._context.subtask) for sink in opened_ones])
        assert sorted(seen(holder, table)) == [0, 1, 2]
    for sink in opened_ones:
        sink.close()


# ------------------------------------------------------------ connections


def test_connections_that_were_lost_are_made_again_without_a_word(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job)
    decided = []
    for checkpoint in (1, 2, 3):
        decided.append(pre_committed(sink, checkpoint, checkpoint))
        end_sessions(connection)
        made_visible(sink, checkpoint, decided)
        end_sessions(connection)
    assert seen(connection, table) == [1, 2, 3]
    sink.close()


def test_a_backend_that_stalls_is_left_for_another_one(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """No timeout of the server can fire in this case: the caller gives up and connects again."""
    session = SqlSession(PostgresDialect(*parameters_of(postgres.url), "public", 60.0, call_s=3.0), "here")
    ask = "select pg_backend_pid()"
    stalled = session.run("asking", lambda own: own.execute(ask).fetchone()[0])
    os.kill(stalled, signal.SIGSTOP)
    try:
        assert session.run("asking", lambda own: own.execute(ask).fetchone()[0]) != stalled
    finally:
        os.kill(stalled, signal.SIGCONT)
    session.close()


def test_session_waiting_for_the_next_checkpoint_survives_any_database_timeout(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """Nor left open for ever by the server when our host has vanished."""
    name = f"impatient_{new_job().replace('-', '_')}"
    connection.execute(f"create database {name}")
    for setting in ("idle_session_timeout = '300ms'", "tcp_keepalives_idle = 7200"):
        connection.execute(f"alter database {name} set {setting}")
    url = postgres.url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(url, options="-c idle_session_timeout=0", autocommit=True) as maker:
        table, job = new_table(maker), new_job()
    sink = opened(url, table, job)
    decided = pre_committed(sink, 1, 1)
    ask = "select pid from pg_stat_activity where datname = %s and application_name = 'barrier-runtime' order by pid"
    ours = connection.execute(ask, (name,)).fetchall()
    assert len(ours) == 2
    witness = psycopg.connect(url, autocommit=True)  # idle for less time than ours
    there = "select 1 from pg_stat_activity where pid = %s"
    until(lambda: not connection.execute(there, (witness.info.backend_pid,)).fetchall(), "the witness is cut")
    witness.close()
    made_visible(sink, 1, [decided])
    assert connection.execute(ask, (name,)).fetchall() == ours
    shown = sink._session.run("asking", lambda own: own.execute("show tcp_keepalives_idle").fetchone()[0])
    assert int(shown.removesuffix("s")) <= 10
    sink.close()


def end_sessions(connection: psycopg.Connection[Any]) -> None:
    ours = "from pg_stat_activity where application_name = 'barrier-runtime'"
    connection.execute(f"select pg_terminate_backend(pid) {ours}")
    until(lambda: connection.execute(f"select 1 {ours}").fetchall() == [], "the sessions are gone")


def test_the_password_is_used_and_shown_nowhere() -> None:
    from examples.servers import postgres_server

    with postgres_server(password="s3cr3t/word") as server, psycopg.connect(server.url, autocommit=True) as connection:
        assert "s3cr3t" in server.url
        table = new_table(connection)
        sink = opened(server.url, table, new_job())
        committable = pre_committed(sink, 1, 1)
        made_visible(sink, 1, [committable])
        assert seen(connection, table) == [1]
        shown = f"{sink!r} {sink.settings()} {committable!r}"
        assert "s3cr3t" not in shown
        assert "s3cr3t" not in str(connection.execute("select * from barrier_runtime.commits").fetchall())
        sink.close()
        with pytest.raises(InvalidJob, match=r"authentication failed.*PGPASSWORD") as caught:
            opened(server.url.replace("s3cr3t", "wr0ng"), table, new_job())
        assert "wr0ng" not in str(caught.value)
        with pytest.raises(InvalidJob, match="no password supplied"):
            opened(server.dsn, table, new_job())
