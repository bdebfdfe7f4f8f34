"""Committed records of a Kafka topic, as users of the topic read them."""

import time
from typing import Any

from examples.servers.kafka_ends import TopicEnds

_PATIENCE_S = 240.0
_STILL_S = 5.0  # without a message, although the topic has more: then another client continues


class TopicReader:
    """Reads a topic from the reader's position, in the order of each partition.

    Clients without progress are replaced, as after a restart of the broker."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._bootstrap = bootstrap
        self._topic = topic
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        numbers = sorted(admin.list_topics(topic, timeout=20).topics[topic].partitions)
        self._ends = TopicEnds(bootstrap, topic, len(numbers))
        self.reached = dict.fromkeys(numbers, 0)
        self._consumer = self._new_consumer()

    def read(self) -> list[bytes]:
        """Returns committed values that were not returned before. Raises TimeoutError."""
        ends = self.committed()
        values: list[bytes] = []
        began = moved = time.monotonic()
        while any(self.reached[number] < end for number, end in ends.items()):
            now = time.monotonic()
            if now > began + _PATIENCE_S:
                raise TimeoutError(f"the topic does not go on at {self.reached} towards {ends}")
            if now > moved + _STILL_S:
                self._consumer.close()
                self._consumer, moved = self._new_consumer(), now
            for message in self._consumer.consume(10_000, timeout=0.2):
                if self._take(message, values):
                    moved = time.monotonic()
        return values

    def committed(self) -> dict[int, int]:
        """Start of the first open transaction, by partition."""
        return self._ends.committed()

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Any, values: list[bytes]) -> bool:
        """Takes a message; true if the position advanced."""
        from confluent_kafka import KafkaError

        before = self.reached[message.partition()] if message.topic() is not None else 0
        if message.error() is None:
            values.append(message.value())
            self.reached[message.partition()] = message.offset() + 1
        elif message.error().code() == KafkaError._PARTITION_EOF:
            self.reached[message.partition()] = message.offset()  # end of the partition, past markers
        else:
            return False
        return self.reached[message.partition()] > before

    def _new_consumer(self) -> Any:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "log_level": 0,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in self.reached.items()])
        return consumer
