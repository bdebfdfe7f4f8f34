"""Every type of column with special values: a database returns the written values, or the sink refuses them."""

import contextlib
import datetime
import json
import time
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

import clickhouse_driver
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import redis as client

from barrier_runtime import ClickHouseSink, InvalidJob, MySQLSink, RedisUpsertSink
from barrier_runtime.connectors.clickhouse.sink import column_for, takes, unkept
from barrier_runtime.connectors.mysql.columns import MYSQL_COLUMNS
from barrier_runtime.connectors.postgres.changes.source import PostgresChanges
from barrier_runtime.connectors.postgres.columns import POSTGRES_COLUMNS, encode_csv
from barrier_runtime.connectors.postgres.sink import PostgresSink
from barrier_runtime.connectors.redis.sink import json_of
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.connectors.sink_bases.sql.columns import checked, fitted
from barrier_runtime.state.store.memory import MemoryStore
from examples.servers import ClickHouseServer, MariaServer, PostgresServer, RedisServer
from tests.barrier_runtime.connectors.round_trips import KINDS, Kind, array_of, assert_same, comparable
from tests.ends.changes_world import ChangedTables, reading
from tests.waiting import until

_is = pa.types


def context() -> SinkContext:
    return SinkContext(f"job-{uuid.uuid4().hex[:8]}", "out", 1, 0, 1, lambda url: MemoryStore(), MemoryStore(), "line")


def kept_values(kind: Kind, keeps: Callable[[pa.Array], None]) -> pa.Array:
    """The special values that the sink accepts. `keeps` raises for refused values."""
    kept = []
    for value in [None, *kind.values]:
        column = array_of([value], kind.type)
        with contextlib.suppress(InvalidJob, pa.ArrowInvalid):
            keeps(column)
            kept.append(value)
    return array_of(kept, kind.type)


def table_of(columns: Mapping[str, pa.Array]) -> pa.Table:
    """A table of columns of equal length, padded by nulls, with a row number."""
    rows = max(map(len, columns.values()))
    full = [pa.concat_arrays([each, pa.nulls(rows - len(each), each.type)]) for each in columns.values()]
    return pa.Table.from_arrays([pa.array(range(rows), pa.int64()), *full], names=["id", *columns])


def in_microseconds(column: pa.Array) -> pa.Array:
    """The column without the digits of nanoseconds, which SQL databases do not have: times rounded down."""
    if getattr(column.type, "unit", "") != "ns":
        return column
    kind = column.type
    if _is.is_timestamp(kind):
        numbers = column.cast(pa.int64()).to_pylist()
        whole = pa.array([None if each is None else each // 1_000 for each in numbers], pa.int64())
        return whole.cast(pa.timestamp("us", kind.tz))
    return column.cast(pa.time64("us") if _is.is_time(kind) else pa.duration("us"), safe=False)


# ---------------------------------------------------------------- PostgreSQL


def postgres_type(kind: pa.DataType) -> str | None:
    if _is.is_dictionary(kind):
        return postgres_type(kind.value_type)
    if _is.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})" if kind.scale >= 0 and kind.precision <= 38 else "numeric"
    if _is.is_list(kind) or _is.is_large_list(kind):
        element = None if _is.is_nested(kind.value_type) else postgres_type(kind.value_type)
        return f"{element}[]" if element else "json"
    if _is.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    for fits, target in ((_is.is_nested, "json"), (_is.is_time, "time"), (_is.is_duration, "interval")):
        if fits(kind):
            return target
    if _is.is_fixed_size_binary(kind):
        return "bytea"
    return {
        "bool": "boolean",
        "int8": "smallint",
        "int16": "smallint",
        "int32": "integer",
        "int64": "bigint",
        "uint8": "smallint",
        "uint16": "integer",
        "uint32": "bigint",
        "uint64": "numeric",
        "halffloat": "real",
        "float": "real",
        "double": "double precision",
        "string": "text",
        "large_string": "text",
        "string_view": "text",
        "binary": "bytea",
        "large_binary": "bytea",
        "date32[day]": "date",
        "date64[ms]": "date",
        "null": "text",
    }.get(str(kind))


def changes_of(source: PostgresChanges, count: int) -> pa.StructArray:
    """The column `after` of so many rows."""
    parts: list[pa.Array] = []
    with reading(source) as reader:

        def enough() -> bool:
            polled = reader.poll(1_000, time.time_ns())
            if polled is not None:
                parts.append(polled.rows.column("after"))
            return sum(map(len, parts)) >= count

        until(enough, f"{count} rows had come")
    return pa.concat_arrays(parts)


