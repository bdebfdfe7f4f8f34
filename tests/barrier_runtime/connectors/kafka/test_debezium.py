"""Debezium's change events as rows: with and without Connect's schema, from JSON and from a deserialiser."""

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.source.debezium import Absent, Debezium
from barrier_runtime.connectors.kafka.source.decoders import format_of, make_decoder
from barrier_runtime.connectors.source_bases.payloads import decoded
from barrier_runtime.state.errors import InvalidJob

WHERE = "source 'changes'"
UTC = datetime.timezone.utc
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("blob", pa.binary()),
    ]
)
PRICE = base64.b64encode((12345).to_bytes(3, "big", signed=True)).decode()
SCHEMA = {
    "type": "struct",
    "fields": [
        {
            "field": part,
            "type": "struct",
            "fields": [
                {"field": "id", "type": "int64"},
                {
                    "field": "price",
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "2"},
                },
                {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
                {"field": "at", "type": "int64", "name": "io.debezium.time.Timestamp"},
                {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
            ],
        }
        for part in ("before", "after")
    ],
}
BOUGHT = {"id": 1, "name": "tea", "price": PRICE, "day": 19_723, "at": 1_704_067_200_123, "blob": "AP8="}
ROW = {
    "id": 1,
    "name": "tea",
    "price": Decimal("123.45"),
    "day": datetime.date(2024, 1, 1),
    "at": datetime.datetime(2024, 1, 1, 0, 0, 0, 123_000),
    "zoned": datetime.datetime(2024, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC),
    "blob": b"\x00\xff",
}


def event(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    source = {"ts_ms": 1_704_067_200_000, "lsn": 77, "txId": 5, "table": "items"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1_704_067_200_999, **more}


def rows_of(
    *events: Any, form: Debezium = "changes", schema: pa.Schema = COLUMNS, value: Any = "json", absent: Absent = "null"
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    decoder = make_decoder(format_of("value", value, schema, WHERE, form, absent), WHERE)
    payloads = [None if each is None else json.dumps(each).encode() for each in events]
    arrays, bad = decoded(decoder, payloads, [_Message()] * len(payloads))
    return pa.RecordBatch.from_arrays(arrays, schema=decoder.schema).to_pylist(), bad


class _Message:
    """Record metadata passed to a deserialiser."""

    def topic(self) -> str:
        return "items"

    def headers(self) -> None:
        return None


def test_an_event_with_connects_schema_has_exact_values() -> None:
    told = {"schema": SCHEMA, "payload": event("c", None, {**BOUGHT, "zoned": "2024-01-01T12:00:00.5Z"})}
    (row,), bad = rows_of(told)
    assert bad == {}
    assert row["after"] == ROW
    assert (row["op"], row["before"], row["lsn"], row["xid"], row["unchanged"]) == ("c", None, 77, 5, [])
    assert row["changed_at"] == datetime.datetime(2024, 1, 1, tzinfo=UTC)


def test_an_event_without_schema_is_read_by_the_types_of_the_columns() -> None:
    plain = {**BOUGHT, "price": "123.45", "at": 1_704_067_200_123_000, "zoned": "2024-01-01T12:00:00.5Z"}
    (row,), _ = rows_of(event("u", {"id": 1}, plain))
    assert row["after"] == ROW
    assert row["before"] == {**dict.fromkeys(COLUMNS.names), "id": 1}


def test_upserts_and_deletions() -> None:
    small = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows, bad = rows_of(
        event("r", None, {"id": 1, "name": "tea"}),
        event("u", None, {"id": 1, "name": "tee", "other": 5}),
        event("d", {"id": 1}, None),
        None,
        form="upsert",
        schema=small,
    )
    assert bad == {}
    assert [(row["id"], row["name"], row["deleted"]) for row in rows] == [
        (1, "tea", False),
        (1, "tee", False),
        (1, None, True),
        (None, None, None),
    ]


def test_large_values_that_are_not_in_the_event_are_named() -> None:
    large = event("u", None, {"id": 1, "name": "__debezium_unavailable_value"})
    small = pa.schema([("id", pa.int64()), ("name", pa.string())])
    (row,), _ = rows_of(large, schema=small)
    assert (row["after"], row["unchanged"]) == ({"id": 1, "name": None}, ["name"])
    _, bad = rows_of(large, form="upsert", schema=small)
    assert "REPLICA IDENTITY FULL" in bad[0]


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"id": 1}, "its op is None"),
        (event("m", None, None), "its op is 'm'"),
        (event("t", None, None), "no upsert can say op 't'"),
        (event("c", None, {"price": "abc="}), "decimal.handling.mode=string"),
        (event("c", None, {"id": "x"}), ""),
        (event("c", None, {"id": True}), "column 'id' is int64, but there is True"),
        ({"schema": SCHEMA, "payload": event("c", None, {"id": 1, "at": "yesterday"})}, ""),
    ],
)
def test_what_is_no_event_of_this_table_is_a_bad_record_and_not_a_wrong_row(told: Any, says: str) -> None:
    good = event("c", None, {"id": 7})
    rows, bad = rows_of(good, told, good, form="upsert")
    assert list(bad) == [1]
    assert says in bad[1]
    assert [row["id"] for row in rows] == [7, None, 7]


