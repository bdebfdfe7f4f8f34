"""Reader of a topic as users read: committed records only, each once, in order within a partition."""

import pyarrow as pa
import pyarrow.json

_BATCH = 20_000


class Topic:
    """All committed records of a topic, in order within a partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self.name = topic
        self.partitions = partitions
        self.ended: set[int] = set()  # partitions whose last committed record was read
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # deleted unread: the judge must not skip rows
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    def read(self) -> pa.Table | None:
        """New rows, at most some thousand; None: no rows."""
        from confluent_kafka import KafkaError

        values = []
        for message in self._consumer.consume(_BATCH, timeout=0.05):
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(message.partition())
            else:
                raise OSError(f"topic {self.name}: {error}")
        return parsed_lines(b"\n".join(values)) if values else None

    def close(self) -> None:
        self._consumer.close()


def parsed_lines(data: bytes) -> pa.Table:
    return pyarrow.json.read_json(pa.BufferReader(data))
