"""The ClickHouse sink against a real server: certified, fenced by versions, the server killed; refused input."""

import datetime
import decimal
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_driver import Client

from barrier_runtime import ClickHouseSink, Dataflow
from barrier_runtime.connectors.clickhouse.sink import column_for, takes
from barrier_runtime.state.errors import Fenced, InvalidJob, Unavailable
from barrier_runtime.testing import certify
from examples.servers import ClickHouseServer
from tests.ends.kafka_target import Job, written
from tests.ends.late_requests import LateRequests
from tests.ends.random_keys import ROWS, run_with_a_failure
from tests.ends.round_trips import counting_proxy


@pytest.fixture
def database(clickhouse: ClickHouseServer) -> Iterator[Client]:
    with Client("127.0.0.1", port=clickhouse.port) as database:
        yield database


@pytest.fixture
def table(database: Client) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    database.execute(
        f"CREATE TABLE {name} (id Int64, key Nullable(String), value Nullable(Int64), _version UInt64) "
        "ENGINE = ReplacingMergeTree(_version) ORDER BY id"
    )
    yield name
    database.execute(f"DROP TABLE IF EXISTS {name}")


def final(database: Client, table: str, columns: str = "id, value") -> list[tuple[Any, ...]]:
    return sorted(database.execute(f"SELECT {columns} FROM {table} FINAL"))


def sink_of(clickhouse: ClickHouseServer, table: str, port: int = 0, *, stored: bool = False) -> ClickHouseSink:
    url = f"clickhouse://127.0.0.1:{port or clickhouse.port}/default"
    return ClickHouseSink(url, table, key="id", deterministic=not stored, after_decision=stored)


@pytest.mark.parametrize("stored", [False, True], ids=["deterministic", "after_decision"])
def test_the_sink_holds_what_it_declares_wherever_it_crashes(
    clickhouse: ClickHouseServer, database: Client, table: str, stored: bool
) -> None:
    """See the scenarios of `certify`; no row is lost or doubled in the end, and no stored row is seen early."""
    certify(
        lambda: sink_of(clickhouse, table, stored=stored),
        lambda: [
            dict(zip(("id", "key", "value"), row, strict=True)) for row in final(database, table, "id, key, value")
        ],
        scenarios=8,
        seeds=range(2),
        shows_early=not stored,
        kill=lambda sink: sink.close(),
        reset=lambda: database.execute(f"TRUNCATE TABLE {table}"),
    )


def test_random_keys_leave_no_stale_row_after_the_decision(
    clickhouse: ClickHouseServer, database: Client, table: str
) -> None:
    drawn = run_with_a_failure(sink_of(clickhouse, table, stored=True), lambda: bool(final_of(clickhouse, table)))
    assert sorted(value for _, value in final(database, table)) == list(range(ROWS))
    assert drawn > ROWS, "the failure repeats rows"


def final_of(clickhouse: ClickHouseServer, table: str) -> list[tuple[Any, ...]]:
    """Reads with a separate client: a client serves one thread."""
    with Client("127.0.0.1", port=clickhouse.port) as database:
        return final(database, table)


def test_what_a_zombie_writes_never_covers_newer_rows(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job
) -> None:
    """A zombie may write: rows of a zombie have lower versions, in any order of arrival. A late zombie is fenced."""
    zombie, successor = job.open(sink_of(clickhouse, table)), job.open(sink_of(clickhouse, table), token=2)
    successor.pre_commit(written(successor, [{"id": 1, "value": 7}]), 2)
    zombie.pre_commit(written(zombie, [{"id": 1, "value": 5}]), 1)
    assert final(database, table) == [(1, 7)]
    with pytest.raises(Fenced, match="a newer generation writes"):
        job.open(sink_of(clickhouse, table), token=1)
    for sink in (zombie, successor):
        sink.close()


def test_subtasks_of_one_generation_have_one_fence(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job
) -> None:
    """A key that moved to another subtask with a rescaling is written by a newer generation, so by a higher version."""
    first = [job.open(sink_of(clickhouse, table), subtask=subtask) for subtask in range(3)]
    for number in range(50):
        first[2].pre_commit(written(first[2], [{"id": 1, "value": number}]), number + 1)
    moved = job.open(sink_of(clickhouse, table), token=2)
    moved.pre_commit(written(moved, [{"id": 1, "value": -1}]), 51)
    assert final(database, table) == [(1, -1)]
    ((fences,),) = database.execute(
        "SELECT count() FROM system.tables WHERE startsWith(name, 'barrier_runtime_fence_') AND name LIKE %(of)s",
        {"of": f"{fence_prefix(moved)}%"},
    )
    assert fences == 1, "those of older generations are dropped"
    for sink in (*first, moved):
        sink.close()


