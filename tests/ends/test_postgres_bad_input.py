"""Mistakes that a person has to correct are reported before processing, or with the first rows: the fault, the place,
the remedy.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from barrier_runtime import Dataflow
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob, Unavailable
from examples.servers import PostgresServer
from tests.ends.postgres_tables import left_over, new_job, new_table, numbers, opened, seen

URL = "postgresql://nobody@127.0.0.1/none"


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    "url",
    [
        *("hunter2", "postgresql://u:hunter2 x@h/d", "host=h hunter2", "postgresql://h/?x=hunter2", 5),
        *("postgresql://u:12/hunter2@h/d", "postgresql://u:hunter2/12@h/d"),
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: Any) -> None:
    with pytest.raises(InvalidJob, match="the url of PostgreSQL cannot be read") as caught:
        PostgresSink(url, "t")
    assert "hunter2" not in str(caught.value)


def test_settings_make_an_equal_sink_and_hold_no_password() -> None:
    sink = PostgresSink(
        "postgresql://u:hunter2@h1,h2:5433/d?sslmode=require&sslpassword=hunter3", "t", mode="upsert", key=["a", "b"]
    )
    settings = sink.settings()
    assert "hunter" not in f"{settings} {sink!r}"
    assert PostgresSink(**settings).settings() == settings
    assert repr(sink) == "PostgresSink(public.t at h1,h2:5433/d as u, upsert by a, b)"


def test_a_server_that_is_not_there_is_tried_again_and_named(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(Unavailable, match=r"at PostgreSQL 127\.0\.0\.1:1/none as nobody: .*refused.*start the server"):
        opened("postgresql://nobody:hunter2@127.0.0.1:1/none", "t", new_job())


def test_a_server_that_wants_another_database_or_user_is_named(postgres: PostgresServer) -> None:
    with pytest.raises(InvalidJob, match=r'database "none" does not exist\. Correct host'):
        opened(f"{postgres.dsn} dbname=none", "t", new_job())
    with pytest.raises(InvalidJob, match='role "nobody" does not exist'):
        opened(f"{postgres.dsn} user=nobody", "t", new_job())


def test_missing_rights_are_named_with_the_grant_that_gives_them(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    role = f"poor_{uuid.uuid4().hex[:8]}"
    table = new_table(connection, "n bigint primary key, t text")
    connection.execute(f"create role {role} login")
    dsn = f"{postgres.dsn} user={role}"
    try:
        with pytest.raises(InvalidJob, match=f"GRANT INSERT ON public.{table} TO {role}"):
            opened(dsn, table, new_job())
        connection.execute(f"grant insert on {table} to {role}")
        with pytest.raises(InvalidJob, match="GRANT INSERT, UPDATE, SELECT"):
            opened(dsn, table, new_job(), mode="upsert", key=["n"])
        opened(postgres.url, table, new_job()).close()  # makes the bookkeeping's tables
        with pytest.raises(InvalidJob, match=r"permission denied for schema barrier_runtime\. Grant"):
            opened(dsn, table, new_job())
        connection.execute(f"grant usage on schema barrier_runtime to {role}")
        connection.execute(f"grant all on all tables in schema barrier_runtime to {role}")
        connection.execute(f"alter table {table} enable row level security")
        with pytest.raises(InvalidJob, match="row-level security is active"):
            opened(dsn, table, new_job())
        connection.execute(f"alter table {table} disable row level security")
        opened(dsn, table, new_job()).close()
    finally:
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("n bigint check (n < 10), t text", "violates check constraint"),
        ("n bigint, t varchar(3)", r"value too long for type character varying\(3\)"),
        ("n bigint, t uuid", "invalid input syntax for type uuid"),
    ],
)
def test_a_row_that_the_table_refuses_is_found_before_the_decision(
    postgres: PostgresServer, connection: psycopg.Connection[Any], columns: str, message: str
) -> None:
    table, job = new_table(connection, columns), new_job()
    sink = opened(postgres.url, table, job)
    transaction = sink.begin_transaction()
    sink.write(transaction, numbers(1, 77))
    for _ in range(2):
        with pytest.raises(InvalidJob, match=f"the server refuses a row: .*{message}.* Filter or correct"):
            sink.pre_commit(transaction, 1)
    assert left_over(job) == []
    assert seen(connection, table) == []
    sink.close()


def test_nulls_in_key_or_not_null_columns_and_nul_chars_are_found_before_decision(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    null = pa.record_batch({"n": pa.array([None], pa.int64()), "t": ["x"]})
    nul = pa.record_batch({"n": pa.array([1], pa.int64()), "t": ["\0"]})
    keyed = new_table(connection, "n bigint unique, t text")
    plain = new_table(connection)
    for table, arguments, rows, message in (
        (keyed, {"mode": "upsert", "key": ["n"]}, null, "column 'n' of a row is null"),
        (plain, {}, null, "column 'n' of a row is null"),
        (plain, {}, nul, "invalid byte sequence"),
    ):
        sink = opened(postgres.url, table, new_job(), **arguments)
        transaction = sink.begin_transaction()
        sink.write(transaction, rows)
        with pytest.raises(InvalidJob, match=message):
            sink.pre_commit(transaction, 1)
        sink.close()


def test_a_time_that_postgresql_cannot_hold_is_found_before_the_decision(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    sink = opened(postgres.url, new_table(connection, "at timestamp"), new_job())
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"at": pa.array([2**62], pa.timestamp("s"))}))
    with pytest.raises(InvalidJob, match=r"column 'at' cannot be written to .* out of bounds"):
        sink.pre_commit(transaction, 1)
    sink.close()


def test_a_job_with_such_a_sink_fails_with_that_reason_and_writes_nothing(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    table = new_table(connection, "value integer")
    flow = Dataflow(new_job())
    flow.rate("numbers", 1_000, 100).select(["value"]).sink("out", PostgresSink(postgres.url, table))
    with pytest.raises(JobFailed, match=r"column 'value' is int64, in table .* it is integer"):
        flow.run_local(parallelism=1, checkpoint_interval=0.1)
    assert connection.execute(f"select * from {table}").fetchall() == []


def test_a_standby_and_a_server_that_forgets_are_no_place_to_stage(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """`synchronous_commit = off` confirms writes that a crash forgets: sessions of the sink do not inherit this."""
    table, job = new_table(connection), new_job()
    connection.execute("alter role barrier set synchronous_commit = off")
    try:
        sink = opened(postgres.url, table, job)
        own = sink._session.run("asking", lambda own: own.execute("show synchronous_commit").fetchone()[0])
        assert own == "on"
        sink.close()
        connection.execute("alter role barrier set default_transaction_read_only = on")
        with pytest.raises(Unavailable, match="read-only"):
            opened(postgres.url, table, job)
    finally:
        connection.execute("alter role barrier reset all")


def test_a_server_that_stops_answering_is_given_up_after_a_while(
    connection: psycopg.Connection[Any], postgres: PostgresServer
) -> None:
    """A lock that is never released does not hold up the sink for ever."""
    table, job = new_table(connection), new_job()
    sink = opened(postgres.url, table, job, statement_timeout=3.0)
    transaction = sink.begin_transaction()
    sink.write(transaction, numbers(1))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    with psycopg.connect(postgres.url) as holder:
        holder.execute(f"lock table {table} in access exclusive mode")
        with pytest.raises(Unavailable, match=r"committing checkpoint 1 failed .*statement timeout"):
            sink.commit_globally(1, [committable])
    sink.commit_globally(1, [committable])
    assert seen(connection, table) == [1]
    sink.close()
