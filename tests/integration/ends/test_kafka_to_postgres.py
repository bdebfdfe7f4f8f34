"""Counted numbers reach a PostgreSQL table through kills of everything, the database too, as whole checkpoints."""

from pathlib import Path

import pytest

from examples.servers import KafkaServer, PostgresServer
from tests.integration.ends import postgres_counts
from tests.integration.ends.audit import Latest, Numbers
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import PARTITIONS, Feed
from tests.integration.ends.postgres_counts import KEYS, Reader, left_over, make_table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_topic_reaches_a_table_through_kills_of_everything_in_whole_checkpoints(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    """R1, R3, T3, T8, T12: every look at the table shows what one vector of Kafka positions gives."""
    kafka.create_topic("numbers", PARTITIONS)
    make_table(postgres.url)
    feed = Feed(kafka, "numbers")
    try:
        report = run_under_kills(
            Path(postgres_counts.__file__),
            {"bootstrap": kafka.bootstrap, "topic": "numbers", "url": postgres.url, "sink": {}},
            folder=tmp_path,
            open_reader=lambda: Reader(postgres.url, since_last=True).look,
            make_audit=lambda: Numbers(KEYS, together=True, splits=PARTITIONS),
            server=postgres,
            kills=8,
            seed=11,
            outage_s=6.0,
            drain=feed.drain,
        )
    finally:
        feed.stop()
    assert report.clean, str(report)
    assert report.kills >= 8
    assert report.looks > 20
    assert left_over(postgres.url) == []


def test_an_upserted_table_shows_whole_checkpoints_through_kills_of_everything(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """R1, R3, T12: the newest count of each key, all keys as of one vector of source positions."""
    make_table(postgres.url, key="key")
    report = run_under_kills(
        Path(postgres_counts.__file__),
        {"rate": 1_000, "url": postgres.url, "sink": {"mode": "upsert", "key": ["key"]}},
        folder=tmp_path,
        open_reader=lambda: Reader(postgres.url, since_last=False).look_at_keys,
        make_audit=lambda: Latest(KEYS, together=True),
        server=postgres,
        kills=5,
        seed=12,
        outage_s=3.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 5
    assert left_over(postgres.url) == []
