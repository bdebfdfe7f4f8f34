"""A topic read under kills of everything, the broker too: each record is counted once, in the order of its key."""

import json
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer

from barrier_runtime.sinks.commit_log import committed_files
from examples.servers import KafkaServer
from state.errors import InvalidJob
from tests.integration.ends import kafka_counts
from tests.integration.ends.audit import Numbers, Seen
from tests.integration.ends.harness import run_under_kills

KEYS, PARTITIONS, RATE = 50, 2, 2_000


class Feed:
    """Writes row i = 0, 1, 2, … to partition i % PARTITIONS, once each, whatever happens to the broker."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 0,  # never given up
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._topic = topic
        self._failed: list[object] = []
        self._rows = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def drain(self) -> int:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        assert self._failed == []
        return self._rows

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.01):
            due = int((time.monotonic() - began) * RATE)
            for number in range(self._rows, due):
                row = json.dumps({"value": number, "key": number % KEYS})
                while True:
                    try:
                        self._producer.produce(
                            self._topic, row, partition=number % PARTITIONS, on_delivery=self._delivered
                        )
                        break
                    except BufferError:  # while the broker is away
                        self._producer.poll(0.1)
            self._rows = max(self._rows, due)
            self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(error)


class CommittedRows:
    """Reads each file that the commit log names once, when it is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: set[str] = set()

    def look(self) -> Seen:
        rows = []
        for url in self._names():
            if url not in self._read:
                self._read.add(url)
                rows += [json.loads(line) for line in Path(urlsplit(url).path).read_text().splitlines()]
        return Seen([row["value"] for row in rows], [row["n"] for row in rows], whole=False)

    def _names(self) -> tuple[str, ...]:
        try:
            return committed_files(str(self._folder), kafka_counts.NAME, kafka_counts.SINK)
        except InvalidJob:  # nothing is committed yet
            return ()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_topic_is_counted_through_twenty_kills_with_nothing_lost_or_doubled(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """R1, R3, U12: slots, coordinators, the whole program and the broker are killed; every look is checked."""
    kafka.create_topic("numbers", PARTITIONS)
    folder = tmp_path / "out"
    feed = Feed(kafka, "numbers")
    try:
        report = run_under_kills(
            Path(kafka_counts.__file__),
            {"bootstrap": kafka.bootstrap, "topic": "numbers", "folder": str(folder)},
            folder=tmp_path,
            open_reader=lambda: CommittedRows(folder).look,
            make_audit=lambda: Numbers(KEYS, together=True, splits=PARTITIONS),
            server=kafka,
            kills=20,
            seed=4,
            outage_s=6.0,
            drain=feed.drain,
        )
    finally:
        feed.stop()
    assert report.clean, str(report)
    assert report.kills >= 20
    assert report.looks > 50