# Source: our own trial
def test_postgresql_gives_back_by_snapshot_and_log_what_the_sink_wrote(
    postgres: PostgresServer, tables: ChangedTables
) -> None:
    kinds = {
        f"c{n}": (kind, target) for n, kind in enumerate(KINDS) if (target := postgres_type(kind.type)) is not None
    }
    table = tables.table(", ".join(["id bigint primary key", *(f"{name} {of}" for name, (_, of) in kinds.items())]))
    log = tables.source(table)
    sink = PostgresSink(postgres.url, table)
    sink.open(context())
    written: dict[str, pa.Array] = {}
    for name, (kind, _) in kinds.items():
        schema = pa.schema([(name, kind.type)])
        try:
            there = [each for each in sink._target.columns if each.name == name]
            fits = fitted(schema, there, POSTGRES_COLUMNS, table, "here", ())
        except InvalidJob:
            continue
        written[name] = kept_values(kind, partial(encoded, schema, fits))
    rows = table_of(written)
    transaction = sink.begin_transaction()
    for batch in rows.to_batches():
        sink.write(transaction, batch)
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    sink.commit_globally(1, [committable])
    sink.close()
    for name, column in written.items():
        if kinds[name][1] in ("interval", "bigint[]", "text[]", "double precision[]"):
            shown = f"(extract(epoch from {name}) * 1000000)::bigint" if kinds[name][1] == "interval" else name
            found = [row[0] for row in tables.connection.execute(f"select {shown} from {table} order by id")]
            wanted = (
                column.cast(pa.duration("us"), safe=False).cast(pa.int64()) if kinds[name][1] == "interval" else column
            )
            assert repr(found[: len(column)]) == repr(wanted.to_pylist()), f"{kinds[name][1]} of {column.type}"
    for source in (tables.source(table), log):
        read = changes_of(source, rows.num_rows)
        order = pc.sort_indices(read.field("id"))
        for name in written:
            same_in_postgres(read.field(name).take(order), rows.column(name).combine_chunks(), kinds[name][1])


def encoded(schema: pa.Schema, fits: Any, column: pa.Array) -> None:
    encode_csv(checked(pa.record_batch([column], schema), fits, "t", "here"))


def same_in_postgres(read: pa.Array, wrote: pa.Array, target: str) -> None:
    if _is.is_dictionary(wrote.type):
        wrote = wrote.dictionary_decode()
    if target == "json":
        assert [None if each is None else json.loads(each) for each in read.to_pylist()] == as_json(wrote)
    elif target == "numeric" and not _is.is_floating(wrote.type):
        assert [None if each is None else Decimal(each) for each in read.to_pylist()] == wrote.to_pylist()
    elif not target.endswith("[]") and target != "interval":
        wrote = in_microseconds(wrote)
        if _is.is_floating(wrote.type) or _is.is_temporal(wrote.type) or _is.is_integer(wrote.type):
            wrote = wrote.cast(read.type)
        assert comparable(read) == comparable(wrote), f"{target} of {wrote.type}"
        if not _is.is_string(read.type):
            assert_same(read, wrote.cast(read.type))


def as_json(wrote: pa.Array) -> list[Any]:
    return [None if each is None else msgspec.json.decode(json_of(each)) for each in json_values(wrote)]


# ---------------------------------------------------------------- MySQL


def mysql_type(kind: pa.DataType) -> str | None:
    if _is.is_dictionary(kind):
        return mysql_type(kind.value_type)
    if _is.is_nested(kind):
        return "longtext"
    if _is.is_decimal(kind):
        return f"decimal(65, {min(max(kind.scale, 0), 38)})" if kind.precision <= 38 else None
    if _is.is_timestamp(kind):
        return "datetime(6)" if kind.tz is None else "timestamp(6) null"
    if _is.is_time(kind):
        return "time(6)"
    if _is.is_fixed_size_binary(kind):
        return f"binary({kind.byte_width})"
    return {
        "bool": "tinyint(1)",
        "int8": "tinyint",
        "int16": "smallint",
        "int32": "int",
        "int64": "bigint",
        "uint8": "tinyint unsigned",
        "uint16": "smallint unsigned",
        "uint32": "int unsigned",
        "uint64": "bigint unsigned",
        "halffloat": "float",
        "float": "float",
        "double": "double",
        "string": "longtext",
        "large_string": "varchar(400)",
        "string_view": "char(200)",
        "binary": "blob",
        "large_binary": "varbinary(300)",
        "date32[day]": "date",
        "date64[ms]": "date",
        "null": "int",
    }.get(str(kind))


