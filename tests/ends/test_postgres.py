"""The PostgreSQL sink against a real server: zombies, repetitions, lost connections, what readers see."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from barrier_runtime import Dataflow
from barrier_runtime.connectors.postgres import staged as postgres_staged
from barrier_runtime.connectors.postgres.session import PostgresSession, parameters_of
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.postgres.target import LAYOUT_LOCK
from barrier_runtime.state.errors import Corrupt, Fenced, InvalidJob, Unavailable
from examples.servers import PostgresServer
from tests.ends.postgres_tables import left_over, made_visible, new_job, new_table, numbers, opened, pre_committed, seen
from tests.waiting import until

BOTH = pytest.mark.parametrize("transactions", ["staged", "prepared"])
PATIENCE_S = 120.0


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(connection: psycopg.Connection[Any]) -> str:
    return new_table(connection)


def tried_again(call: Callable[[], None]) -> None:
    """As a slot does it, whatever else is at the server's rows meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# ------------------------------------------------------------ zombies


@BOTH
def test_a_zombie_can_leave_no_more_rows_once_its_successor_has_opened(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """T8, Z2: the target itself refuses an older token."""
    job = new_job()
    zombie = opened(postgres.url, table, job, token=3, transactions=transactions)
    pre_committed(zombie, 1, 1, 2)
    successor = opened(postgres.url, table, job, token=5, transactions=transactions)
    successor.recover([])
    assert left_over(connection, job) == []
    for _ in range(2):
        with pytest.raises(Fenced, match=r"generation 3 may not .* generation 5 has taken over"):
            pre_committed(zombie, 2, 3)
    with pytest.raises(Fenced, match="generation 5 has taken over from generation 3"):
        opened(postgres.url, table, job, token=3, transactions=transactions)
    assert left_over(connection, job) == []
    made_visible(successor, 2, [pre_committed(successor, 2, 1, 2)])
    assert seen(connection, table) == [1, 2]
    zombie.close()
    successor.close()


@BOTH
def test_a_generation_that_opens_waits_for_staging_that_is_under_way(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """Else rows of the older generation could appear after the newer one has looked for leftovers."""
    job = new_job()
    zombie = opened(postgres.url, table, job, token=1, transactions=transactions)
    opening = threading.Event()
    done: list[PostgresSink] = []

    def open_successor() -> None:
        opening.set()
        done.append(opened(postgres.url, table, job, token=2, transactions=transactions))

    thread = threading.Thread(target=open_successor)
    with psycopg.connect(postgres.url) as holder:
        # What the zombie's session holds between its look at the fence and the end of its SQL transaction.
        if transactions == "staged":
            holder.execute("select token from barrier_runtime.fences where job = %s for share", (job,))
        else:
            name = f"barrier_runtime fence {job} out lineage"
            holder.execute("select pg_advisory_lock_shared(hashtextextended(%s, 0))", (name,))
        thread.start()
        waits = "select 1 from pg_locks where not granted"
        until(lambda: connection.execute(waits).fetchall(), "the successor waits for a lock")
        assert done == []
    thread.join(PATIENCE_S)
    (successor,) = done
    zombie.close()
    successor.close()


def test_a_commit_that_another_session_is_just_carrying_out_is_tried_again(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    """The server calls such a transaction busy. The other session waits here for a standby that there is not."""
    job = new_job()
    sink = opened(postgres.url, table, job, transactions="prepared")
    decided = pre_committed(sink, 1, 7)
    ((gid,),) = connection.execute("select gid from pg_prepared_xacts where gid like %s", (f"%:{job}",)).fetchall()

    def commit() -> None:
        with psycopg.connect(postgres.url, autocommit=True) as other:
            other.execute(psycopg.sql.SQL("commit prepared {}").format(psycopg.sql.Literal(gid)))

    set_back = threading.Event()

    def write() -> None:
        with psycopg.connect(postgres.url, autocommit=True) as other:
            while not set_back.is_set():
                other.execute("create table written ()")
                other.execute("drop table written")

    writer, thread = threading.Thread(target=write), threading.Thread(target=commit)
    connection.execute("alter system set synchronous_standby_names = 'nobody'")
    try:
        connection.execute("select pg_reload_conf()")
        waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
        writer.start()  # the process that tells all others of it may hear of it later than this session
        until(lambda: connection.execute(waiting).fetchone() == (1,), "whoever writes waits")
        thread.start()
        until(lambda: connection.execute(waiting).fetchone() == (2,), "the other session waits")
        with pytest.raises(Unavailable, match="another session is just ending the prepared transaction"):
            sink.commit(decided)
    finally:
        set_back.set()
        connection.execute("alter system reset synchronous_standby_names")
        connection.execute("select pg_reload_conf()")
    writer.join(PATIENCE_S)
    thread.join(PATIENCE_S)
    made_visible(sink, 1, [decided])
    assert seen(connection, table) == [7]
    assert left_over(connection, job) == []
    sink.close()


@BOTH
def test_a_zombie_and_its_successor_commit_the_same_rows_at_once_and_they_appear_once(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """T10, Z2"""
    job = new_job()
    zombie = opened(postgres.url, table, job, token=1, transactions=transactions)
    decided = [pre_committed(zombie, checkpoint, checkpoint * 10, checkpoint * 10 + 1) for checkpoint in range(1, 9)]
    successor = opened(postgres.url, table, job, token=2, transactions=transactions)
    troubles: list[BaseException] = []

    def work(sink: PostgresSink) -> None:
        try:
            for committable in decided:
                tried_again(lambda committable=committable: sink.commit(committable))
            made_visible(sink, 8, decided)
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(sink,)) for sink in (zombie, successor)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert troubles == []
    assert seen(connection, table) == [n for checkpoint in range(1, 9) for n in (checkpoint * 10, checkpoint * 10 + 1)]
    assert left_over(connection, job) == []
    zombie.close()
    successor.close()


def test_subtasks_that_open_a_database_for_the_first_time_together_make_its_tables_once(
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


# ------------------------------------------------------------ repetitions, aborts


@BOTH
def test_a_commit_that_is_repeated_shows_nothing_twice_also_from_another_process(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """T3, T6, T10, T11"""
    job = new_job()
    sink = opened(postgres.url, table, job, transactions=transactions)
    first, second = pre_committed(sink, 1, 1), pre_committed(sink, 2, 2)
    made_visible(sink, 1, [first])
    made_visible(sink, 2, [first, second])
    made_visible(sink, 2, [first, second])
    other = opened(postgres.url, table, job, token=9, subtask=0, parallelism=3, transactions=transactions)
    other.recover([first, second])
    made_visible(other, 2, [first, second])
    assert seen(connection, table) == [1, 2]
    assert left_over(connection, job) == []
    sink.close()
    other.close()


@BOTH
def test_what_was_aborted_can_never_be_committed(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """T6: a hard error that says what happened, never silence."""
    job = new_job()
    sink = opened(postgres.url, table, job, transactions=transactions)
    made_visible(sink, 1, [pre_committed(sink, 1, 1)])
    aborted = pre_committed(sink, 2, 2, 3)
    sink.abort(aborted)
    sink.abort(aborted)
    for _ in range(2):
        with pytest.raises(Corrupt, match="2 rows that checkpoint 2 decided"):
            made_visible(sink, 2, [aborted])
        with pytest.raises(Corrupt, match="2 rows that checkpoint 2 decided"):
            sink.recover([aborted])
    assert seen(connection, table) == [1]
    sink.close()


def test_a_decided_transaction_that_an_operator_rolled_back_is_missed(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job, transactions="prepared")
    decided = pre_committed(sink, 1, 1)
    (gid,) = left_over(connection, job)
    connection.execute(f"rollback prepared '{gid}'")
    with pytest.raises(Corrupt, match="an operator rolled it back"):
        sink.commit(decided)
    sink.close()


@BOTH
def test_a_fresh_start_is_not_taken_for_what_an_earlier_one_did(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    """T14: tokens and checkpoint ids from 1 again, on a target that has seen more."""
    job = new_job()
    first = opened(postgres.url, table, job, token=50, transactions=transactions)
    made_visible(first, 100, [pre_committed(first, 100, 1)])
    second = opened(postgres.url, table, job, token=1, lineage="another", transactions=transactions)
    second.recover([])
    made_visible(second, 1, [pre_committed(second, 1, 2)])
    assert seen(connection, table) == [1, 2]
    first.close()
    second.close()


def test_the_bookkeeping_does_not_grow_with_the_checkpoints(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    table = new_table(connection)
    for transactions in ("staged", "prepared"):
        job = new_job()
        sink = opened(postgres.url, table, job, transactions=transactions)
        for checkpoint in range(1, 11):
            made_visible(sink, checkpoint, [pre_committed(sink, checkpoint, checkpoint)])
        for rows in ("fences", "commits", "prepared_commits", "staged"):
            (count,) = connection.execute(
                f"select count(*) from barrier_runtime.{rows} where job = %s", (job,)
            ).fetchone()
            assert count <= 1, rows
        sink.close()


# ------------------------------------------------------------ what readers see


def test_rows_of_all_subtasks_and_of_several_checkpoints_appear_in_one_step(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    """T2: a concurrent reader sees all or nothing of a global commit, however many parts it has."""
    job = new_job()
    sinks = [
        opened(postgres.url, table, job, subtask=subtask, parallelism=3, max_bytes_in_memory=64) for subtask in range(3)
    ]
    committables = [
        pre_committed(sink, checkpoint, *range(100 * checkpoint + 10 * subtask, 100 * checkpoint + 10 * subtask + 10))
        for checkpoint in (1, 2)
        for subtask, sink in enumerate(sinks)
    ]
    (parts,) = connection.execute("select count(*) from barrier_runtime.staged where job = %s", (job,)).fetchone()
    assert parts > len(committables)
    assert seen(connection, table) == []
    counts = set()
    over = threading.Event()

    def read() -> None:
        with psycopg.connect(postgres.url, autocommit=True) as reader:
            while True:
                last = over.is_set()
                counts.add(len(seen(reader, table)))
                if last:
                    return

    thread = threading.Thread(target=read)
    thread.start()
    until(lambda: counts, "the reader has looked")
    for committable, sink in zip(committables, sinks * 2, strict=True):
        sink.commit(committable)
    sinks[0].commit_globally(2, committables)
    over.set()
    thread.join(PATIENCE_S)
    assert counts == {0, 60}
    assert seen(connection, table) == [n for c in (100, 200) for n in range(c, c + 30)]
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize("moved_at_once", [1, 16 << 20])
def test_the_last_row_of_a_key_wins_within_and_across_checkpoints(
    postgres: PostgresServer,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    moved_at_once: int,
) -> None:
    monkeypatch.setattr(postgres_staged, "_MOVE_BYTES", moved_at_once)
    table = new_table(connection, "n bigint, t text, other text default 'kept', unique (n)")
    job = new_job()
    sink = opened(postgres.url, table, job, mode="upsert", key=["n"], max_bytes_in_memory=64)
    connection.execute(f"insert into {table} values (1, 'old', 'mine')")

    def rows() -> list[tuple[Any, ...]]:
        return connection.execute(f"select n, t, other from {table} order by n").fetchall()

    transaction = sink.begin_transaction()
    for t in ("a", "b", "c"):
        sink.write(transaction, numbers(1, 2).set_column(1, "t", pa.array([t + "1", t + "2"])))
    first = sink.pre_commit(transaction, 1)
    assert first is not None
    made_visible(sink, 1, [first])
    assert rows() == [(1, "c1", "mine"), (2, "c2", "kept")]
    made_visible(sink, 2, [first, pre_committed(sink, 2, 2, 3)])
    assert rows() == [(1, "c1", "mine"), (2, "text 2", "kept"), (3, "text 3", "kept")]
    sink.close()


def test_an_empty_transaction_leaves_nothing_to_commit(postgres: PostgresServer, table: str) -> None:
    """T7"""
    for transactions in ("staged", "prepared"):
        sink = opened(postgres.url, table, new_job(), transactions=transactions)
        transaction = sink.begin_transaction()
        assert sink.pre_commit(transaction, 1) is None
        sink.write(transaction, numbers())
        assert sink.pre_commit(transaction, 1) is None
        sink.close()


# ------------------------------------------------------------ memory, connections


def test_a_transaction_that_outgrows_memory_is_staged_early_in_parts(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job, max_bytes_in_memory=10_000)
    transaction = sink.begin_transaction()
    early = 0
    for start in range(0, 3_000, 100):
        sink.write(transaction, numbers(*range(start, start + 100)))
        stage = sink.stage_early(transaction)
        if stage is not None:
            stage()
            early += 1
    assert early > 3
    staged = len(left_over(connection, job))
    assert staged >= early
    sink.write(transaction, numbers(*range(3_000, 20_000)))  # one batch that is larger than many parts
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    (largest,) = connection.execute(
        "select max(length(data)) from barrier_runtime.staged where job = %s", (job,)
    ).fetchone()
    assert largest < 30_000
    made_visible(sink, 1, [committable])
    assert seen(connection, table) == list(range(20_000))
    assert left_over(connection, job) == []
    sink.close()


@BOTH
def test_connections_that_were_lost_are_made_again_without_a_word(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job, transactions=transactions)
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
    """No timeout of the server's own can fire there: the caller gives up and connects again."""
    session = PostgresSession(parameters_of(postgres.url)[0], 60.0, "here", call_s=0.5)
    ask = "select pg_backend_pid()"
    stalled = session.run("asking", lambda own: own.execute(ask).fetchone()[0])
    os.kill(stalled, signal.SIGSTOP)
    try:
        assert session.run("asking", lambda own: own.execute(ask).fetchone()[0]) != stalled
    finally:
        os.kill(stalled, signal.SIGCONT)
    session.close()


@BOTH
def test_a_session_that_waits_for_the_next_checkpoint_is_not_cut_whatever_the_database_is_set_to(
    postgres: PostgresServer, connection: psycopg.Connection[Any], transactions: str
) -> None:
    """Nor left open for ever by the server when our host has vanished."""
    name = f"impatient_{new_job().replace('-', '_')}"
    connection.execute(f"create database {name}")
    for setting in ("idle_session_timeout = '300ms'", "tcp_keepalives_idle = 7200"):
        connection.execute(f"alter database {name} set {setting}")
    url = postgres.url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(url, options="-c idle_session_timeout=0", autocommit=True) as maker:
        table, job = new_table(maker), new_job()
    sink = opened(url, table, job, transactions=transactions)
    decided = pre_committed(sink, 1, 1)
    ask = "select pid from pg_stat_activity where datname = %s and application_name = 'barrier-runtime' order by pid"
    ours = connection.execute(ask, (name,)).fetchall()
    assert ours
    witness = psycopg.connect(url, autocommit=True)  # idle for less time than ours
    there = "select 1 from pg_stat_activity where pid = %s"
    until(lambda: not connection.execute(there, (witness.info.backend_pid,)).fetchall(), "the witness is cut")
    witness.close()
    made_visible(sink, 1, [decided])
    assert connection.execute(ask, (name,)).fetchall() == ours
    shown = sink._deciding.run("asking", lambda own: own.execute("show tcp_keepalives_idle").fetchone()[0])
    assert int(shown.removesuffix("s")) <= 10
    sink.close()


def end_sessions(connection: psycopg.Connection[Any]) -> None:
    ours = "from pg_stat_activity where application_name = 'barrier-runtime'"
    connection.execute(f"select pg_terminate_backend(pid) {ours}")
    until(lambda: connection.execute(f"select 1 {ours}").fetchall() == [], "the sessions are gone")


@BOTH
def test_a_pre_commit_whose_answer_was_lost_is_repeated_without_harm(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str, transactions: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job, transactions=transactions)
    transaction = sink.begin_transaction()
    sink.write(transaction, numbers(1, 2))
    first = sink.pre_commit(transaction, 1)
    assert first is not None
    again = sink.begin_transaction()  # the same transaction, to a sink that does not know that it got through
    again.batch = transaction.batch
    sink.write(again, numbers(1, 2))
    assert sink.pre_commit(again, 1) == first
    made_visible(sink, 1, [first])
    assert seen(connection, table) == [1, 2]
    assert left_over(connection, job) == []
    sink.close()


def test_prepared_transactions_beyond_the_servers_limit_wait_for_room(
    postgres: PostgresServer, connection: psycopg.Connection[Any], table: str
) -> None:
    job = new_job()
    sink = opened(postgres.url, table, job, transactions="prepared")
    (limit,) = connection.execute("show max_prepared_transactions").fetchone()
    decided = [pre_committed(sink, checkpoint, checkpoint) for checkpoint in range(1, int(limit) + 1)]
    refused = len(decided) + 1
    with pytest.raises(Unavailable, match="max_prepared_transactions"):
        pre_committed(sink, refused, refused)
    made_visible(sink, 1, decided[:1])
    decided.append(pre_committed(sink, refused, refused))
    made_visible(sink, refused, decided)
    assert seen(connection, table) == list(range(1, refused + 1))
    assert left_over(connection, job) == []
    sink.close()


@BOTH
def test_a_job_that_ends_leaves_all_rows_once_and_nothing_else(
    postgres: PostgresServer, connection: psycopg.Connection[Any], transactions: str
) -> None:
    """T13: the rows after the last barrier come with the final checkpoint."""
    table = new_table(connection, "value bigint primary key, key bigint, intended_at timestamptz")
    job = new_job()
    flow = Dataflow(job)
    sink = PostgresSink(postgres.url, table, transactions=transactions)  # type: ignore[arg-type]
    flow.rate("numbers", 20_000, 10_000, keys=7).sink("out", sink)
    flow.run_local(parallelism=2, checkpoint_interval=0.1)
    (rows, highest) = connection.execute(f"select count(*), max(value) from {table}").fetchone()
    assert (rows, highest) == (10_000, 9_999)
    assert left_over(connection, job) == []
    ours = "select state from pg_stat_activity where application_name = 'barrier-runtime'"
    until(lambda: connection.execute(ours).fetchall() == [], "the job's connections are closed")


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
        assert "s3cr3t" not in str(connection.execute("select * from barrier_runtime.staged").fetchall())
        sink.close()
        with pytest.raises(InvalidJob, match=r"authentication failed.*PGPASSWORD") as caught:
            opened(server.url.replace("s3cr3t", "wr0ng"), table, new_job())
        assert "wr0ng" not in str(caught.value)
        with pytest.raises(InvalidJob, match="no password supplied"):
            opened(server.dsn, table, new_job())
