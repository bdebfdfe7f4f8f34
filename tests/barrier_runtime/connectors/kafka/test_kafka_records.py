"""Kafka records as rows, without a broker: decoding, bad records, columns."""

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import SerializationError
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from barrier_runtime.connectors.kafka.source.decoders import FormatName, format_of, make_decoder, raise_outage
from barrier_runtime.connectors.kafka.source.records import ERROR, NullValues, RecordConverter, record_columns
from barrier_runtime.connectors.source_bases.payloads import decoded
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.state.errors import InvalidJob, Unavailable

WHERE = "source 'src'"


def messages(*values: Any, **options: Any) -> list[Message]:
    return [
        Message(topic="t", partition=3, offset=offset, value=value, timestamp=(1, 1_000 + offset), **options)
        for offset, value in enumerate(values)
    ]


def decode(
    format_name: FormatName, schema: pa.Schema | None, *payloads: bytes | None
) -> tuple[list[Any], dict[int, str]]:
    """Returns rows as tuples, and the errors of bad payloads."""
    decoder = make_decoder(format_of("value", format_name, schema, WHERE), WHERE)
    columns, bad = decoded(decoder, payloads, messages(*payloads), raise_outage)
    return list(zip(*(column.to_pylist() for column in columns), strict=True)), bad


def schema_of(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


def test_json_of_every_kind_of_column() -> None:
    schema = schema_of(
        whole=pa.int32(),
        natural=pa.uint64(),
        real=pa.float32(),
        truth=pa.bool_(),
        text=pa.string(),
        raw=pa.binary(),
        at=pa.timestamp("ms", "UTC"),
        local=pa.timestamp("us"),
        day=pa.date32(),
        price=pa.decimal128(10, 2),
        list=pa.list_(pa.int64()),
        point=pa.struct([("x y", pa.float64()), ("z", pa.string())]),
        tags=pa.map_(pa.string(), pa.int64()),
    )
    full = (
        b'{"whole": -5, "natural": 18446744073709551615, "real": 2, "truth": true, "text": "\\u00e4", "raw": "eA==",'
        b'"at": "2024-01-01T02:00:00.123+02:00", "local": "2024-01-01T00:00:00.000001", "day": "2024-02-29",'
        b'"price": 1.50, "list": [1, null], "point": {"x y": 1.5, "other": 1}, "tags": {"a": 1}, "unknown": [{}]}'
    )
    utc = datetime.timezone.utc
    row = (
        *(-5, 2**64 - 1, 2.0, True, "ä", b"x", datetime.datetime(2024, 1, 1, 0, 0, 0, 123_000, utc)),
        *(datetime.datetime(2024, 1, 1, 0, 0, 0, 1), datetime.date(2024, 2, 29), decimal.Decimal("1.50")),
        *([1, None], {"x y": 1.5, "z": None}, [("a", 1)]),
    )
    nothing = (None,) * len(schema)
    assert decode("json", schema, full, b"{}", None, b' {"whole": null}\n') == ([row, nothing, nothing, nothing], {})


@pytest.mark.parametrize(
    "payload",
    [
        *(
            b"",
            b"null",
            b"7",
            b"[]",
            b"{",
            b'{"n": 1}}',
            b'{"n": 1}{"n": 2}',
            b'{"n": "1"}',
            b'{"n": 1.5}',
            b'{"n": true}',
        ),
        *(
            b'{"n": 9223372036854775808}',
            b'{"s": "\xff"}',
            b'{"s": 1}',
            b'{"n": 1, "s": {}}',
            b'{"n":' + b"[" * 100_000,
        ),
        *(b'{"small": 300}', b'{"price": "1.005"}', b'{"fixed": 1e999}', b'{"at": "yesterday"}', b'{"at": 1700000000}'),
    ],
)
def test_a_bad_payload_is_found_among_good_ones_and_only_it(payload: bytes) -> None:
    """Two records in one payload, or a part of a record, must not shift the others."""
    schema = schema_of(
        n=pa.int64(),
        s=pa.string(),
        small=pa.int8(),
        price=pa.decimal128(10, 2),
        fixed=pa.float64(),
        at=pa.timestamp("ms"),
    )
    rows, bad = decode("json", schema, b'{"n": 1}', payload, b'{"n": 2}', b'{"n": 3}')
    assert list(bad) == [1]
    assert [row[0] for row in rows] == [1, None, 2, 3]
    assert bad[1]


def test_a_field_that_must_be_there_makes_a_record_without_it_bad() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())])
    rows, bad = decode("json", schema, b'{"n": 1}', b'{"s": "x"}', None)
    assert sorted(bad) == [1, 2]
    assert rows[0] == (1, None)


