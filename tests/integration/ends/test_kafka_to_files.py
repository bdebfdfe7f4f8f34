"""A topic read under kills of everything, the broker too: each record is counted once, in the order of its key."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from barrier_runtime.sinks.commit_log import committed_files
from examples.servers import KafkaServer
from state.errors import InvalidJob
from tests.integration.ends import kafka_counts
from tests.integration.ends.audit import Numbers, Seen
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import KEYS, PARTITIONS, Feed


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
def test_a_topic_is_counted_through_kills_of_everything_with_nothing_lost_or_doubled(
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
            kills=8,
            seed=4,
            outage_s=6.0,
            drain=feed.drain,
        )
    finally:
        feed.stop()
    assert report.clean, str(report)
    assert report.kills >= 8
    assert report.looks > 50
