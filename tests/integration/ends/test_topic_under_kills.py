"""From a topic to files, another topic and three PostgreSQL tables under kills of everything, the database and the
broker too, which ends transactions after three seconds."""

from pathlib import Path

import pytest

from examples.servers import PostgresServer, kafka_server
from tests.integration.ends import topic_counts
from tests.integration.ends.audit import Latest, Numbers
from tests.integration.ends.committed_records import CommittedRecords
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import KEYS, PARTITIONS, Feed
from tests.integration.ends.postgres_counts import NEWEST, TABLE, Reader, SqliteReader, left_over, make_table
from tests.integration.ends.several import EachTarget, InTurn, Looks


@pytest.mark.long(130)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_topic_reaches_files_topic_and_tables_with_nothing_lost_doubled_or_swapped(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """R1, R3, U12, T3, T4, T8, T12: the outage of the broker lasts longer than the broker's transaction timeout; no
    transaction lingers at the end. Every look at files, at tables, and at the newest count of each key, shows the
    rows of one vector of Kafka positions.
    """
    folder, database = str(tmp_path / "out"), str(tmp_path / "rows.db")
    SqliteReader(database)  # makes the table
    for table, key in ((TABLE, None), (NEWEST, "key")):
        make_table(postgres.url, table, key)
    with kafka_server(transaction_max_timeout_ms=3_000) as kafka:
        kafka.create_topic("numbers", PARTITIONS)
        kafka.create_topic("counted", PARTITIONS)
        feed = Feed(kafka, "numbers")

        def open_reader() -> Looks:
            looks = {
                "files": CommittedRows(folder, topic_counts.NAME, topic_counts.FILES).look,
                "topic": CommittedRecords(kafka.bootstrap, "counted").look,
                "table": Reader(postgres.url, since_last=True).look,
                "upserted": Reader(postgres.url, since_last=False, table=NEWEST).look_at_keys,
                "sqlite": SqliteReader(database).look,
            }
            return Looks(looks, seldom={"sqlite": 5})

        try:
            report = run_under_kills(
                Path(topic_counts.__file__),
                {
                    "bootstrap": kafka.bootstrap,
                    "source": "numbers",
                    "target": "counted",
                    "folder": folder,
                    "postgres": postgres.url,
                    "sqlite": database,
                },
                folder=tmp_path,
                open_reader=lambda: open_reader().look,
                make_audit=lambda: EachTarget(
                    {
                        "files": Numbers(KEYS, together=True, splits=PARTITIONS),
                        "topic": Numbers(KEYS),
                        "table": Numbers(KEYS, together=True, splits=PARTITIONS),
                        "upserted": Latest(KEYS, together=True, splits=PARTITIONS),
                        "sqlite": Numbers(KEYS, together=True, splits=PARTITIONS),
                    }
                ),
                server=InTurn(kafka, postgres),
                servers=2,
                kills=10,
                seed=4,  # the outage of eight seconds is the broker's
                outage_s=8.0,
                drain=feed.drain,
            )
        finally:
            feed.stop()
        assert report.clean, str(report)
        assert report.kills >= 10
        assert max(strike.hold_s for strike in report.strikes) == 8.0
        assert report.by_kind()["server kill"] == report.by_kind()["server stop"] == 2, str(report)
        assert report.looks > 20
        reader = CommittedRecords(kafka.bootstrap, "counted")
        assert reader.known.committed() == reader.known.written()
    assert left_over(postgres.url) == []
    staged = list((tmp_path / "checkpoints").glob("*/write-ahead/*/staged/*/*"))
    assert staged == []
