"""A topic read under kills of everything, the broker too: each record is counted once, in the order of its key."""

from pathlib import Path

import pytest

from examples.servers import KafkaServer
from tests.integration.ends import kafka_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import KEYS, PARTITIONS, Feed


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
            open_reader=lambda: CommittedRows(str(folder), kafka_counts.NAME, kafka_counts.SINK).look,
            make_audit=lambda: Numbers(KEYS, together=True, splits=PARTITIONS),
            server=kafka,
            kills=8,
            seed=14,
            outage_s=6.0,
            drain=feed.drain,
        )
    finally:
        feed.stop()
    assert report.clean, str(report)
    assert report.kills >= 8
    assert report.looks > 20