def test_a_deserialiser_gives_events_too() -> None:
    """Avro's deserialiser returns decimals unchanged."""

    def deserialise(payload: bytes, context: Any) -> Any:
        return event("c", None, {"id": 3, "price": Decimal("9.50"), "day": datetime.date(2024, 1, 1), "blob": b"x"})

    (row,), _ = rows_of({}, form="upsert", value=lambda: deserialise)
    assert (row["id"], row["price"], row["day"], row["blob"]) == (
        3,
        Decimal("9.50"),
        datetime.date(2024, 1, 1),
        b"x",
    )


def _as_json(*events: Any) -> tuple[Any, ...]:
    return events


def _in_connects_schema(*events: Any) -> tuple[Any, ...]:
    return tuple({"schema": SCHEMA, "payload": each} for each in events)


@pytest.mark.parametrize("wrapped", [_as_json, _in_connects_schema])
@pytest.mark.parametrize("form", ["changes", "upsert"])
def test_a_column_that_no_row_has_is_told_with_the_nearest_there_is(form: Debezium, wrapped: Any) -> None:
    """The row after the change decides: the row before may contain only the key."""
    asked = pa.schema([("id", pa.int64()), ("nmae", pa.string())])
    deleted, bought = event("d", {"id": 1}, None), event("u", {"id": 1}, {"id": 1, "name": "tea", "city": None})
    rows, bad = rows_of(*wrapped(deleted, bought), form=form, schema=asked, absent="fail")
    assert list(bad) == [1]
    assert "it has no column 'nmae' of schema= (did you mean 'name'?)" in bad[1]
    assert "absent='null'" in bad[1]
    assert "It has id, name, city" in bad[1]
    assert rows[0]["changed_at"] is not None


def test_a_column_that_a_deserialisers_event_does_not_have_is_told_too() -> None:
    told = event("c", None, {"id": 3, "price": Decimal("9.50")})
    _, bad = rows_of({}, schema=pa.schema([("prise", pa.string())]), value=lambda: lambda *_: told, absent="fail")
    assert "no column 'prise' of schema= (did you mean 'price'?)" in bad[0]


def test_a_column_that_the_table_got_later_is_null_before_where_that_is_wanted() -> None:
    small = pa.schema([("id", pa.int64()), ("name", pa.string())])
    old, new = event("c", None, {"id": 1}), event("c", None, {"id": 2, "name": None})
    assert [row["id"] for row in rows_of(old, new, form="upsert", schema=small)[0]] == [1, 2]
    assert list(rows_of(old, new, form="upsert", schema=small, absent="fail")[1]) == [0]


def test_events_need_columns_and_a_form() -> None:
    for value, schema, form in [("bytes", COLUMNS, "changes"), ("json", None, "changes"), ("json", COLUMNS, "rows")]:
        with pytest.raises(InvalidJob, match="debezium="):
            format_of("value", value, schema, WHERE, form)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="column 'deleted'"):
        format_of("value", "json", pa.schema([("deleted", pa.bool_())]), WHERE, "upsert")
    with pytest.raises(InvalidJob, match="absent='nil': use 'fail', or 'null'"):
        format_of("value", "json", COLUMNS, WHERE, "upsert", "nil")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="absent='null' goes with debezium="):
        format_of("value", "json", COLUMNS, WHERE, absent="null")


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\tb"])
def test_columns_whose_names_json_escapes_are_read(name: str) -> None:
    rows, bad = rows_of(*[event("c", None, {name: n}) for n in range(20)], schema=pa.schema([(name, pa.int64())]))
    assert not bad
    assert [row["after"][name] for row in rows] == list(range(20))


@pytest.mark.parametrize("others", [0, 20])
def test_a_number_beyond_decimals_is_bad_only_in_a_declared_column(others: int) -> None:
    """Also beside a bad event, which leads to decoding one by one."""
    schema = pa.schema([("id", pa.int64())])
    decoder = make_decoder(format_of("value", "json", schema, WHERE, "changes", "fail"), WHERE)
    huge = b"1e99999999999999999999"
    unread, read = b'{"op":"c","after":{"id":1,"x":%s}}' % huge, b'{"op":"c","after":{"id":%s}}' % huge
    payloads = [unread, *[b'{"op":"c","after":{"id":2}}'] * others]
    for more in ([], [read]):
        _, bad = decoded(decoder, [*payloads, *more], [_Message()] * len([*payloads, *more]))
        assert list(bad) == [len(payloads)] * len(more)
        assert all("column 'id': 1e99999999999999999999 is larger" in told for told in bad.values())