def test_text_that_is_no_utf8_is_bad() -> None:
    rows, bad = decode("string", None, "ä".encode(), b"\xff", None)
    assert rows == [("ä",), (None,), (None,)]
    assert list(bad) == [1]


@pytest.mark.parametrize("size", [1, 7, MOST_ROWS])
@pytest.mark.parametrize("key", [None, "json", "string"])
def test_a_few_records_are_the_same_rows_as_many(size: int, key: FormatName | None) -> None:
    schema = schema_of(
        whole=pa.int32(),
        natural=pa.uint64(),
        single=pa.float32(),
        real=pa.float64(),
        truth=pa.bool_(),
        text=pa.string(),
        raw=pa.binary(),
        at=pa.timestamp("ms", "UTC"),
        day=pa.date32(),
    )
    payloads = [
        b'{"whole": -5, "natural": 18446744073709551615, "single": 0.1, "real": 2, "truth": true, "text": "\xc3\xa4",'
        b'"raw": "eA==", "at": "2024-01-01T02:00:00.123+02:00", "day": "2024-02-29"}',
        b'{"whole": 7, "single": 1, "real": 1e-300, "truth": false, "text": ""}',
        b"{}",
        None,
    ]
    key_format = (
        None if key is None else format_of("key", key, schema_of(id=pa.int64()) if key == "json" else None, WHERE)
    )
    metadata = ("topic", "partition", "offset", "timestamp")
    columns = record_columns(key_format, format_of("value", "json", schema, WHERE), metadata, "fail", WHERE)
    converter = RecordConverter(columns, WHERE)
    records = [
        Message(
            topic="t", partition=3, offset=number, value=payloads[number % 4], key=each, timestamp=(number % 2, number)
        )
        for number, each in enumerate([b'{"id": 1}', None] * MOST_ROWS)
    ]
    together = converter.convert(records).rows
    assert isinstance(together, pa.RecordBatch)
    parts = [converter.convert(records[first : first + size]).rows for first in range(0, len(records), size)]
    assert all(isinstance(part, FewRows) for part in parts)
    assert pa.Table.from_batches([Batch(part, 0).rows for part in parts]).equals(pa.Table.from_batches([together]))