# Source: our own trial
def test_mysql_gives_back_what_the_sink_wrote(mariadb: MariaServer) -> None:
    kinds = {f"c{n}": (kind, of) for n, kind in enumerate(KINDS) if (of := mysql_type(kind.type)) is not None}
    table = f"rows_{uuid.uuid4().hex[:8]}"
    columns = ", ".join(["id bigint primary key", *(f"{name} {of}" for name, (_, of) in kinds.items())])
    with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"create table {table} ({columns}) default charset = utf8mb4")
        sink = MySQLSink(mariadb.url, table)
        sink.open(context())
        written: dict[str, pa.Array] = {}
        for name, (kind, _) in kinds.items():
            schema = pa.schema([(name, kind.type)])
            column = [each for each in sink._target.columns if each.name == name]
            try:
                fits = fitted(schema, column, MYSQL_COLUMNS, table, "here", ())
            except InvalidJob:
                continue
            written[name] = kept_values(kind, lambda each, s=schema, f=fits: checked_alone(s, f, each))  # type: ignore[misc]
        rows = table_of(written)
        transaction = sink.begin_transaction()
        for batch in rows.to_batches():
            sink.write(transaction, batch)
        committable = sink.pre_commit(transaction, 1)
        assert committable is not None
        sink.commit_globally(1, [committable])
        sink.close()
        cursor.execute("set time_zone = '+00:00'")
        for name, column in written.items():
            shown = f"cast({name} as double)" if kinds[name][1] == "float" else name
            cursor.execute(f"select {shown} from {table} order by id")
            found = [row[0] for row in cursor.fetchall()][: len(column)]
            same_in_mysql(found, column, kinds[name][1])


def checked_alone(schema: pa.Schema, fits: Any, column: pa.Array) -> None:
    checked(pa.record_batch([column], schema), fits, "t", "here")


def same_in_mysql(found: list[Any], wrote: pa.Array, target: str) -> None:
    if _is.is_dictionary(wrote.type):
        wrote = wrote.dictionary_decode()
    if _is.is_nested(wrote.type):
        assert [None if each is None else json.loads(each) for each in found] == as_json(wrote)
        return
    wrote = in_microseconds(wrote)
    if _is.is_timestamp(wrote.type):
        wrote = wrote.cast(pa.timestamp("us", wrote.type.tz)).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    if _is.is_date(wrote.type):
        wrote = wrote.cast(pa.date32())
    values = wrote.to_pylist()
    if _is.is_time(wrote.type):
        values = [None if each is None else timedelta_of(each) for each in values]
    if _is.is_floating(wrote.type):
        found, values = ([None if each is None else repr(float(each)) for each in of] for of in (found, values))
    assert found == values, f"{target} of {wrote.type}"


def timedelta_of(at: datetime.time) -> datetime.timedelta:
    return datetime.timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)


# ---------------------------------------------------------------- ClickHouse


def clickhouse_type(kind: pa.DataType) -> str:
    """A column that may be null, as far as ClickHouse has them."""
    found = column_for(kind)
    if found.startswith("Array("):
        return f"Array({clickhouse_type(kind.value_type)})"
    return f"Nullable({found})" if found else ""


# Source: our own trial
def test_clickhouse_gives_back_what_the_sink_wrote(clickhouse: ClickHouseServer) -> None:
    kinds = {f"c{n}": kind for n, kind in enumerate(KINDS) if is_known_to_the_server(column_for(kind.type))}
    table = f"t_{uuid.uuid4().hex[:8]}"
    columns = {name: clickhouse_type(kind.type) for name, kind in kinds.items()}
    made = ", ".join(f"{name} {of}" for name, of in columns.items())
    with clickhouse_driver.Client("127.0.0.1", port=clickhouse.port) as database:
        database.execute(
            f"CREATE TABLE {table} (id Int64, {made}, _version UInt64) "
            "ENGINE = ReplacingMergeTree(_version) ORDER BY id"
        )
        written = {}
        for name, kind in kinds.items():
            assert takes(columns[name], kind.type)
            written[name] = kept_values(kind, partial(keeps_in_clickhouse, columns[name]))
        rows = table_of(written)
        filled = [rows.column(0)]
        for name in written:
            column = rows.column(name).combine_chunks()
            empty = pa.array([[]], column.type)[0] if columns[name].startswith("Array") else None
            filled.append(column if empty is None else pc.if_else(column.is_valid(), column, empty))
        rows = pa.Table.from_arrays(filled, names=rows.schema.names)
        sink = ClickHouseSink(f"clickhouse://127.0.0.1:{clickhouse.port}/default", table, key="id")
        sink.open(context())
        transaction = sink.begin_transaction()
        for batch in rows.combine_chunks().to_batches():
            sink.write(transaction, batch)
        sink.pre_commit(transaction, 1)
        sink.close()
        for name, column in written.items():
            found = [
                row[0]
                for row in database.execute(
                    f"SELECT {shown_in_clickhouse(name, kinds[name].type)} FROM {table} ORDER BY id"
                )
            ]
            same_in_clickhouse(found[: len(column)], column)


