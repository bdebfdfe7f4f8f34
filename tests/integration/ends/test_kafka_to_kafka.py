"""From topic to topic under kills of everything, the broker too, which ends transactions after three seconds."""

import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from examples.servers import kafka_server
from examples.servers.kafka_ends import TopicEnds
from tests.integration.ends import kafka_to_kafka
from tests.integration.ends.audit import Numbers, Seen
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import KEYS, PARTITIONS, Feed


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
        deadline = time.monotonic() + 10
        while any(self._ends[number] < stable[number] for number in stable):
            if time.monotonic() > deadline:
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


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_topic_reaches_another_through_kills_with_nothing_lost_doubled_or_swapped(tmp_path: Path) -> None:
    """R1, R3, T3, T4, T12: one outage lasts longer than the broker lets any transaction last; none lingers at the
    end."""
    with kafka_server(transaction_max_timeout_ms=3_000) as kafka:
        kafka.create_topic("numbers", PARTITIONS)
        kafka.create_topic("counted", PARTITIONS)
        feed = Feed(kafka, "numbers")
        try:
            report = run_under_kills(
                Path(kafka_to_kafka.__file__),
                {"bootstrap": kafka.bootstrap, "source": "numbers", "target": "counted"},
                folder=tmp_path,
                open_reader=lambda: CommittedRecords(kafka.bootstrap, "counted").look,
                make_audit=lambda: Numbers(KEYS),
                server=kafka,
                kills=8,
                seed=21,
                outage_s=8.0,
                drain=feed.drain,
            )
        finally:
            feed.stop()
        assert report.clean, str(report)
        assert report.kills >= 8
        assert report.looks > 50
        reader = CommittedRecords(kafka.bootstrap, "counted")
        assert reader.known.committed() == reader.known.written()
    staged = list((tmp_path / "checkpoints").glob("*/write-ahead/*/staged/*/*"))
    assert staged == []