def fence_prefix(sink: ClickHouseSink) -> str:
    from barrier_runtime.connectors.clickhouse.sink import Fences

    return Fences(sink._session, sink._context.job, sink._context.sink, "")._prefix


def test_of_one_batch_the_last_row_of_a_key_counts(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job
) -> None:
    sink = job.open(sink_of(clickhouse, table))
    transaction = sink.begin_transaction()
    rows = [*({"id": 1, "value": n} for n in range(1_000)), {"id": 2, "value": None}]
    sink.write(transaction, pa.RecordBatch.from_pylist(rows))
    sink.pre_commit(transaction, 1)
    assert final(database, table) == [(1, 999), (2, None)]
    sink.close()


def test_a_request_that_arrives_after_newer_rows_changes_nothing(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job
) -> None:
    with LateRequests("127.0.0.1", clickhouse.port) as network:
        sink = job.open(sink_of(clickhouse, table, network.port))
        transaction = written(sink, [{"id": 1, "value": 5}])
        network.keep_next(f"INSERT INTO `{table}`".encode())
        with pytest.raises(Unavailable, match="is it up"):
            sink.pre_commit(transaction, 1)
        sink.pre_commit(transaction, 1)
        sink.pre_commit(written(sink, [{"id": 1, "value": 7}]), 2)
        assert final(database, table) == [(1, 7)]
        sink.close()


def test_a_job_goes_on_when_the_server_was_killed(
    clickhouse: ClickHouseServer, database: Client, table: str, tmp_path: Any
) -> None:
    flow = Dataflow("survives")
    rows = [{"id": n, "value": 2 * n} for n in range(3_000)]
    killed = iter([True])

    def kill_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 1_500 and next(killed, False):
            clickhouse.kill()
            clickhouse.start()
        return row

    schema = {"id": int, "value": int}
    stream = flow.from_iterator("rows", lambda part, of: iter(rows), schema=schema, splits=1).map(kill_once)
    stream.sink("out", sink_of(clickhouse, table))
    flow.run_local(parallelism=2, checkpoint_interval=0.05, checkpoints=str(tmp_path), restart_attempts=20)
    database.disconnect()
    assert final(database, table) == [(n, 2 * n) for n in range(3_000)]


TYPES = {
    "i8": (pa.int8(), -128),
    "u64": (pa.uint64(), (1 << 64) - 1),
    "f": (pa.float64(), 0.1),
    "s": (pa.string(), "ü"),
    "b": (pa.binary(), b"\x00\xff"),
    "flag": (pa.bool_(), True),
    "day": (pa.date32(), datetime.date(2026, 11, 24)),
    "at": (pa.timestamp("s", "UTC"), datetime.datetime(2026, 11, 24, 10, 0, 1, tzinfo=datetime.timezone.utc)),
    "local": (pa.timestamp("s"), datetime.datetime(2026, 7, 1, 12)),
    "money": (pa.decimal128(18, 4), decimal.Decimal("-12345.6789")),
    "tags": (pa.list_(pa.string()), ["a", "b"]),
}


def test_every_type_comes_back_as_it_was(clickhouse: ClickHouseServer, database: Client, job: Job) -> None:
    table = f"t_{uuid.uuid4().hex[:8]}"
    columns = ", ".join(f"{name} {column_for(kind)}" for name, (kind, _) in TYPES.items())
    database.execute(
        f"CREATE TABLE {table} (id Int64, {columns}, _version UInt64) ENGINE = ReplacingMergeTree(_version) ORDER BY id"
    )
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
    row = {"id": 1, **{name: value for name, (_, value) in TYPES.items()}}
    sink = job.open(sink_of(clickhouse, table))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pylist([row], schema=schema))
    sink.pre_commit(transaction, 1)
    names = ", ".join(
        f"hex({name})" if name == "b" else f"toUnixTimestamp({name})" if name in ("at", "local") else name
        for name in TYPES
    )
    ((*found,),) = database.execute(f"SELECT {names} FROM {table}")
    expected = {name: value for name, (_, value) in TYPES.items()}
    expected |= {"b": "00FF", "flag": 1, "at": 1_795_514_401, "local": 1_782_907_200}
    assert found == list(expected.values())
    sink.close()
    database.execute(f"DROP TABLE {table}")


