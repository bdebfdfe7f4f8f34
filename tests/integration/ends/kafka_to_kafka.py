"""A topic of numbers, counted per key, into another topic: the job of test_kafka_to_kafka; its reader."""

import json
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from barrier_runtime import Dataflow, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from examples.servers.kafka_ends import TopicEnds
from tests.integration.ends.audit import Seen
from tests.integration.ends.kafka_feed import PARTITIONS, read_numbers

NAME, SINK = "kafka-to-kafka", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = read_numbers(flow, settings["bootstrap"], settings["source"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, KafkaSink(settings["bootstrap"], settings["target"], key="key"))
    return flow


class CommittedRecords:
    """Reads what is committed and new. Raises when the broker does not answer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
        self._ends = dict.fromkeys(range(PARTITIONS), 0)
        self._client = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 0}
        self.known = TopicEnds(bootstrap, topic, PARTITIONS)
        self._consumer = self._consumer_from(self._ends)

    def _consumer_from(self, offsets: dict[int, int]) -> Consumer:
        consumer = Consumer(
            {
                **self._client,
                "group.id": "watch",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )
        consumer.assign(
            [TopicPartition(place.topic, place.partition, offsets[place.partition]) for place in self._places]
        )
        return consumer

    def look(self) -> Seen:
        rows: list[dict[str, int]] = []
        stable = self.known.committed()
        fresh_consumer_at = time.monotonic() + 10
        while any(self._ends[number] < stable[number] for number in stable):
            if time.monotonic() > fresh_consumer_at:
                # What came must not be lost; the rest comes with the next look, to a fresh consumer
                self._consumer.close()
                self._consumer = self._consumer_from(self._ends)
                break
            for message in self._consumer.consume(1_000, timeout=0.1):
                if message.error() is None:
                    rows.append(json.loads(message.value()))
                    self._ends[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self._ends[message.partition()] = message.offset()
        return Seen([row["value"] for row in rows], [row["n"] for row in rows], whole=False)