@pytest.mark.parametrize("count", [1, 3, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("text", ["x", "\u00e4\u20ac" * 5, "x" * 300_000])
@pytest.mark.parametrize("value", ["bytes", "string", "json"])
def test_size_of_converted_rows_is_at_least_their_size_in_arrow(value: FormatName, text: str, count: int) -> None:
    schema = schema_of(text=pa.string(), n=pa.int8(), at=pa.timestamp("ns")) if value == "json" else None
    payload = msgspec.json.encode({"text": text, "n": 1, "at": "2024-01-01T00:00:00Z"})
    metadata = ("topic", "partition", "offset", "timestamp")
    key = format_of("key", "string", None, WHERE)
    columns = record_columns(key, format_of("value", value, schema, WHERE), metadata, "fail", WHERE)
    payloads = [payload if number % 3 < 2 else None for number in range(count)]
    converted = RecordConverter(columns, WHERE).convert(messages(*payloads, key=text.encode()))
    rows = Batch(converted.rows, 0).rows
    assert isinstance(converted.rows, FewRows) == (count <= MOST_ROWS)
    assert rows.nbytes <= converted.size <= 3 * rows.nbytes + 300 * count


def test_the_row_before_a_bad_record_is_the_last_and_the_reason_is_told() -> None:
    columns = record_columns(
        None,
        format_of("value", "json", schema_of(n=pa.int64()), WHERE),
        ("topic", "partition", "offset"),
        "fail",
        WHERE,
    )
    converted = RecordConverter(columns, WHERE).convert(messages(b'{"n": 1}', b"oops", b'{"n": 3}'))
    assert converted.rows.to_pylist() == [{"n": 1, "topic": "t", "partition": 3, "offset": 0}]
    assert converted.rows.schema == columns.schema
    assert converted.bad.startswith("its value: DecodeError: JSON is malformed")


@pytest.mark.parametrize("count", [0, 2 * MOST_ROWS], ids=["few", "many"])
def test_a_record_without_value_is_a_row_no_row_or_a_bad_record(count: int, caplog: pytest.LogCaptureFixture) -> None:
    value = format_of("value", "json", schema_of(n=pa.int64()), WHERE)
    records = messages(None, b'{"n": 1}', None, b'{"n": 3}', b"oops", *[b'{"n": 5}'] * count)[: 4 + count]

    def converted(null_values: NullValues, of: Sequence[Message]) -> tuple[list[Any], int | None, int, Any]:
        converter = RecordConverter(record_columns(None, value, ("offset",), "fail", WHERE, null_values), WHERE)
        found = converter.convert(of)
        rows = [] if found.rows is None else Batch(found.rows, 0).rows.to_pylist()
        return [(row["n"], row["offset"]) for row in rows], found.bad_at, found.nulls, found.kept

    bad_at = 4 if count else None
    assert converted("row", records) == ([(None, 0), (1, 1), (None, 2), (3, 3)], bad_at, 2, None)
    assert [record.args[1] for record in caplog.records] == [0], "one warning, with the offset"
    kept = [index for index in range(len(records)) if index not in (0, 2)]
    assert converted("skip", records) == ([(1, 1), (3, 3)], bad_at, 2, kept)
    assert converted("skip", [records[0], records[2]]) == ([], None, 2, [])
    assert converted("bad", records) == ([], 0, 0, None)
    assert converted("bad", records[1:4]) == ([(1, 1)], 1, 0, None)
    assert len(caplog.records) == 1
    with pytest.raises(InvalidJob, match=r"null_values='drop': use"):
        converted("drop", records)  # type: ignore[arg-type]


def test_dead_letters_keep_the_raw_record_and_null_the_other_columns() -> None:
    """Also no event time: a bad record must not advance the watermark."""
    value = format_of("value", "json", schema_of(n=pa.int64()), WHERE)
    key = format_of("key", "string", None, WHERE)
    columns = record_columns(key, value, {"timestamp": "at"}, "dead_letter", WHERE)
    converter = RecordConverter(columns, WHERE)
    rows = converter.convert(messages(b'{"n": 1}', b"oops", key=b"k", headers=[("h", b"v")])).rows
    assert rows.schema == columns.whole_schema
    good, bad = rows.to_pylist()
    assert good["n"] == 1
    assert {name: value for name, value in good.items() if name.startswith("dead_letter")} == dict.fromkeys(
        name for name in columns.whole_schema.names if name.startswith("dead_letter")
    )
    assert (bad["key"], bad["n"], bad["at"]) == (None, None, None)
    assert bad["dead_letter_key"] == b"k"
    assert bad["dead_letter_value"] == b"oops"
    assert bad["dead_letter_offset"] == 1
    assert bad["dead_letter_headers"] == [{"key": "h", "value": b"v"}]
    assert bad["dead_letter_timestamp"].timestamp() == 1.001
    assert "its value: DecodeError" in bad[ERROR]
    assert converter.convert(messages(b'{"n": 1}')).rows.column(ERROR).null_count == 1


def test_a_bad_key_is_told_from_a_bad_value() -> None:
    value = format_of("value", "bytes", None, WHERE)
    columns = record_columns(format_of("key", "string", None, WHERE), value, (), "fail", WHERE)
    converted = RecordConverter(columns, WHERE).convert(messages(b"v", key=b"\xff"))
    assert converted.rows.num_rows == 0
    assert converted.bad.startswith("its key: ")


# ---------------------------------------------------------------- the client's deserialisers


def deserialiser(answers: dict[bytes, Any]) -> FormatName:
    """Deserialiser that returns or raises the entry of `answers`."""

    def answer(data: bytes, context: Any) -> Any:
        assert (context.topic, context.field) == ("t", "value")
        found = answers[data]
        if isinstance(found, Exception):
            raise found
        return found

    return lambda: answer


def test_what_a_deserialiser_gives_becomes_the_columns_of_the_schema() -> None:
    two = schema_of(n=pa.int64(), s=pa.string())
    make = deserialiser({b"a": {"n": 1, "s": "x", "more": 0}, b"b": {"n": 2}, b"c": {"n": "no"}, b"d": 5})
    rows, bad = decode(make, two, b"a", b"b", b"c", b"d", None)
    assert rows == [(1, "x"), (2, None), (None, None), (None, None), (None, None)]
    assert sorted(bad) == [2, 3]
    assert "gave int, the schema has 2 columns" in bad[3]
    assert decode(deserialiser({b"a": 5}), schema_of(n=pa.int64()), b"a", None) == ([(5,), (None,)], {})


def test_nested_fields_beyond_the_schema_are_left_out_as_others_are() -> None:
    nested = schema_of(x=pa.list_(pa.struct([("a", pa.int64())])))
    assert decode(deserialiser({b"a": {"x": [{"a": 1, "b": 2}]}}), nested, b"a") == ([([{"a": 1}],)], {})


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (pa.int64(), 19.99, "its fraction would be cut"),
        (pa.list_(pa.int64()), [1.5], "its fraction would be cut"),
        (pa.float32(), 1e300, "would become infinite"),
        (pa.date32(), datetime.datetime(2024, 1, 1, 12), "its time of day would be cut"),
        (pa.timestamp("ms"), datetime.datetime(2024, 1, 1, 0, 0, 0, 5), "declare the column as timestamp[us]"),
    ],
)
def test_a_value_of_a_deserialiser_that_would_change_makes_its_record_bad(
    kind: pa.DataType, value: Any, why: str
) -> None:
    rows, bad = decode(deserialiser({b"a": {"x": value}, b"b": {"x": None}}), schema_of(x=kind), b"b", b"a")
    assert rows == [(None,), (None,)]
    assert why in bad[1]