@pytest.mark.parametrize(
    ("column", "kind", "fits"),
    [
        ("Int32", pa.int64(), False),
        ("Int64", pa.uint32(), True),
        ("UInt64", pa.int8(), False),
        ("Float32", pa.float64(), False),
        ("LowCardinality(Nullable(String))", pa.string(), True),
        ("DateTime", pa.timestamp("ms"), False),
        ("DateTime64(3, 'UTC')", pa.timestamp("ms", "UTC"), True),
        ("DateTime64(3)", pa.timestamp("us"), False),
        ("DateTime64(9)", pa.timestamp("ns"), False),
        ("Decimal(10, 2)", pa.decimal128(12, 2), False),
        ("Decimal(10, 3)", pa.decimal128(9, 2), False),
        ("Array(Nullable(Int64))", pa.list_(pa.int32()), True),
        ("String", pa.struct([("a", pa.int64())]), False),
    ],
)
def test_a_column_takes_a_type_when_it_holds_every_value(column: str, kind: pa.DataType, fits: bool) -> None:
    assert takes(column, kind) is fits


@pytest.mark.parametrize(
    ("statement", "row", "told"),
    [
        ("", {"id": 1}, r"has no table '\w+': CREATE TABLE \w+ \(`id` Int64, _version UInt64\) ENGINE"),
        ("(id Int64, _version UInt64) ENGINE = MergeTree ORDER BY id", {"id": 1}, "rows of one key replace each other"),
        (
            "(id Int64, k Int64, _version UInt64) ENGINE = ReplacingMergeTree(_version) ORDER BY (id, k)",
            {"id": 1},
            r"ORDER BY \(id\): make it so",
        ),
        (
            "(id Int64, _version UInt64) ENGINE = ReplacingMergeTree ORDER BY id",
            {"id": 1},
            "or correct key= or version=",
        ),
        ("OK", {"id": 1, "more": 2}, "has no column 'more': it has id, key, value"),
        ("OK", {"id": "one"}, "column 'id' is string, and table"),
        ("OK", {"value": 1}, "there is no column 'id', which key= names"),
        ("OK", {"id": 1, "_version": 2}, "is for versions"),
        ("OK", {"id": None, "value": 1}, "column 'id' has nulls"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job, statement: str, row: dict[str, Any], told: str
) -> None:
    if statement != "OK":
        database.execute(f"DROP TABLE {table}")
    if statement not in ("", "OK"):
        database.execute(f"CREATE TABLE {table} {statement}")
    schema = None if row.get("id", 1) is not None else pa.schema([("id", pa.int64()), ("value", pa.int64())])

    def write() -> None:
        sink = job.open(sink_of(clickhouse, table))
        transaction = sink.begin_transaction()
        sink.write(transaction, pa.RecordBatch.from_pylist([row], schema=schema))
        sink.pre_commit(transaction, 1)

    with pytest.raises(InvalidJob, match=told):
        write()


@pytest.mark.parametrize(
    "url", ["http://host", "clickhouse://", "clickhouse://me:secret@host/db", "clickhouse://host/db?secure=1"]
)
def test_a_url_that_is_none_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(InvalidJob, match="the URL is clickhouse://host:port/database") as refused:
        ClickHouseSink(url, "t", key="id")
    assert "secret" not in str(refused.value)


def test_wrong_credentials_are_said(
    clickhouse: ClickHouseServer, table: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "wrong")
    with pytest.raises(InvalidJob, match="set CLICKHOUSE_USER and CLICKHOUSE_PASSWORD") as refused:
        job.open(sink_of(clickhouse, table))
    assert "wrong" not in str(refused.value).replace("Wrong password", "")


def test_only_a_deterministic_sink_is_called_exactly_once() -> None:
    assert ClickHouseSink("clickhouse://host", "t", key="id").guarantee == "at_least_once"
    assert ClickHouseSink("clickhouse://host", "t", key="id", deterministic=True).guarantee == "exactly_once"


def test_rows_are_inserted_with_two_waits_one_of_which_is_the_librarys(
    clickhouse: ClickHouseServer, database: Client, table: str, job: Job
) -> None:
    """The waits are: types of the columns, rows."""
    with counting_proxy(clickhouse.port) as proxy:
        sink = job.open(sink_of(clickhouse, table, proxy.port))
        sink.upsert(pa.record_batch({"id": [1], "key": ["a"], "value": [1]}))
        again = pa.record_batch({"id": [2], "key": ["b"], "value": [2]})
        # A slow server reports progress within an answer, and the proxy may count the report as another wait.
        assert min(proxy.count(lambda: sink.upsert(again)) for _ in range(5)) == 2
        sink.close()
    assert final(database, table) == [(1, 1), (2, 2)]
