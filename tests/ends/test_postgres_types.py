"""Every kind of value passes through a real server unchanged, nulls and extremes included."""

import datetime
import json
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from examples.servers import PostgresServer
from tests.ends.postgres_tables import made_visible, new_job, new_table, opened

UTC = datetime.timezone.utc
AT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789_012)
ID = uuid.uuid4()
WAYS = ("insert", "upsert")

# PostgreSQL's type, Arrow's type, values, and the returned values where they differ
VALUES: list[tuple[str, pa.DataType, list[Any], list[Any] | None]] = [
    ("smallint", pa.int16(), [-(2**15), 2**15 - 1, None], None),
    ("integer", pa.int32(), [-(2**31), 2**31 - 1, None], None),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1, None], None),
    ("numeric", pa.uint64(), [0, 2**64 - 1, None], None),
    ("real", pa.float32(), [1.5, -0.0, math.inf, None], None),
    ("double precision", pa.float64(), [0.1, 5e-324, 1.7976931348623157e308, -math.inf, None], None),
    ("double precision", pa.float32(), [float(pa.scalar(0.1, pa.float32()).as_py())], None),
    (
        "numeric",
        pa.float64(),
        [0.1, -5e-324, 1.7976931348623157e308, math.inf, -math.inf, None],
        [Decimal(repr(each)) for each in (0.1, -5e-324, 1.7976931348623157e308, math.inf, -math.inf)] + [None],
    ),
    ("numeric", pa.float32(), [0.5, None], None),
    ("boolean", pa.bool_(), [True, False, None], None),
    ("text", pa.string(), ["", "NULL", "\\N", "\\.", 'a "b", \n\r\t\\', "ü€😀", "a" * 100_000, None], None),
    ("text", pa.dictionary(pa.int32(), pa.string()), ["x", None, "x"], None),
    ("varchar(3)", pa.large_string(), ["abc", None], None),
    ("uuid", pa.string(), [str(ID), None], [ID, None]),
    ("jsonb", pa.string(), ['{"a": [1, null]}', None], [{"a": [1, None]}, None]),
    ("jsonb", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ['"']}, None], None),
    ("json", pa.list_(pa.int64()), [[1, None], [], None], None),
    ("jsonb", pa.map_(pa.string(), pa.int32()), [[("k", 1)], None], [{"k": 1}, None]),
    ("bytea", pa.binary(), [b"", bytes(range(256)), None], None),
    ("numeric(20,3)", pa.decimal128(12, 3), [Decimal("-123456789.001"), Decimal("0.000"), None], None),
    ("numeric", pa.decimal256(60, 20), [Decimal(10) ** 39 + Decimal("1e-20"), None], None),
    ("timestamp", pa.timestamp("us"), [AT, datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), None], None),
    ("timestamptz", pa.timestamp("us", "Europe/Berlin"), [AT.replace(tzinfo=UTC), None], None),
    ("timestamptz", pa.timestamp("ms", "UTC"), [AT.replace(tzinfo=UTC, microsecond=789_000), None], None),
    ("date", pa.date32(), [AT.date(), datetime.date(1, 1, 1), None], None),
    ("time", pa.time64("us"), [AT.time(), None], None),
    ("interval", pa.duration("us"), [datetime.timedelta(hours=-3, microseconds=7), None], None),
    ("integer[]", pa.list_(pa.int32()), [[1, None, -2], [], None], None),
    ("text[]", pa.list_(pa.string()), [["", "NULL", None, '{a,"b"\\}'], None], None),
    ("timestamp[]", pa.list_(pa.timestamp("us")), [[AT, None], None], None),
]


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("set time zone 'UTC'")
        yield connection


@pytest.mark.parametrize("way", WAYS)
def test_every_type_comes_back_as_it_was(
    postgres: PostgresServer, connection: psycopg.Connection[Any], way: str
) -> None:
    columns = ", ".join(f'"c {number}" {kind}' for number, (kind, *_) in enumerate(VALUES))
    table = new_table(connection, f"id int primary key, {columns}")
    ways: dict[str, dict[str, Any]] = {
        "insert": {},
        "upsert": {"mode": "upsert", "key": ["id"]},
    }
    most = max(len(values) for _, _, values, _ in VALUES)
    arrays = [pa.array(range(most), pa.int32())]
    arrays += [pa.array(values + [None] * (most - len(values)), kind) for _, kind, values, _ in VALUES]
    rows = pa.RecordBatch.from_arrays(arrays, ["id", *(f"c {number}" for number in range(len(VALUES)))])
    sink = opened(postgres.url, table, new_job(), **ways[way])
    transaction = sink.begin_transaction()
    sink.write(transaction, rows)
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    made_visible(sink, 1, [committable])
    for number, (kind, _, values, expected) in enumerate(VALUES):
        found = connection.execute(f'select "c {number}" from {table} order by id').fetchall()
        assert [value for (value,) in found][: len(values)] == (expected or values), kind
    sink.close()


def test_a_nan_stays_a_nan(postgres: PostgresServer, connection: psycopg.Connection[Any]) -> None:
    table = new_table(connection, "x double precision")
    sink = opened(postgres.url, table, new_job())
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"x": pa.array([math.nan, None])}))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    made_visible(sink, 1, [committable])
    (nan,), (null,) = connection.execute(f"select x from {table}").fetchall()
    assert math.isnan(nan)
    assert null is None
    sink.close()


def test_the_servers_own_types_and_defaults_are_left_to_it(
    postgres: PostgresServer, connection: psycopg.Connection[Any]
) -> None:
    """Domains, enums, defaults, identities and generated columns; names that need quotes."""
    suffix = uuid.uuid4().hex[:8]
    connection.execute(f"create type mood_{suffix} as enum ('glad', 'sad')")
    connection.execute(f"create domain percent_{suffix} as smallint check (value between 0 and 100)")
    connection.execute(f'create schema "Some Schema {suffix}"')
    place = f'"Some Schema {suffix}"."The ""Table"""'
    connection.execute(
        f"create table {place} (id bigserial primary key, other int generated always as identity, "
        f'"Mood; --" mood_{suffix} not null, share percent_{suffix}, twice int generated always as (share * 2) stored, '
        "made text not null default 'here' check (made <> 'there'), check (share <> 13))"
    )
    sink = opened(postgres.url, 'The "Table"', new_job(), schema=f"Some Schema {suffix}")
    for checkpoint in (1, 2):
        transaction = sink.begin_transaction()
        rows = pa.record_batch({"share": pa.array([7, None], pa.int16()), "Mood; --": ["glad", "sad"]})
        sink.write(transaction, rows)
        committable = sink.pre_commit(transaction, checkpoint)
        assert committable is not None
        made_visible(sink, checkpoint, [committable])
    found = connection.execute(f"select * from {place} order by id").fetchall()
    assert json.dumps(found) == json.dumps(
        [
            (1, 1, "glad", 7, 14, "here"),
            (2, 2, "sad", None, None, "here"),
            (3, 3, "glad", 7, 14, "here"),
            (4, 4, "sad", None, None, "here"),
        ]
    )
    sink.close()