def is_known_to_the_server(column: str) -> bool:
    """The server of the tests is of 2018."""
    return bool(column) and "DateTime64" not in column and "Decimal(76" not in column


def keeps_in_clickhouse(target: str, column: pa.Array) -> None:
    wrong = unkept(target, column, is_key=False)
    if wrong or (target.startswith("Array") and column.null_count):
        raise InvalidJob(wrong)


def shown_in_clickhouse(name: str, kind: pa.DataType) -> str:
    if _is.is_binary(kind) or _is.is_large_binary(kind):
        return f"hex({name})"
    if _is.is_timestamp(kind):
        return f"toUnixTimestamp({name})" if kind.unit == "s" else f"toUnixTimestamp64Micro(toDateTime64({name}, 6))"
    return name


def same_in_clickhouse(found: list[Any], wrote: pa.Array) -> None:
    kind = wrote.type
    if _is.is_timestamp(kind):
        values = wrote.cast(pa.timestamp("s" if kind.unit == "s" else "us", kind.tz)).cast(pa.int64()).to_pylist()
    elif _is.is_binary(kind) or _is.is_large_binary(kind):
        values = [None if each is None else each.hex().upper() for each in wrote.to_pylist()]
    elif _is.is_list(kind) and _is.is_timestamp(kind.value_type):
        values = [[None if each is None else each.replace(tzinfo=None) for each in row] for row in wrote.to_pylist()]
        found = [[None if each is None else each.replace(tzinfo=None) for each in row] for row in found]
    else:
        values = wrote.to_pylist()
        if _is.is_boolean(kind):
            values = [None if each is None else int(each) for each in values]
    if _is.is_decimal(kind):
        assert found == values, f"{kind}"
    else:  # NaN is unequal to all values
        assert repr(found) == repr(values), f"{kind}"


# ---------------------------------------------------------------- Redis


# Source: our own trial
def test_redis_has_every_value_of_a_hash_and_of_json(redis: RedisServer) -> None:
    prefix = uuid.uuid4().hex[:8]
    written = {f"c{n}": kind.special() for n, kind in enumerate(KINDS)}
    rows = table_of(written).combine_chunks()
    with client.Redis.from_url(redis.url) as database:
        for value in ("hash", "json"):
            sink = RedisUpsertSink(redis.url, key="id", value=value, prefix=f"{prefix}{value}:")
            sink.open(context())
            transaction = sink.begin_transaction()
            for batch in rows.append_column("always", pa.repeat(1, rows.num_rows)).to_batches():
                sink.write(transaction, batch)
            sink.pre_commit(transaction, 1)
            sink.close()
        for name, column in written.items():
            wanted = as_json(column)
            for number, each in enumerate(wanted):
                json_row = msgspec.json.decode(database.get(f"{prefix}json:{number}"))
                field = database.hget(f"{prefix}hash:{number}", name)
                if _is.is_map(column.type) and json_row[name] is not None:
                    json_row[name] = {str(key): item for key, item in json_row[name]}
                assert same_text(json_row[name], each), f"{column.type}: {json_row[name]!r} for {each!r}"
                assert (field is None) == (each is None)


def same_text(found: Any, wanted: Any) -> bool:
    """Times have several spellings: with and without zeros, and zones."""
    if isinstance(found, str) and isinstance(wanted, str) and found != wanted:
        return found.rstrip("Z0") == wanted.rstrip("Z0") or datetime.datetime.fromisoformat(
            found
        ) == datetime.datetime.fromisoformat(wanted)
    return bool(found == wanted)
