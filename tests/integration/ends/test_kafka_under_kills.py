"""From a topic to files and to another topic under kills of everything, the broker too, which ends transactions after
three seconds."""

from pathlib import Path

import pytest

from examples.servers import kafka_server
from tests.integration.ends import kafka_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_records import CommittedRecords
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.kafka_feed import KEYS, PARTITIONS, Feed
from tests.integration.ends.several import EachTarget, Looks


@pytest.mark.long(100)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_a_topic_reaches_files_and_another_topic_with_nothing_lost_doubled_or_swapped(tmp_path: Path) -> None:
    """R1, R3, U12, T3, T4, T12: one outage lasts longer than the broker lets any transaction last; none lingers at the
    end."""
    folder = str(tmp_path / "out")
    with kafka_server(transaction_max_timeout_ms=3_000) as kafka:
        kafka.create_topic("numbers", PARTITIONS)
        kafka.create_topic("counted", PARTITIONS)
        feed = Feed(kafka, "numbers")

        def open_reader() -> Looks:
            files = CommittedRows(folder, kafka_counts.NAME, kafka_counts.FILES)
            return Looks({"files": files.look, "topic": CommittedRecords(kafka.bootstrap, "counted").look})

        try:
            report = run_under_kills(
                Path(kafka_counts.__file__),
                {"bootstrap": kafka.bootstrap, "source": "numbers", "target": "counted", "folder": folder},
                folder=tmp_path,
                open_reader=lambda: open_reader().look,
                make_audit=lambda: EachTarget(
                    {"files": Numbers(KEYS, together=True, splits=PARTITIONS), "topic": Numbers(KEYS)}
                ),
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
        assert report.looks > 20
        reader = CommittedRecords(kafka.bootstrap, "counted")
        assert reader.known.committed() == reader.known.written()
    staged = list((tmp_path / "checkpoints").glob("*/write-ahead/*/staged/*/*"))
    assert staged == []
