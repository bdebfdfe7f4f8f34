"""`for_each_batch` on Spark: Spark's JDBC writer fills a PostgreSQL table, in whole checkpoints, through kills."""

from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from examples.servers import PostgresServer
from tests.integration.ends import batch_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.harness import OPTIONS, run_under_kills
from tests.integration.ends.postgres_counts import KEYS, Reader, make_table


@pytest.mark.long(80)
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_sparks_own_writer_fills_a_table_once_through_kills_of_everything(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """R1, R3, T3, T12: slots, coordinators, the program that calls the function, and the database."""
    make_table(postgres.url)
    with psycopg.connect(postgres.url) as connection:
        connection.execute("create table taken (application text primary key, number bigint)")
    said = urlsplit(postgres.url)
    properties = {"user": said.username or "", "password": said.password or "", "driver": "org.postgresql.Driver"}
    jdbc = {"url": f"jdbc:postgresql://{said.hostname}:{said.port}{said.path}", "properties": properties}
    report = run_under_kills(
        Path(batch_counts.__file__),
        {"rate": 300, "url": postgres.url, "jdbc": jdbc},
        folder=tmp_path,
        open_reader=lambda: Reader(postgres.url, since_last=True).look,
        make_audit=lambda: Numbers(KEYS, together=True, ordered=False),
        server=postgres,
        kills=4,
        seed=17,
        outage_s=3.0,
        options={
            "checkpoint_interval": 3.0,
            "spark_conf": {**OPTIONS["spark_conf"], "spark.jars.packages": batch_counts.JDBC_DRIVER},
        },
    )
    assert report.clean, str(report)
    assert report.kills >= 4
    assert report.by_kind().get("program", 0) >= 1, str(report)