@pytest.mark.parametrize("reason", [SerializationError("magic"), EOFError(), SchemaRegistryError(404, 40403, "no")])
def test_what_is_wrong_with_a_record_makes_it_bad(reason: Exception) -> None:
    rows, bad = decode(deserialiser({b"a": 1, b"b": reason}), schema_of(n=pa.int64()), b"a", b"b")
    assert rows == [(1,), (None,)]
    assert type(reason).__name__ in bad[1]


@pytest.mark.parametrize("reason", [ConnectionRefusedError(), TimeoutError(), SchemaRegistryError(503, 50301, "later")])
def test_a_registry_that_does_not_answer_makes_no_record_bad(reason: Exception) -> None:
    with pytest.raises(Unavailable):
        decode(deserialiser({b"a": 1, b"b": reason}), schema_of(n=pa.int64()), b"a", b"b")


def test_a_registry_that_refuses_access_ends_the_job() -> None:
    with pytest.raises(InvalidJob, match="schema registry refuses access"):
        decode(deserialiser({b"a": SchemaRegistryError(401, 40101, "who?")}), schema_of(n=pa.int64()), b"a")


def test_protobuf_messages_become_columns() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto",
        package="shop",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name],
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="SMALL", number=0)
    kind.value.add(name="LARGE", number=1)
    part = file.message_type.add(name="Part")
    part.field.add(name="sku", number=1, type=9, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="kind", number=2, type=14, type_name=".shop.Kind", label=1)
    order.field.add(name="parts", number=3, type=11, type_name=".shop.Part", label=3)
    order.field.add(name="at", number=4, type=11, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="weight", number=5, type=11, type_name=".google.protobuf.DoubleValue", label=1)
    order.field.add(name="scores", number=6, type=5, label=3)
    pool = descriptor_pool.DescriptorPool()
    for needed in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(needed.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    message = message_class(id=7, kind=1, parts=[{"sku": "a"}], scores=[1, 2])
    message.at.FromJsonString("2024-01-01T00:00:00.5Z")
    message.weight.value = 2.5
    schema = schema_of(
        id=pa.int64(),
        kind=pa.string(),
        parts=pa.list_(pa.struct([("sku", pa.string())])),
        at=pa.timestamp("ms", "UTC"),
        weight=pa.float64(),
        scores=pa.list_(pa.int32()),
    )
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 500_000, datetime.timezone.utc)
    make = deserialiser({b"full": message, b"empty": message_class()})
    rows, bad = decode(make, schema, b"full", b"empty")
    assert bad == {}
    assert rows == [(7, "LARGE", [{"sku": "a"}], at, 2.5, [1, 2]), (0, "SMALL", [], None, None, [])]
    _, bad = decode(make, schema_of(nonsense=pa.int64()), b"full")
    assert "shop.Order has no field 'nonsense'" in bad[0]
    message.at.FromJsonString("2024-01-01T00:00:00.123456789Z")
    _, bad = decode(make, schema_of(at=pa.timestamp("us", "UTC")), b"full")
    assert "declare the column as timestamp[ns, tz=UTC]" in bad[0]
    rows, bad = decode(make, schema_of(at=pa.timestamp("ns", "UTC")), b"full")
    assert (bad, rows[0][0].value) == ({}, 1_704_067_200_123_456_789)


# ---------------------------------------------------------------- options


def test_options_that_contradict_each_other_are_refused() -> None:
    n = schema_of(n=pa.int64())
    for format_name, schema, text in (
        ("json", None, "pass schema="),
        ("bytes", n, "schema= goes with"),
        ("avro", n, "value='avro': use"),
        ("json", schema_of(n=pa.dictionary(pa.int32(), pa.string())), "column 'n' has type dictionary"),
    ):
        with pytest.raises(InvalidJob, match=text):
            format_of("value", format_name, schema, WHERE)
    value = format_of("value", "json", schema_of(offset=pa.int64()), WHERE)
    with pytest.raises(InvalidJob, match="two columns 'offset': rename the metadata by"):
        record_columns(None, value, ("offset",), "fail", WHERE)
    with pytest.raises(InvalidJob, match="metadata= has 'headerz'"):
        record_columns(None, value, ("headerz",), "fail", WHERE)
    with pytest.raises(InvalidJob, match="bad_records='skip'"):
        record_columns(None, value, (), "skip", WHERE)
