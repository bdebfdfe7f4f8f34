"""Behaviours of the MySQL sink alone, against a real MariaDB; `test_sql_sinks` has those of all SQL databases."""

import contextlib
import datetime
import decimal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import Dataflow, InvalidJob, MySQLSink, Unavailable
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.store.memory import MemoryStore
from examples.servers import MariaServer, mariadb_server
from tests.waiting import until


class Table:
    """An empty table of the test's own."""

    def __init__(self, server: MariaServer, columns: str = "n bigint not null, t text", more: str = "") -> None:
        self.name = f"rows_{uuid.uuid4().hex[:8]}"
        self.server = server
        self._connection = server.connect()
        self.execute(f"create table {self.name} ({columns}) {more}")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def read(self) -> list[dict[str, Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(f"select * from {self.name}")
            names = [each[0] for each in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def reset(self) -> None:
        self.execute(f"truncate {self.name}")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def make_table(mariadb: MariaServer) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        yield lambda *given: stack.enter_context(contextlib.closing(Table(mariadb, *given)))


class Job:
    def __init__(self) -> None:
        self.name = f"job-{uuid.uuid4().hex[:8]}"
        self.store = MemoryStore()

    def open(self, table: Table, token: int = 1, lineage: str = "line", **arguments: Any) -> MySQLSink:
        def no_store(url: str) -> MemoryStore:
            raise AssertionError("the sink has nothing but the job's store")

        sink = MySQLSink(table.server.url, table.name, **arguments)
        sink.open(SinkContext(self.name, "out", token, 0, 1, no_store, self.store, lineage))
        return sink


def staged(sink: MySQLSink, checkpoint: int, rows: pa.Table | list[dict[str, Any]]) -> bytes:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    transaction = sink.begin_transaction()
    for batch in table.to_batches():
        sink.write(transaction, batch)
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def written(sink: MySQLSink, checkpoint: int, rows: Any) -> None:
    sink.commit_globally(checkpoint, [staged(sink, checkpoint, rows)])


# ---------------------------------------------------------------- exactly once


def test_a_job_outlives_kills_of_the_server() -> None:
    """Two kills while rows arrive."""
    rows = 3_000
    with mariadb_server() as server:
        table = Table(server, "value bigint primary key, `key` bigint")
        table.close()
        flow = Dataflow(f"kills-{uuid.uuid4().hex[:8]}")
        flow.rate("numbers", 1_000, rows, keys=7).select(["value", "key"]).sink(
            "out", MySQLSink(server.url, table.name)
        )
        results: list[Any] = []
        job = threading.Thread(target=lambda: results.append(flow.run_local(parallelism=2, checkpoint_interval=0.1)))
        job.start()
        for wanted in (200, 1_000):
            until(lambda wanted=wanted: count(server, table) > wanted, "rows came")
            server.kill()
            server.start()
        job.join()
        assert count(server, table) == rows, "a second insert of a row would have met the primary key"


def count(server: MariaServer, table: Table) -> int:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"select count(*) from {table.name}")
        return int(cursor.fetchone()[0])


# ---------------------------------------------------------------- upserts


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("n bigint, t text", "key column 'n' .* may be null"),
        ("n bigint primary key, t varchar(10) unique", "has another unique index, of t"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused(make_table: Any, columns: str, message: str) -> None:
    table, job = make_table(columns), Job()
    with pytest.raises(InvalidJob, match=message):
        staged(job.open(table, mode="upsert", key=["n"]), 1, [{"n": 1, "t": "x"}])


def test_a_counted_column_beside_the_key_is_no_second_key(make_table: Any) -> None:
    table, job = make_table("id int auto_increment primary key, n bigint not null unique"), Job()
    sink = job.open(table, mode="upsert", key=["n"])
    for checkpoint in (1, 2):
        written(sink, checkpoint, [{"n": 7}])
    assert len(table.read()) == 1


# ---------------------------------------------------------------- types

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901)
COLUMNS = """
    tiny tinyint unsigned, small smallint, whole bigint, natural_ bigint unsigned, big decimal(20, 0), flag tinyint(1),
    single_ float, double_ double, price decimal(10, 2), word varchar(20), long_ longtext, raw varbinary(10), fixed
    binary(4), at_ datetime(6), zoned timestamp(6) null, day_ date, clock time(3), doc json, list_ json, nothing int
"""
VALUES = pa.table(
    {
        "tiny": pa.array([255, None], pa.uint8()),
        "small": pa.array([-32_768, None], pa.int16()),
        "whole": pa.array([-(2**63), None], pa.int64()),
        "natural_": pa.array([2**64 - 1, None], pa.uint64()),
        "big": pa.array([-(2**63), None], pa.int64()),
        "flag": pa.array([True, None], pa.bool_()),
        "single_": pa.array([0.1, None], pa.float32()),
        "double_": pa.array([0.1, None], pa.float64()),
        "price": pa.array([decimal.Decimal("12345678.90"), None], pa.decimal128(10, 2)),
        "word": pa.array(["Grüße 😀 %s ' \\", None]).dictionary_encode(),
        "long_": pa.array(["x" * 100_000, None], pa.large_string()),
        "raw": pa.array([b"\x00\xff'\\%", None], pa.binary()),
        "fixed": pa.array([b"\x00\x01\x02\x03", None], pa.binary(4)),
        "at_": pa.array([AT, None], pa.timestamp("us")),
        "zoned": pa.array([AT, None], pa.timestamp("us", "Europe/Berlin")),
        "day_": pa.array([AT.date(), None], pa.date32()),
        "clock": pa.array([datetime.time(23, 59, 58, 123_000), None], pa.time32("ms")),
        "doc": pa.array([{"a": 1, "b": [True, None]}, None]),
        "list_": pa.array(["[1, 2]", None]),
        "nothing": pa.nulls(2),
    }
)


def test_values_of_every_kind_come_back_as_they_went(make_table: Any) -> None:
    table, job = make_table(COLUMNS, "default charset = utf8mb4"), Job()
    table.execute("set time_zone = '+00:00'")
    written(job.open(table), 1, VALUES)
    row, nulls = table.read()
    assert all(value is None for value in nulls.values())
    assert row.pop("doc") == '{"a":1,"b":[true,null]}'
    assert abs(row.pop("single_") - 0.1) < 1e-7
    assert row.pop("clock") == datetime.timedelta(hours=23, minutes=59, seconds=58, milliseconds=123)
    assert row.pop("flag") == 1
    expected = VALUES.slice(0, 1).to_pylist()[0]
    expected["zoned"] = expected["zoned"].astimezone(datetime.timezone.utc).replace(tzinfo=None)
    assert row == {name: value for name, value in expected.items() if name in row}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "x int",
            pa.array([1], pa.int64()),
            r"'x' is int64, in table .* it is int\(11\), which cannot hold every such",
        ),
        ("x bigint unsigned", pa.array([1], pa.int64()), "cannot hold every such value"),
        ("x float", pa.array([0.1], pa.float64()), "cannot hold every such value"),
        ("x decimal(9, 2)", pa.array([None], pa.decimal128(10, 2)), "cannot hold every such value"),
        ("x datetime", pa.array([AT], pa.timestamp("us")), "cannot hold every such value; times with a zone"),
        ("x datetime(6)", pa.array([AT], pa.timestamp("us", "UTC")), "times with a zone go into timestamp"),
        ("x text character set latin1", pa.array(["x"]), "character set latin1, which lacks characters"),
        ("y int", pa.array([1]), r"the rows have a column 'x', table .* has not; it has y"),
        ("x bigint, y int not null", pa.array([1]), "'y' of table .* is NOT NULL without a default"),
        ("x bigint as (1) stored", pa.array([1]), "is generated by the server"),
        ("x bigint not null", pa.array([1, None]), "'x' of a row is null, .*bigint.* NOT NULL"),
        ("x varchar(3)", pa.array(["abc", "äöüß"]), r"'x' of a row is too long, .* varchar\(3\)"),
        ("x tinytext", pa.array(["ä" * 200]), "is too long"),
        ("x double", pa.array([float("nan")]), "is not a number that MySQL has"),
        ("x json", pa.array(["{"]), "'x' of a row is not JSON"),
        (
            "x timestamp(6)",
            pa.array([datetime.datetime(2040, 1, 1)], pa.timestamp("s", "UTC")),
            "is before .* or after",
        ),
        ("x longblob", pa.array([b"x" * (9 << 20)]), "may not fit into one statement: raise max_allowed_packet"),
    ],
)
def test_what_the_table_cannot_hold_is_refused_before_the_decision(
    make_table: Any, column: str, values: pa.Array, message: str
) -> None:
    table, job = make_table(column, "default charset = utf8mb4"), Job()
    with pytest.raises(InvalidJob, match=message):
        staged(job.open(table), 1, pa.table({"x": values}))


