"""The example `bids` between a real Kafka and a folder of Parquet files, with verdict."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from examples import bids
from examples.bids_data import answer, compare, events_of, heartbeat
from examples.run_check import Verdict
from examples.run_feeds import KafkaFeed
from examples.run_files import ParquetFolder
from examples.run_stage import Stage
from examples.run_topic import TopicReader
from examples.servers import kafka_server

_EVENTS = 150_000
_PER_SECOND = 5_000  # feeding rate: five times the rate of the events' own times
_PARTITIONS = 4
_TOPICS = ("hot", "highest", "new_sellers")


class Bids(Stage):
    seconds = _EVENTS / _PER_SECOND

    def __init__(self, stack: contextlib.ExitStack, folder: Path, seconds: float) -> None:
        kafka = stack.enter_context(kafka_server())
        for topic in ("events", *_TOPICS):
            kafka.create_topic(topic, partitions=_PARTITIONS)
        events = events_of(min(_EVENTS, round(seconds * _PER_SECOND)))
        self._answer = answer(events)
        output = folder.parent / "run" / "output"
        self.servers = [kafka]
        self.flow = bids.build(kafka.bootstrap, str(output))
        self.records = len(events)
        bodies = [msgspec.json.encode(event) for event in events]
        last = msgspec.json.encode(heartbeat(events))
        self.feed = KafkaFeed(kafka.bootstrap, "events", _PARTITIONS, bodies, seconds, last)
        self._readers = {
            topic: stack.enter_context(contextlib.closing(TopicReader(kafka.bootstrap, topic))) for topic in _TOPICS
        }
        self._rows: dict[str, list[dict[str, Any]]] = {topic: [] for topic in _TOPICS}
        self._raises = ParquetFolder(output / "raises")

    def visible_rows(self) -> int:
        self._read()
        return sum(map(len, self._rows.values())) + self._raises.count()

    def expected_rows(self) -> int:
        return sum(map(len, self._answer.values()))

    def check(self) -> Verdict:
        self._read()
        return compare(self._answer, {**self._rows, "raises": self._raises.rows()})

    def _read(self) -> None:
        for topic, reader in self._readers.items():
            self._rows[topic] += map(msgspec.json.decode, reader.read())
