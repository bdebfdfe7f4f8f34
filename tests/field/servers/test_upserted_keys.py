"""Keys of upserts that a database treats as equal although they differ: each stays a separate row, or is refused."""

import contextlib
import uuid
from typing import Any

import clickhouse_driver
import psycopg
import pyarrow as pa
import pytest

from barrier_runtime import ClickHouseSink, InvalidJob, MySQLSink
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.store.memory import MemoryStore
from examples.servers import ClickHouseServer, MariaServer, PostgresServer

SHOPS = ("a", "A", "á", "ß", "ss", "a\u200b", "é", "e\u0301")


def upserted(sink: Any, rows: pa.Table) -> None:
    with contextlib.closing(sink):
        job = f"job-{uuid.uuid4().hex[:8]}"
        sink.open(SinkContext(job, "out", 1, 0, 1, lambda url: MemoryStore(), MemoryStore(), "line"))
        transaction = sink.begin_transaction()
        for batch in rows.to_batches():
            sink.write(transaction, batch)
        committable = sink.pre_commit(transaction, 1)
        if committable is not None:
            sink.commit_globally(1, [committable])


def shops(*names: Any, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"shop": pa.array(names, kind), "n": pa.array(range(len(names)), pa.int64())})


# Source: our own trial
def test_mysql_keeps_apart_what_its_default_collations_do_not(mariadb: MariaServer) -> None:
    with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:

        def into(column: str, rows: pa.Table) -> int:
            table = f"shops_{uuid.uuid4().hex[:8]}"
            cursor.execute(f"create table {table} (shop {column} primary key, n bigint) default charset = utf8mb4")
            upserted(MySQLSink(mariadb.url, table, mode="upsert", key=["shop"]), rows)
            cursor.execute(f"select count(*) from {table}")
            return int(cursor.fetchone()[0])

        for collation in ("", "collate utf8mb4_unicode_ci", "collate utf8mb4_unicode_nopad_ci"):
            alter = (
                r"ALTER TABLE shops_\w+ MODIFY shop varchar\(20\) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT"
            )
            with pytest.raises(InvalidJob, match=rf"key column 'shop' .*{alter}"):
                into(f"varchar(20) {collation}", shops(*SHOPS))
        assert into("varchar(20) collate utf8mb4_nopad_bin", shops(*SHOPS, "a ")) == len(SHOPS) + 1
        assert into("varchar(20) collate utf8mb4_bin", shops(*SHOPS)) == len(SHOPS)
        assert into("varbinary(20)", shops(b"a", b"A", b"a ", b"a\0", kind=pa.binary())) == 4
        assert into("datetime(6)", shops(1_000, 2_000, kind=pa.timestamp("ns"))) == 2
        assert into("bigint auto_increment", shops(0, 1)) == 2, "a zero is no wish for the next number"
        for column, rows, said in (
            ("varchar(20) collate utf8mb4_bin", shops("a", "a "), "'shop' of a row ends with a space"),
            ("char(20) collate utf8mb4_nopad_bin", shops("a", "a "), "ends with a space, which char removes"),
            ("double", shops(0.0, -0.0), "is -0.0, which MySQL stores as 0.0"),
            ("datetime(6)", shops(1_000, 1_001, kind=pa.timestamp("ns")), "'shop' .* digits below a microsecond"),
            ("datetime", shops(1, kind=pa.timestamp("ms")), "cannot hold every such value"),
        ):
            with pytest.raises(InvalidJob, match=said):
                into(column, rows)


# Source: our own trial
def test_postgresql_keeps_apart_what_collations_and_types_do_not(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "create collation if not exists loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
        )
        connection.execute("create domain loose_text as text collate loose")

        def into(column: str, rows: pa.Table) -> int:
            table = f"shops_{uuid.uuid4().hex[:8]}"
            connection.execute(f"create table {table} (shop {column} primary key, n bigint)")
            upserted(PostgresSink(postgres.url, table, mode="upsert", key=["shop"]), rows)
            found = connection.execute(f"select count(*) from {table}").fetchone()
            assert found is not None
            return int(found[0])

        for column in ("text collate loose", "varchar(20) collate loose", "loose_text"):
            with pytest.raises(InvalidJob, match=r'key column .shop. .*ALTER COLUMN shop TYPE .* COLLATE "C"'):
                into(column, shops(*SHOPS))
        assert into("text", shops(*SHOPS, "a ")) == len(SHOPS) + 1
        assert into("double precision", shops(0.0, float("nan"), float("inf"))) == 3
        one, other = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"
        for column, rows, said in (
            ("char(3)", shops("a", "a "), r"'shop' of a row has not exactly 3 characters, .*varchar\(3\)"),
            ("varchar(2)", shops("a ", "a   "), "'shop' of a row is longer than .* cuts spaces.*'a   '"),
            ("uuid", shops(one, other), f"'shop' of a row is another spelling of a uuid.*{other}"),
            ("inet", shops("10.0.0.1", "10.0.0.1/32"), "'shop' .* different texts may be one value: ALTER TABLE"),
            ("jsonb", shops("1", " 1"), "different texts may be one value"),
            ("name", shops("a" * 64, "a" * 65), "cannot hold every such value"),
            ("double precision", shops(0.0, -0.0), "'shop' of a row is -0.0, which is the key 0.0"),
            (
                "timestamp",
                shops(1_000, 1_001, kind=pa.timestamp("ns")),
                "'shop' .* digits below a microsecond",
            ),
            ("timestamp(0)", shops(1, kind=pa.timestamp("ms")), "cannot hold every such value"),
            ("interval second(0)", shops(1, kind=pa.duration("ms")), "cannot hold every such value"),
        ):
            with pytest.raises(InvalidJob, match=said):
                into(column, rows)
        connection.execute("drop domain loose_text cascade")


# Source: our own trial
def test_clickhouse_refuses_keys_and_values_that_it_would_wrap(clickhouse: ClickHouseServer) -> None:
    with clickhouse_driver.Client("127.0.0.1", port=clickhouse.port) as database:

        def into(column: str, rows: pa.Table) -> int:
            table = f"t_{uuid.uuid4().hex[:8]}"
            database.execute(
                f"CREATE TABLE {table} (shop {column}, n Int64, _version UInt64) "
                "ENGINE = ReplacingMergeTree(_version) ORDER BY shop"
            )
            url = f"clickhouse://127.0.0.1:{clickhouse.port}/default"
            upserted(ClickHouseSink(url, table, key="shop", deterministic=True), rows)
            return int(database.execute(f"SELECT count() FROM {table} FINAL")[0][0])

        assert into("String", shops(*SHOPS, "a ")) == len(SHOPS) + 1
        assert into("Float64", shops(0.0, float("nan"), float("inf"))) == 3
        for column, rows, said in (
            ("Float64", shops(0.0, -0.0), "column 'shop' .* a key is -0.0"),
            ("FixedString(3)", shops("a"), "column 'shop' is string"),
            ("Date", shops(-1, kind=pa.date32()), "column 'shop' .* is before 1970"),
            ("Date", shops(65_536, kind=pa.date32()), "after 2149"),
            ("DateTime", shops(1 << 32, kind=pa.timestamp("s")), "after 2106"),
            ("DateTime", shops(-1, kind=pa.timestamp("s", "UTC")), "is before 1970"),
            ("DateTime", shops(1, kind=pa.timestamp("ms")), "does not hold every value"),
        ):
            with pytest.raises(InvalidJob, match=said):
                into(column, rows)
