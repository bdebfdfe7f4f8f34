"""Counted numbers reach three PostgreSQL tables through kills of everything, the database too."""

from pathlib import Path

import pytest

from examples.servers import KafkaServer, PostgresServer
from tests.integration.ends import postgres_counts
from tests.integration.ends.audit import Latest, Numbers
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import PARTITIONS, Feed
from tests.integration.ends.postgres_counts import KEYS, NEWEST, PREPARED, TABLE, Reader, left_over, make_table
from tests.integration.ends.several import EachTarget, Looks


@pytest.mark.long(90)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_topic_reaches_tables_through_kills_of_everything_as_each_mode_promises(
    kafka: KafkaServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    """R1, R3, T3, T8, T12: every look at staged rows, and at the newest count of each key, shows what one vector of
    Kafka positions gives; rows of prepared transactions appear subtask by subtask, in their order, each once."""
    kafka.create_topic("numbers", PARTITIONS)
    for table, key in ((TABLE, None), (NEWEST, "key"), (PREPARED, None)):
        make_table(postgres.url, table, key)
    feed = Feed(kafka, "numbers")

    def open_reader() -> Looks:
        looks = {
            "staged": Reader(postgres.url, since_last=True).look,
            "upserted": Reader(postgres.url, since_last=False, table=NEWEST).look_at_keys,
            "prepared": Reader(postgres.url, since_last=False, table=PREPARED).look,
        }
        return Looks(looks, seldom={"prepared": 5})

    try:
        report = run_under_kills(
            Path(postgres_counts.__file__),
            {"bootstrap": kafka.bootstrap, "topic": "numbers", "url": postgres.url},
            folder=tmp_path,
            open_reader=lambda: open_reader().look,
            make_audit=lambda: EachTarget(
                {
                    "staged": Numbers(KEYS, together=True, splits=PARTITIONS),
                    "upserted": Latest(KEYS, together=True, splits=PARTITIONS),
                    "prepared": Numbers(KEYS),
                }
            ),
            server=postgres,
            kills=10,
            seed=11,
            outage_s=6.0,
            drain=feed.drain,
        )
    finally:
        feed.stop()
    assert report.clean, str(report)
    assert report.kills >= 10
    assert report.looks > 20
    assert left_over(postgres.url) == []
