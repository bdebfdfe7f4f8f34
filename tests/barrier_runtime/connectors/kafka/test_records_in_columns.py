"""Many records at a time are the rows and errors of the same records one by one: Debezium, Avro, Protobuf."""

import base64
import datetime
import decimal
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, prefix_schema_id_deserializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from barrier_runtime.connectors.kafka.source.debezium import Absent, Debezium
from barrier_runtime.connectors.kafka.source.decoders import format_of, make_decoder
from barrier_runtime.connectors.source_bases.payloads import Decoder, _reason, decoded

WHERE = "source 'src'"
CONTEXT = SerializationContext("t", MessageField.VALUE)
MARK = "__debezium_unavailable_value"
TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("weight", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("clock", pa.time64("us")),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
CONNECT: dict[str, dict[str, Any]] = {
    "id": {"type": "int64"},
    "name": {"type": "string"},
    "price": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    "weight": {"type": "double"},
    "day": {"type": "int32", "name": "io.debezium.time.Date"},
    "at": {"type": "int64", "name": "io.debezium.time.Timestamp"},
    "zoned": {"type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    "clock": {"type": "int64", "name": "io.debezium.time.MicroTime"},
    "blob": {"type": "bytes"},
    "tags": {"type": "array", "items": {"type": "string"}},
}


def message(payload: bytes | None = None, **options: Any) -> Message:
    return Message(topic="t", partition=0, offset=0, value=payload, **options)


def assert_equal_one_by_one(decoder: Decoder, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> None:
    rows: list[list[Any]] = []
    reasons = {}
    for index, (payload, each) in enumerate(zip(payloads, messages, strict=True)):
        try:
            (row,) = decoder.rows([payload], [each])
            columns = decoder.columns([row])
        except Exception as error:
            columns, reasons[index] = decoder.columns([None]), _reason(error)
        rows.append([repr(column.to_pylist()[0]) for column in columns])
    together, bad = decoded(decoder, payloads, messages)
    assert bad == reasons
    for number, column in enumerate(together):
        assert list(map(repr, column.to_pylist())) == [row[number] for row in rows]


# ---------------------------------------------------------------- Debezium


def unusually(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly usual values, so that most records stay on the way of many records."""
    odd = [None, MARK, True, -1, 2**63, 1.5, "", "x", "NaN", [], [1], {}, "2024-02-30", "1_0", "1e400", "\U0001f600"]
    return st.integers(0, 19).flatmap(lambda number: usual if number else st.sampled_from(odd))


def based(number: int) -> str:
    return base64.b64encode(number.to_bytes(8, "big", signed=True)).decode()


MOMENTS = st.datetimes(min_value=datetime.datetime(1800, 1, 1), max_value=datetime.datetime(2300, 1, 1))
ZONED = MOMENTS.map(lambda at: at.isoformat() + "Z")
TEXTS = st.sampled_from(["tea", "", "ä", MARK, "a text", "\u2028"])
COMMON = {
    "id": st.integers(-(2**63), 2**63 - 1),
    "name": TEXTS,
    "weight": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-100, 100)),
    "day": st.integers(-100_000, 100_000),
    "zoned": st.one_of(ZONED, ZONED.map(lambda text: text[:-1] + "+02:00")),
    "clock": st.integers(0, 86_399_999_999),
    "blob": st.binary(max_size=4).map(lambda data: base64.b64encode(data).decode()),
    "tags": st.lists(TEXTS, max_size=2),
}
PLAIN = {
    **COMMON,
    "price": st.one_of(
        st.decimals(-(10**8), 10**8, places=2).map(str), st.sampled_from(["1", "1.", "-1.5e2", "1.250"])
    ),
    "at": st.integers(-6 * 10**16, 2 * 10**17),  # within the years of Python, which the comparison needs
}
ENVELOPED = {**COMMON, "price": st.integers(-(10**10), 10**10).map(based), "at": st.integers(-(10**13), 10**13)}


def rows_of(columns: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    full = st.fixed_dictionaries({name: unusually(st.none() | values) for name, values in columns.items()})
    partly = st.dictionaries(st.sampled_from([*columns, "other"]), st.just(None), max_size=3)
    return st.integers(0, 9).flatmap(lambda number: full if number else partly)


def events_of(columns: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    row = st.none() | rows_of(columns)
    time = unusually(st.integers(1_600_000_000_000, 1_800_000_000_000))
    source = st.fixed_dictionaries({"ts_ms": time, "lsn": unusually(st.integers(0, 99)), "txId": time}).flatmap(
        lambda source: st.sampled_from([source, {**source, "ts_us": 1_700_000_000_000_001}, None])
    )
    op = unusually(st.sampled_from("rcudt"))
    return st.fixed_dictionaries({"before": row, "after": row, "source": source, "op": op, "ts_ms": st.just(5)})


def enveloped(event: Any) -> Any:
    fields = [{"field": name, **kind} for name, kind in CONNECT.items()]
    return {"schema": {"fields": [{"field": part, "fields": fields} for part in ("before", "after")]}, "payload": event}


def damaged(data: bytes) -> st.SearchStrategy[bytes | None]:
    forms = [
        data,
        data,
        data,
        data,
        data,
        data,
        None,
        data[:-1],
        data + b"}",
        b"",
        b"null",
        data.replace(b"tea", b"\xff"),
    ]
    return st.sampled_from(forms)


def as_payload(event: Any, compact: bool) -> bytes:
    return json.dumps(event, separators=(",", ":") if compact else None, ensure_ascii=compact).encode()


PAYLOADS = st.booleans().flatmap(
    lambda compact: st.lists(
        st.one_of(events_of(PLAIN), events_of(ENVELOPED).map(enveloped))
        .map(lambda event: as_payload(event, compact))
        .flatmap(damaged),
        max_size=20,
    )
)


@pytest.mark.slow
@given(payloads=PAYLOADS, form=st.sampled_from(["changes", "upsert"]), absent=st.sampled_from(["fail", "null"]))
@settings(deadline=None, max_examples=25)
def test_debeziums_events_in_columns_equal_rows(payloads: Any, form: Debezium, absent: Absent) -> None:
    decoder = make_decoder(format_of("value", "json", TABLE, WHERE, form, absent), WHERE)
    assert_equal_one_by_one(decoder, payloads, list(map(message, payloads)))


@pytest.mark.slow
@given(events=st.lists(events_of(PLAIN), max_size=20), form=st.sampled_from(["changes", "upsert"]))
@settings(deadline=None, max_examples=12)
def test_events_of_a_deserialiser_in_columns_equal_rows(events: Any, form: Debezium) -> None:
    value = format_of("value", lambda: lambda data, context: events[int(data)], TABLE, WHERE, form, "fail")
    payloads = [str(number).encode() for number in range(len(events))]
    assert_equal_one_by_one(make_decoder(value, WHERE), payloads, list(map(message, payloads)))


@pytest.mark.parametrize("wrapped", [lambda event: event, enveloped])
def test_usual_events_do_not_need_rows(wrapped: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    at, price = ("2024-01-01T00:00:00Z", "1.50") if wrapped is not enveloped else (5, based(150))
    row = {**dict.fromkeys(TABLE.names), "id": 1, "name": MARK, "price": price, "at": at, "tags": ["a"]}
    events = [
        {"op": "u", "before": None, "after": row, "source": {"ts_ms": 5}},
        {"op": "d", "before": row, "after": None},
    ]
    decoder = make_decoder(format_of("value", "json", TABLE, WHERE, "changes"), WHERE)
    payloads = [*(json.dumps(wrapped(event)).encode() for event in events), None]
    monkeypatch.setattr(decoder, "rows", None)
    columns, bad = decoded(decoder, payloads, [None] * 3)
    assert bad == {}
    assert columns[-1].to_pylist() == [["name"], [], None]
    assert [row and row["price"] for row in columns[5].to_pylist()] == [decimal.Decimal("1.50"), None, None]


# ---------------------------------------------------------------- Avro and Protobuf

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
ORDERS = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("ms", "UTC")), ("tags", pa.list_(pa.string()))]
)
ORDER = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | TEXTS,
        "at": MOMENTS.map(lambda at: at.replace(microsecond=0, tzinfo=datetime.timezone.utc)),
        "tags": st.lists(TEXTS, max_size=2),
    }
)
FORMS = st.sampled_from([*["whole"] * 12, "null", "cut", "longer", "unknown schema", "short", "magic"])


def of_form(payload: bytes, form: str) -> bytes | None:
    forms = {"cut": payload[:-1], "longer": payload + b"x", "short": payload[:5], "magic": b"\1" + payload[1:]}
    if form == "unknown schema":
        return b"\0\0\0\x27\x0f" + payload[5:]
    return None if form == "null" else forms.get(form, payload)


def registry() -> Any:
    return SchemaRegistryClient.new_client({"url": "mock://"})


@pytest.mark.slow
@given(orders=st.lists(st.tuples(ORDER, st.booleans(), FORMS), max_size=20), reader=st.booleans())
@settings(deadline=None, max_examples=12)
def test_avro_in_columns_equals_rows(orders: Any, reader: bool) -> None:
    client = registry()
    wider = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int", "default": 7}]}
    serialisers = [AvroSerializer(client, json.dumps(schema)) for schema in (AVRO, wider)]
    payloads = [
        of_form(serialisers[wide]({**order, **({"more": 1} if wide else {})}, CONTEXT), form)
        for order, wide, form in orders
    ]
    told = json.dumps(wider if reader else AVRO)
    make = lambda: AvroDeserializer(client, told if reader else None)  # noqa: E731
    schema = pa.schema([*ORDERS, ("more", pa.int64())])
    decoder = make_decoder(format_of("value", make, schema, WHERE), WHERE)
    assert_equal_one_by_one(decoder, payloads, list(map(message, payloads)))


WIDE_TYPES = (pa.int64(), pa.float64(), pa.int8(), pa.uint64(), pa.int32(), pa.uint16())
WIDE = pa.schema([*((f"n{at}", WIDE_TYPES[at % 6]) for at in range(24)), ("text", pa.string()), ("flag", pa.bool_())])
NUMBERS = ["null", "boolean", "long", "double", "string"]
WIDE_AVRO = {
    "type": "record",
    "name": "Wide",
    "fields": [
        *({"name": f"n{at}", "type": NUMBERS, "default": None} for at in range(24)),
        {"name": "flag", "type": "boolean"},
        {"name": "text", "type": ["null", "string"]},
    ],
}
ODD_NUMBERS = st.sampled_from(
    [None, True, -1, 127, 128, 65_536, 2**53, 2**53 + 1, 2**63 - 1, 1.5, 3.0, 1e22, -0.0, "x"]
)


@pytest.mark.slow
@given(
    rows=st.lists(
        st.tuples(st.dictionaries(st.sampled_from(WIDE.names[:24]), ODD_NUMBERS, max_size=2), TEXTS, FORMS), max_size=12
    ),
    nullable=st.booleans(),
    missing=st.integers(0, 9),
)
@settings(deadline=None, max_examples=30)
def test_wide_avro_in_columns_equals_rows(rows: Any, nullable: bool, missing: int) -> None:
    client = registry()
    serialise = AvroSerializer(client, json.dumps(WIDE_AVRO))
    usual = {f"n{at}": at + 0.5 if WIDE_TYPES[at % 6] == pa.float64() else at for at in range(24)}
    payloads = [
        of_form(serialise({**usual, **odd, "text": text, "flag": True}, CONTEXT), form) for odd, text, form in rows
    ]
    schema = WIDE if nullable else WIDE.set(2, WIDE.field(2).with_nullable(False))
    if not missing:
        schema = schema.append(pa.field("later", pa.int64()))
    decoder = make_decoder(format_of("value", lambda: AvroDeserializer(client), schema, WHERE), WHERE)
    messages = list(map(message, payloads))
    if nullable:
        assert_equal_one_by_one(decoder, payloads, messages)
    else:
        alone = [decoded(decoder, [payload], [each])[1] for payload, each in zip(payloads, messages, strict=True)]
        assert sorted(decoded(decoder, payloads, messages)[1]) == [at for at, bad in enumerate(alone) if bad]


def order_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="columns.proto", package="columns", syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="SMALL", number=0)
    kind.value.add(name="LARGE", number=1)
    file.message_type.add(name="Other").field.add(name="n", number=1, type=5, label=1)
    part = file.message_type.add(name="Part")
    part.field.add(name="n", number=1, type=5, label=1)
    part.field.add(name="text", number=2, type=9, label=1, proto3_optional=True, oneof_index=0)
    part.oneof_decl.add(name="_text")
    part.field.add(name="kind", number=3, type=14, type_name=".columns.Kind", label=1)
    part.field.add(name="at", number=4, type=11, type_name=".google.protobuf.Timestamp", label=1)
    part.field.add(name="numbers", number=5, type=1, label=3)
    part.field.add(name="parts", number=6, type=11, type_name=".columns.Part", label=3)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="text", number=2, type=9, label=1, proto3_optional=True, oneof_index=0)
    order.oneof_decl.add(name="_text")
    order.field.add(name="at", number=3, type=11, type_name=".google.protobuf.Timestamp", label=1)
    order.field.add(name="tags", number=4, type=9, label=3)
    order.field.add(name="kind", number=5, type=14, type_name=".columns.Kind", label=1)
    order.field.add(name="part", number=6, type=11, type_name=".columns.Part", label=1)
    order.field.add(name="parts", number=7, type=11, type_name=".columns.Part", label=3)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("columns.Order"))


CLASS = order_class()


@pytest.mark.slow
@given(orders=st.lists(st.tuples(ORDER, st.sampled_from([0, 1, 5]), FORMS), max_size=20), registered=st.booleans())
@settings(deadline=None, max_examples=12)
def test_protobuf_in_columns_equals_rows(orders: Any, registered: bool) -> None:
    """The message is the second of its file, so the prefix of a payload has two bytes of indices."""
    client = registry()
    serialise = ProtobufSerializer(CLASS, client, {"use.deprecated.format": False})
    payloads = [of_form(serialise(CLASS(**order, kind=kind), CONTEXT), form) for order, kind, form in orders]
    conf = {"use.deprecated.format": False}
    make = lambda: ProtobufDeserializer(CLASS, conf, client if registered else None)  # noqa: E731
    for kind in (pa.string(), pa.int32()):
        decoder = make_decoder(format_of("value", make, pa.schema([*ORDERS, ("kind", kind)]), WHERE), WHERE)
        assert_equal_one_by_one(decoder, payloads, list(map(message, payloads)))


_PART_FIELDS: list[tuple[str, pa.DataType]] = [
    ("n", pa.int32()),
    ("text", pa.string()),
    ("kind", pa.string()),
    ("at", pa.timestamp("us", "UTC")),
    ("numbers", pa.list_(pa.float64())),
]
_PART = pa.struct([*_PART_FIELDS, ("parts", pa.list_(pa.struct([*_PART_FIELDS[:2], ("kind", pa.int32())])))])
_PARTS = st.recursive(
    st.fixed_dictionaries(
        {"n": st.integers(0, 5), "kind": st.sampled_from([0, 1, 5]), "numbers": st.lists(st.floats(0, 1), max_size=2)},
        optional={"text": TEXTS, "at": MOMENTS.map(lambda at: at.replace(microsecond=0))},
    ),
    lambda inner: st.fixed_dictionaries({"n": st.integers(0, 5), "parts": st.lists(inner, max_size=2)}),
    max_leaves=3,
)


@pytest.mark.slow
@given(orders=st.lists(st.tuples(st.none() | _PARTS, st.lists(_PARTS, max_size=2), FORMS), max_size=9))
@settings(deadline=None, max_examples=12)
def test_nested_protobuf_in_columns_equals_rows(orders: Any) -> None:
    client, conf = registry(), {"use.deprecated.format": False}
    serialise = ProtobufSerializer(CLASS, client, conf)
    payloads = [of_form(serialise(CLASS(part=part, parts=parts), CONTEXT), form) for part, parts, form in orders]
    schema = pa.schema([("id", pa.int64()), ("part", _PART), ("parts", pa.list_(_PART))])
    decoder = make_decoder(format_of("value", lambda: ProtobufDeserializer(CLASS, conf, client), schema, WHERE), WHERE)
    assert_equal_one_by_one(decoder, payloads, list(map(message, payloads)))


class Counted:
    """Deserialiser's requests for the registry's schema, which the long way makes for each payload."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, deserialiser: Any) -> None:
        self.count = 0
        usual = type(deserialiser).__call__

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return usual(*arguments)

        monkeypatch.setattr(type(deserialiser), "__call__", counted)


def avro_payloads(client: Any, count: int) -> list[bytes]:
    serialise = AvroSerializer(client, json.dumps(AVRO))
    at = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    return [serialise({"id": number, "text": None, "at": at, "tags": []}, CONTEXT) for number in range(count)]


def calls(monkeypatch: pytest.MonkeyPatch, deserialiser: Any, payloads: Sequence[bytes], **options: Any) -> int:
    counted = Counted(monkeypatch, deserialiser)
    decoder = make_decoder(format_of("value", lambda: deserialiser, ORDERS, WHERE), WHERE)
    columns, bad = decoded(decoder, payloads, [message(payload, **options) for payload in payloads])
    assert (bad, columns[0].to_pylist()) == ({}, list(range(len(payloads))))
    return counted.count


def test_only_the_first_payload_of_a_schema_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also shows that the client still has the attributes that the short way uses."""
    client = registry()
    assert calls(monkeypatch, AvroDeserializer(client), avro_payloads(client, 20)) == 1
    serialise = ProtobufSerializer(CLASS, client, {"use.deprecated.format": False})
    payloads = [serialise(CLASS(id=number), CONTEXT) for number in range(20)]
    assert calls(monkeypatch, ProtobufDeserializer(CLASS, {"use.deprecated.format": False}, client), payloads) == 1


@pytest.mark.parametrize("why", ["from_dict", "latest", "own ids", "header", "rules"])
def test_settings_and_rules_of_a_deserialiser_keep_the_long_way(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = registry()
    payloads = avro_payloads(client, 20)
    conf: dict[str, Any] = {"latest": {"use.latest.version": True}}.get(why, {})
    if why == "own ids":
        conf = {"schema.id.deserializer": lambda *arguments: prefix_schema_id_deserializer(*arguments)}
    options: dict[str, Any] = {}
    if why == "header":
        options = {"headers": [("__value_schema_id", payloads[0][:5])]}
        payloads = [payload[5:] for payload in payloads]
    if why == "rules":
        from confluent_kafka.schema_registry import RuleSet

        ruled = Schema(json.dumps({**AVRO, "doc": "with rules"}), "AVRO", rule_set=RuleSet(None, []))
        number = client.register_schema("t-value", ruled)
        payloads = [b"\0" + number.to_bytes(4, "big") + payload[5:] for payload in payloads]
    from_dict = (lambda value, context: value) if why == "from_dict" else None
    deserialiser = AvroDeserializer(client, from_dict=from_dict, conf=conf)
    assert calls(monkeypatch, deserialiser, payloads, **options) == 20
