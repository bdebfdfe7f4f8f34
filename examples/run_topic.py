"""A Kafka topic as its users read it: what is committed, and nothing else."""

import time

_PATIENCE_S = 60.0


class TopicReader:
    """Reads on where it was; in the order of each partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka.admin import AdminClient

        client = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(client)
        self._consumer = Consumer(
            {
                **client,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        numbers = self._admin.list_topics(topic, timeout=20).topics[topic].partitions
        self._partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        self._reached = dict.fromkeys(numbers, 0)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in numbers])

    def read(self) -> list[bytes]:
        """The values that are committed now and were not given before. Raises TimeoutError."""
        from confluent_kafka import KafkaError

        ends = self._ends()
        values = []
        deadline = time.monotonic() + _PATIENCE_S
        while any(self._reached[number] < end for number, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the topic does not go on at {self._reached} towards {ends}")
            for message in self._consumer.consume(10_000, timeout=0.2):
                if message.error() is None:
                    values.append(message.value())
                    self._reached[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self._reached[message.partition()] = message.offset()  # beyond the marks of transactions
        return values

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[int, int]:
        """Of what is committed: the first open transaction ends it."""
        from confluent_kafka import IsolationLevel
        from confluent_kafka.admin import OffsetSpec

        asked = self._admin.list_offsets(
            {partition: OffsetSpec.latest() for partition in self._partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=20,
        )
        return {partition.partition: future.result().offset for partition, future in asked.items()}