# ---------------------------------------------------------------- the server


@pytest.mark.parametrize(
    ("url", "table", "message"),
    [
        ("mysql://barrier@127.0.0.1:{port}/barrier", "absent", "there is no table 'absent' in database 'barrier'"),
        ("mysql://barrier@127.0.0.1:{port}/absent", "t", "Unknown database 'absent'.*Correct host, database"),
        ("mysql://no:secret@127.0.0.1:{port}/barrier", "t", "Access denied for user 'no'"),
    ],
)
def test_a_target_that_is_not_there_is_named(mariadb: MariaServer, url: str, table: str, message: str) -> None:
    sink = MySQLSink(url.format(port=mariadb.port), table)
    context = SinkContext("job", "out", 1, 0, 1, lambda url: MemoryStore(), MemoryStore(), "line")
    with pytest.raises(InvalidJob, match=message) as refused:
        sink.open(context)
    assert "secret" not in str(refused.value)


def test_a_table_without_transactions_is_refused(make_table: Any) -> None:
    table = make_table("n bigint", "engine = MyISAM")
    with pytest.raises(InvalidJob, match="of the engine MyISAM, which has no transactions"):
        Job().open(table)


def test_a_server_that_is_down_is_waited_for(mariadb: MariaServer) -> None:
    sink = MySQLSink("mysql://barrier@127.0.0.1:1/barrier", "t")
    context = SinkContext("job", "out", 1, 0, 1, lambda url: MemoryStore(), MemoryStore(), "line")
    with pytest.raises(Unavailable, match="is tried again; start the server if it is down"):
        sink.open(context)


def test_the_password_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with mariadb_server(password="s3cret") as server:
        table = Table(server)
        sink = Job().open(table)
        assert "s3cret" not in repr(sink) + str(sink.settings())
        sink.close()
        monkeypatch.setenv("MYSQL_PWD", "s3cret")
        again = MySQLSink(**sink.settings())
        again.open(SinkContext("job", "out", 1, 0, 1, lambda url: MemoryStore(), MemoryStore(), "line"))
        again.close()
        table.close()
