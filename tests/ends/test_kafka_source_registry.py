"""Avro and Protobuf through the client's own deserialisers: a real broker, a registry that speaks Confluent's REST."""

import datetime
import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from barrier_runtime.state.errors import InvalidJob
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, all_rows, reading, rows_from, source_of
from tests.ends.schema_registry import Registry, schema_registry

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "shop", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as registry:
        yield registry


def client(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url, "max.retries": 0})


def avro(topic: Topic, registry: Registry, *orders: dict[str, Any]) -> list[bytes]:
    serialise = AvroSerializer(client(registry), json.dumps(AVRO))
    context = SerializationContext(topic.name, MessageField.VALUE)
    return [serialise(order, context) for order in orders]


NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone.utc)
SCHEMA = {"shop": str, "amount": float, "at": pa.timestamp("ms", "UTC")}


def test_avro_records_become_typed_columns(kafka: KafkaServer, registry: Registry) -> None:
    topic = Topic(kafka)
    orders = [{"shop": "a", "amount": 1.5, "at": NOON}, {"shop": "b", "amount": None, "at": NOON}]
    topic.write([*avro(topic, registry, *orders), None])
    source = source_of(
        kafka,
        topic.name,
        until="latest",
        value=lambda: AvroDeserializer(client(registry)),
        schema=SCHEMA,
        key=None,
        metadata=(),
    )
    assert all_rows(source) == [*orders, {"shop": None, "amount": None, "at": None}]


def test_an_avro_record_of_an_unknown_schema_stops_at_its_place(kafka: KafkaServer, registry: Registry) -> None:
    topic = Topic(kafka)
    (good,) = avro(topic, registry, {"shop": "a", "amount": 1.5, "at": NOON})
    topic.write([good, b"\x00\x00\x00\x00\x63" + good[5:], good])
    source = source_of(kafka, topic.name, value=lambda: AvroDeserializer(client(registry)), schema=SCHEMA)
    with reading(source, source.splits(1)[0]) as reader:
        assert rows_from(reader, 1)[0]["shop"] == "a"
        with pytest.raises(InvalidJob, match=r"partition 0, offset 1: the record cannot be decoded"):
            rows_from(reader, 1)


def test_a_registry_that_is_down_is_waited_for(kafka: KafkaServer, registry: Registry) -> None:
    """An absent registry is no fault of the records: no record may become a dead letter."""
    topic = Topic(kafka)
    topic.write(avro(topic, registry, {"shop": "a", "amount": 1.5, "at": NOON}))
    flow_source = source_of(
        kafka,
        topic.name,
        value=lambda: AvroDeserializer(client(registry)),
        schema=SCHEMA,
        bad_records="dead_letter",
    )
    registry.down = True
    asked = registry.asked
    with reading(flow_source, flow_source.splits(1)[0]) as reader:
        while registry.asked < asked + 2:
            assert reader.poll(10, time.time_ns()) is None
        registry.down = False
        (row,) = rows_from(reader, 1)
    assert row["shop"] == "a"
    assert row["dead_letter_error"] is None


def test_protobuf_records_become_typed_columns(kafka: KafkaServer, registry: Registry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="registry.shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    order.field.add(name="shop", number=1, type=9, label=1)
    order.field.add(name="amount", number=2, type=1, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order_class = message_factory.GetMessageClass(pool.FindMessageTypeByName("registry.shop.Order"))
    topic = Topic(kafka)
    serialise = ProtobufSerializer(order_class, client(registry), {"use.deprecated.format": False})
    context = SerializationContext(topic.name, MessageField.VALUE)
    topic.write(
        [serialise(order_class(shop=shop, amount=amount), context) for shop, amount in (("a", 1.5), ("b", 2.0))]
    )
    source = source_of(
        kafka,
        topic.name,
        until="latest",
        value=lambda: ProtobufDeserializer(order_class, {"use.deprecated.format": False}, client(registry)),
        schema={"shop": str, "amount": float},
        key=None,
        metadata=("offset",),
    )
    assert all_rows(source) == [{"shop": "a", "amount": 1.5, "offset": 0}, {"shop": "b", "amount": 2.0, "offset": 1}]
