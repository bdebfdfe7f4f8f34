"""Acknowledgements of the RabbitMQ reader, without a broker.

The consumer is real, but the consumer's thread finds no broker; the test feeds the consumer as that thread would.
"""

from collections.abc import Iterator

import pika
import pytest

from barrier_runtime.connectors.rabbitmq.broker import Broker, Delivery, ReceivedMessage
from barrier_runtime.connectors.rabbitmq.source import Columns, MessageRows, RabbitReader
from examples.servers.base import free_port


class Channel:
    """Replacement for pika's channel that records the acknowledged tags."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []

    def basic_ack(self, tag: int, multiple: bool) -> None:
        assert multiple
        self.acknowledged.append(tag)


class World:
    def __init__(self) -> None:
        where = "source 'src'"
        broker = Broker.of(f"amqp://127.0.0.1:{free_port()}", where)
        self.reader = RabbitReader(broker, "queue", Columns(None, ()), 10, False, None, where)
        self.reader.prepare()
        assert self.reader._consumer is not None
        self.consumer = self.reader._consumer
        self.channel = Channel()

    def read(self, *tags: int, connection: int = 1) -> None:
        for tag in tags:
            message = ReceivedMessage(Delivery(connection, tag), b"body", pika.BasicProperties(), "queue", False)
            self.consumer._messages.append(message)
        polled = self.reader.poll(100, 1)
        assert polled is not None
        assert polled.rows.num_rows == len(tags)

    def acknowledged(self, connection: int = 1) -> list[int]:
        self.consumer._carry_out(self.channel, connection)
        return self.channel.acknowledged


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.reader.close()
    assert world.consumer.join(30)


def test_a_checkpoint_acknowledges_the_newest_message_it_covers_and_no_newer_one(world: World) -> None:
    world.read(1, 2, 3)
    world.reader.snapshotted(1)
    world.read(4, 5)
    assert world.acknowledged() == []
    world.reader.completed(1)
    world.read(6)
    assert world.acknowledged() == [3]


def test_a_checkpoint_acknowledges_for_those_before_it_that_failed(world: World) -> None:
    world.read(1)
    world.reader.snapshotted(1)
    world.read(2)
    world.reader.snapshotted(2)
    world.read(3)
    world.reader.snapshotted(3)
    world.reader.completed(2)
    assert world.acknowledged() == [2]
    world.reader.completed(3)
    assert world.acknowledged() == [2, 3]


def test_a_checkpoint_without_new_messages_acknowledges_nothing_again(world: World) -> None:
    world.reader.snapshotted(1)
    world.reader.completed(1)
    world.read(1)
    world.reader.snapshotted(2)
    world.reader.snapshotted(3)
    world.reader.completed(2)
    world.reader.completed(3)
    assert world.acknowledged() == [1]


def test_a_message_of_a_lost_connection_is_not_acknowledged_on_the_next_one(world: World) -> None:
    world.read(7)
    world.reader.snapshotted(1)
    world.reader.completed(1)
    assert world.acknowledged(connection=2) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bodies", "polls"),
    [([b"body"] * 10_000, [4_096, 4_096, 1_808]), ([bytes(3 << 20)] * 5, [2, 2, 1])],
    ids=["messages", "bytes"],
)
def test_a_poll_decodes_a_bounded_number_of_messages_and_bytes(
    world: World, bodies: list[bytes], polls: list[int]
) -> None:
    for tag, body in enumerate(bodies, 1):
        message = ReceivedMessage(Delivery(1, tag), body, pika.BasicProperties(), "queue", False)
        world.consumer._messages.append(message)
    read = 0
    for checkpoint, count in enumerate(polls, 1):
        polled = world.reader.poll(65_536, 1)
        assert polled is not None
        assert polled.rows.num_rows == count
        world.reader.snapshotted(checkpoint)
        world.reader.completed(checkpoint)
        read += count
        assert world.acknowledged()[-1] == read, "a barrier passes between two polls"
    assert world.reader.poll(65_536, 1) is None


def test_a_routing_key_that_is_not_utf_8_is_a_text_as_a_message_id_is() -> None:
    columns = Columns(None, ("message_id", "routing_key", "redelivered"))
    properties, key = pika.BasicProperties(), b"k\xff"
    properties.message_id = b"m\xfe"  # as pika reads such texts
    rows, bad = MessageRows(columns, "source 'src'").batch(
        [ReceivedMessage(Delivery(1, 1), b"", properties, key, True)]
    )
    (row,) = rows.select(columns.metadata).to_pylist()
    assert row == {"message_id": "m\\xfe", "routing_key": "k\\xff", "redelivered": True}
    assert not bad
