"""Processor time of decoding Kafka's records, by format: `python -m benchmarks.decoders`.

A single thread converts records in batches of 2,000, without a broker; the registry is the mock of the client. Reported
is the lowest of three rounds. To compare commits, run both in turn.
"""

import base64
import decimal
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.kafka.source.debezium import Debezium
from barrier_runtime.connectors.kafka.source.decoders import FormatName, format_of
from barrier_runtime.connectors.kafka.source.records import RecordConverter, record_columns
from benchmarks.backlog_rows import SCHEMA, records

RECORDS, AT_ONCE, ROUNDS = 20_000, 2_000, 3
_TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.int32()),
    ]
)
_DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}
_CONNECT = [
    {"field": "id", "type": "int64"},
    {"field": "customer", "type": "string"},
    {"field": "price", **_DECIMAL},
    {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
    {"field": "n", "type": "int32"},
]
_ENVELOPE = {
    "type": "struct",
    "fields": [{"field": part, "type": "struct", "fields": _CONNECT} for part in ("before", "after")],
}
_TEXTS = {"version": "2.7.0", "connector": "postgresql", "name": "shop", "db": "shop", "schema": "public"}
_AVRO_ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}],
        },
        {"name": "at", "type": ["null", "string"]},
        {"name": "n", "type": ["null", "int"]},
    ],
}
_AVRO_SOURCE = {
    "type": "record",
    "name": "Source",
    "fields": [
        *({"name": name, "type": "string"} for name in _TEXTS),
        *({"name": name, "type": ["null", "long"]} for name in ("ts_us", "ts_ms", "lsn", "txId")),
    ],
}
_AVRO_EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "before", "type": ["null", _AVRO_ROW]},
        {"name": "after", "type": ["null", "Row"]},
        {"name": "source", "type": _AVRO_SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ],
}
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
    ],
}


def _event(number: int, price: Callable[[int], Any]) -> dict[str, Any]:
    """A quarter each of inserts, updates with the row before, deletions and rows of a snapshot."""

    def row(number: int) -> dict[str, Any]:
        at = f"2026-01-01T00:00:{number % 60:02}.{number % 10**6:06}Z"
        customer = f"customer-{number % 10_000:06}"
        return {"id": number, "customer": customer, "price": price(number % 100_000), "at": at, "n": number % 100}

    op = "cudr"[number % 4]
    source = {**_TEXTS, "ts_us": 1_704_067_200_000_123 + number, "ts_ms": 1_704_067_200_000, "lsn": number, "txId": 5}
    return {
        "before": row(number) if op in "ud" else None,
        "after": None if op == "d" else row(number),
        "source": source,
        "op": op,
        "ts_ms": 1_704_067_200_999,
    }


def _as_text(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _as_decimal(cents: int) -> decimal.Decimal:
    return decimal.Decimal(_as_text(cents))


def _as_bytes(cents: int) -> str:
    return base64.b64encode(cents.to_bytes(4, "big", signed=True)).decode()


def _cases() -> Iterator[tuple[str, FormatName, pa.Schema, Debezium | None, list[bytes]]]:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    context = {name: SerializationContext(name, MessageField.VALUE) for name in ("avro", "events", "protobuf")}
    rows, numbers = records(0, RECORDS), range(RECORDS)
    values = list(map(json.loads, rows))
    plain = [json.dumps(_event(number, _as_text)).encode() for number in numbers]
    enveloped = [json.dumps({"schema": _ENVELOPE, "payload": _event(number, _as_bytes)}).encode() for number in numbers]
    avro = AvroSerializer(registry, json.dumps(_AVRO))
    events = AvroSerializer(registry, json.dumps(_AVRO_EVENT))
    order = _order_class()
    conf = {"use.deprecated.format": False}
    protobuf = ProtobufSerializer(order, registry, conf)
    yield "JSON", "json", SCHEMA, None, rows
    yield "Debezium, JSON, changes", "json", _TABLE, "changes", plain
    yield "Debezium, JSON, upsert", "json", _TABLE, "upsert", plain
    yield "Debezium, JSON with Connect's schema, changes", "json", _TABLE, "changes", enveloped
    yield (
        *("Avro with a registry", lambda: AvroDeserializer(registry), SCHEMA, None),
        [avro(value, context["avro"]) for value in values],
    )
    yield (
        *("Debezium, Avro with a registry, changes", lambda: AvroDeserializer(registry), _TABLE, "changes"),
        [
            events(_event(number, lambda cents: decimal.Decimal(_as_text(cents))), context["events"])
            for number in numbers
        ],
    )
    yield (
        *("Protobuf with a registry", lambda: ProtobufDeserializer(order, conf, registry), SCHEMA, None),
        [protobuf(order(**value), context["protobuf"]) for value in values],
    )


def _order_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

    file = descriptor_pb2.FileDescriptorProto(name="decoders.proto", package="benchmarks", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate((("id", 3), ("customer", 9), ("amount", 1), ("at", 3), ("text", 9)), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("benchmarks.Order"))


def _cost_s(format_name: FormatName, schema: pa.Schema, debezium: Debezium | None, payloads: list[bytes]) -> float:
    from confluent_kafka import Message

    value = format_of("value", format_name, schema, "decoders", debezium)
    converter = RecordConverter(record_columns(None, value, ("offset",), "fail", "decoders"), "decoders")
    messages = [Message(topic="t", partition=0, offset=at, value=payload) for at, payload in enumerate(payloads)]
    costs_s = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for at in range(0, len(messages), AT_ONCE):
            converted = converter.convert(messages[at : at + AT_ONCE])
            if converted.bad_at is not None:
                raise ValueError(converted.bad)
        costs_s.append(time.process_time() - began_s)
    return min(costs_s)


def main() -> None:
    """Prints a table."""
    print("| records | us of CPU a record | records per second of CPU |")
    print("| --- | --- | --- |")
    for name, format_name, schema, debezium, payloads in _cases():
        cost_s = _cost_s(format_name, schema, debezium, payloads)
        print(f"| {name} | {1e6 * cost_s / len(payloads):.2f} | {len(payloads) / cost_s:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
