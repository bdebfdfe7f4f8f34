"""S3, MariaDB, Redis and ClickHouse under kills of everything: a Delta table and files, a table that is filled, and two
targets with a row per key. Each server is killed and stopped once."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.s3.by_obstore import ObstoreS3Store
from examples.servers import ClickHouseServer, MariaServer, RedisServer, S3Server
from tests.integration.ends import clickhouse_counts, database_counts, mysql_counts, redis_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.committed_rows import CommittedRows
from tests.integration.ends.database_counts import KEYS
from tests.integration.ends.delta_rows import HTTP, TableRows
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.redis_counts import Overwritten
from tests.integration.ends.several import EachTarget, InTurn, Looks


@pytest.mark.long(130)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_three_databases_and_s3_show_what_they_promise_through_kills_of_everything(
    s3: S3Server, mariadb: MariaServer, redis: RedisServer, clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    """R1, R3, T3, T10, T12: every version of the Delta table that is read, every look at the commit log of the files,
    and MariaDB show whole checkpoints, Redis and ClickHouse end with the last row of every key; fences refuse zombies,
    and versions keep them below. No upload is left."""
    mysql_counts.make_table(mariadb)
    clickhouse_counts.make_table(clickhouse.port)
    table_url, files_url = f"{s3.url}/table", f"{s3.url}/files"

    def open_reader() -> Looks:
        files = CommittedRows(files_url, database_counts.NAME, database_counts.FILES)
        return Looks(
            {
                "table": TableRows(table_url).look,
                "files": files.look,
                "mysql": mysql_counts.Reader(mariadb).look,
                "redis": lambda: redis_counts.look(redis.url),
                "clickhouse": lambda: clickhouse_counts.look(clickhouse.port),
            }
        )

    servers = {"mysql": mariadb.url, "redis": redis.url, "clickhouse": clickhouse.url}
    report = run_under_kills(
        Path(database_counts.__file__),
        {"rate": 500, "table": table_url, "files": files_url, **servers},
        folder=tmp_path,
        open_reader=lambda: open_reader().look,
        make_audit=lambda: EachTarget(
            {
                "table": Numbers(KEYS, together=True, ordered=False),
                "files": Numbers(KEYS, together=True),
                "mysql": Numbers(KEYS, together=True),
                "redis": Overwritten(KEYS),
                "clickhouse": Overwritten(KEYS),
            }
        ),
        server=InTurn(s3, mariadb, redis, clickhouse),
        servers=4,
        kills=14,
        seed=177,  # the outage of eight seconds is a killed S3
        outage_s=8.0,
        options={"checkpoint_interval": 1.0},  # the S3 server of the tests takes 5 to 20 ms for a request
    )
    assert report.clean, str(report)
    assert report.kills >= 14
    assert max(strike.hold_s for strike in report.strikes) == 8.0
    assert report.by_kind()["server kill"] == report.by_kind()["server stop"] == 4, str(report)
    assert report.looks > 20
    assert mysql_counts.left_over(mariadb) == []
    assert clickhouse_counts.fences(clickhouse.port) == 1
    check_table(table_url, report.rows)
    check_files(files_url)


def check_table(url: str, rows: int) -> None:
    """A commit per checkpoint: no file that the table does not know, and no surplus row."""
    table, store = DeltaTable(url, storage_options=HTTP), open_store(url)
    known = {uri.rsplit("/", 1)[-1] for uri in table.file_uris()}
    assert {info.key for info in store.list("") if not info.key.startswith("_delta_log/")} == known
    adds = pa.table(table.get_add_actions(flatten=True)).column("num_records").to_pylist()
    assert sum(adds) == rows


def check_files(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, ObstoreS3Store)
    assert list(store.list("_staging/")) == []
    named = {name.rsplit("/", 1)[-1] for name in committed_files(url)}
    assert {info.key for info in store.list("part-")} == named, "nothing visible that the log does not name"
