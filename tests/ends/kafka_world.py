"""Topics of a test's own on a real broker: writing into them, and reading them through the source, split by split."""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from barrier_runtime import Dataflow
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.kafka.source.source import KafkaTopics
from barrier_runtime.connectors.source import Split
from barrier_runtime.data.elements import Batch
from examples.servers import KafkaServer
from examples.servers.kafka_ends import TopicEnds, asked_again, done_at_last
from tests.waiting import until

PATIENCE_S = 120.0


class Topic:
    """A new topic. Values are written in order, and durable when a method returns."""

    def __init__(self, kafka: KafkaServer, partitions: int = 1, name: str = "", **config: object) -> None:
        self.name = name or f"topic-{uuid.uuid4().hex[:10]}"
        self.kafka = kafka
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        kafka.create_topic(self.name, partitions, **{"retention_ms": -1, **config})  # old timestamps stay
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})

    def write(self, values: Iterable[bytes | str | None], partition: int = 0, **options: Any) -> None:
        """`options`: key, headers, timestamp of each record."""
        for value in values:
            self._producer.produce(self.name, value, partition=partition, **options)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def write_transactions(self, *transactions: tuple[Sequence[str], bool], partition: int = 0) -> None:
        """Values and whether they are committed."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(PATIENCE_S)
        for values, committed in transactions:
            producer.begin_transaction()
            for value in values:
                producer.produce(self.name, value, partition=partition)
            producer.flush(PATIENCE_S)
            if committed:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
        ends = TopicEnds(self.kafka.bootstrap, self.name, partition + 1)
        # A broker confirms the end of a transaction first, and writes the marker into the partition afterwards.
        until(lambda: ends.committed() == ends.written(), "the transactions have ended in the partition")

    def grow(self, partitions: int) -> None:
        wanted = [NewPartitions(self.name, partitions)]
        done_at_last(lambda: self.admin.create_partitions(wanted)[self.name].result(), KafkaError.INVALID_PARTITIONS)
        until(lambda: len(self._topics()[self.name].partitions) == partitions, "it grew")
        self._producer = Producer({"bootstrap.servers": self.kafka.bootstrap})  # the other does not know them yet

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Deletes records as retention does: the earliest offset is then `offset`."""
        (place,) = wanted = [TopicPartition(self.name, partition, offset)]
        done_at_last(lambda: self.admin.delete_records(wanted)[place].result())

    def delete(self) -> None:
        done_at_last(
            lambda: self.admin.delete_topics([self.name])[self.name].result(), KafkaError.UNKNOWN_TOPIC_OR_PART
        )
        until(lambda: self.name not in self._topics(), "the topic is gone")

    def _topics(self) -> dict[str, Any]:
        return asked_again(lambda: self.admin.list_topics(timeout=10)).topics

    def committed(self, group: str, partition: int = 0) -> int:
        """The group's offset; negative if there is none."""
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": group})
        try:
            places = [TopicPartition(self.name, partition)]
            return int(asked_again(lambda: consumer.committed(places, timeout=10))[0].offset)
        finally:
            consumer.close()

    def commit(self, group: str, offset: int, partition: int = 0) -> None:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap, "group.id": group})
        try:
            place = TopicPartition(self.name, partition, offset)
            done_at_last(lambda: consumer.commit(offsets=[place], asynchronous=False))
        finally:
            consumer.close()


def source_of(kafka: KafkaServer, topics: Any = None, **options: Any) -> KafkaTopics:
    """Through the door that users take."""
    flow = Dataflow("reads-kafka")
    flow.read_kafka("src", kafka.bootstrap, topics, **{"group": "readers", **options})
    source = flow.plan.nodes[0].source  # type: ignore[union-attr]
    assert isinstance(source, KafkaTopics)
    return source


def reading(
    source: KafkaTopics, split: Split, position: bytes | None = None
) -> contextlib.AbstractContextManager[KafkaReader]:
    return prepared(source.reader(split), position)


@contextlib.contextmanager
def prepared(reader: KafkaReader, position: bytes | None = None) -> Iterator[KafkaReader]:
    """A reader that fetches, from `position` on if given."""
    try:
        if position is not None:
            reader.seek(position)
        reader.prepare()
        yield reader
    finally:
        reader.close()


def rows_from(reader: KafkaReader, count: int | None = None, max_rows: int = 65_536) -> list[dict[str, Any]]:
    """`count` rows, or all until the reader has finished."""
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while not reader.finished if count is None else len(rows) < count:
        polled = reader.poll(max_rows if count is None else min(max_rows, count - len(rows)), time.time_ns())
        if polled is not None:
            rows += Batch(polled.rows, polled.emit_ns).rows.to_pylist()
        else:
            assert time.monotonic() < deadline, f"only {len(rows)} rows came"
            time.sleep(0.001)
    return rows


def all_rows(source: KafkaTopics) -> list[dict[str, Any]]:
    rows = []
    for split in source.splits(1):
        with reading(source, split) as reader:
            rows += rows_from(reader)
    return rows


def fetching_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kafka-source")]
