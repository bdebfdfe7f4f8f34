"""The reader of the kill tests that write a topic of Kafka: committed records only."""

import json
import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from barrier_runtime.connectors.kafka.clients import put_away
from examples.servers.kafka_ends import TopicEnds
from tests.integration.ends.audit import Seen
from tests.integration.ends.kafka_feed import PARTITIONS

_SILENT_S = 10.0  # silence of a consumer with rows to read, before another replaces it …
_SILENT_MOST_S = 80.0  # … with twice the patience: a new consumer needs many seconds on a busy machine


class CommittedRecords:
    """Reads the new committed records. Raises when the broker does not answer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        self._ends = dict.fromkeys(range(PARTITIONS), 0)
        self._client = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 0}
        self.known = TopicEnds(bootstrap, topic, PARTITIONS)
        self._stable = dict(self._ends)
        self._heard: list[str] = []
        self._consumers = 0
        self._patience_s = _SILENT_S
        self._consumer = self._new_consumer()

    def __str__(self) -> str:
        """Position of the reader, for reports of a wait."""
        return (
            f"read up to {self._ends}, committed are {self._stable} of {self.known.written()}; consumer "
            f"{self._consumers}, silent for up to {self._patience_s:.0f} s; heard last: {self._heard[-3:]}"
        )

    def _new_consumer(self) -> Consumer:
        consumer = Consumer(
            {
                **self._client,
                "group.id": "watch",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # never somewhere else
                "fetch.wait.max.ms": 20,
                "error_cb": lambda error: self._heard.append(error.str()),
            }
        )
        consumer.assign(
            [TopicPartition(place.topic, place.partition, self._ends[place.partition]) for place in self._places]
        )
        self._consumers += 1
        return consumer

    def look(self) -> Seen:
        rows: list[dict[str, int]] = []
        stable = self._stable = self.known.committed()
        silent_since = time.monotonic()
        while any(self._ends[number] < stable[number] for number in stable):
            read = dict(self._ends)
            for message in self._consumer.consume(1_000, timeout=0.1):
                if message.error() is None:
                    rows.append(json.loads(message.value()))
                    self._ends[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self._ends[message.partition()] = message.offset()
                else:
                    self._heard.append(message.error().str())
            if self._ends != read:
                silent_since, self._patience_s = time.monotonic(), _SILENT_S
            elif time.monotonic() - silent_since > self._patience_s:
                # Rows read so far must not be lost; a fresh consumer reads the rest at the next look
                silent, self._consumer = self._consumer, self._new_consumer()
                put_away(silent)  # closing may wait for a broker
                self._patience_s = min(_SILENT_MOST_S, 2 * self._patience_s)
                break
        return Seen([row["value"] for row in rows], [row["n"] for row in rows], whole=False)
