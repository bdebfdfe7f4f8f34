"""MariaDB, Redis and ClickHouse under kills of everything: a table that is filled, and two targets with a row per key.
Each server is killed and stopped once."""

from pathlib import Path

import pytest

from examples.servers import ClickHouseServer, MariaServer, RedisServer
from tests.integration.ends import clickhouse_counts, database_counts, mysql_counts, redis_counts
from tests.integration.ends.audit import Numbers
from tests.integration.ends.database_counts import KEYS
from tests.integration.ends.harness import run_under_kills
from tests.integration.ends.redis_counts import Overwritten
from tests.integration.ends.several import EachTarget, InTurn, Looks


@pytest.mark.long(80)
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_three_databases_show_what_they_promise_through_kills_of_everything(
    mariadb: MariaServer, redis: RedisServer, clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    """R1, R3, T3, T12: MariaDB shows whole checkpoints, the others end with the last row of every key; fences refuse
    zombies, and versions keep them below."""
    mysql_counts.make_table(mariadb)
    clickhouse_counts.make_table(clickhouse.port)

    def open_reader() -> Looks:
        return Looks(
            {
                "mysql": mysql_counts.Reader(mariadb).look,
                "redis": lambda: redis_counts.look(redis.url),
                "clickhouse": lambda: clickhouse_counts.look(clickhouse.port),
            }
        )

    report = run_under_kills(
        Path(database_counts.__file__),
        {"rate": 1_000, "mysql": mariadb.url, "redis": redis.url, "clickhouse": clickhouse.url},
        folder=tmp_path,
        open_reader=lambda: open_reader().look,
        make_audit=lambda: EachTarget(
            {"mysql": Numbers(KEYS, together=True), "redis": Overwritten(KEYS), "clickhouse": Overwritten(KEYS)}
        ),
        server=InTurn(mariadb, redis, clickhouse),
        servers=3,
        kills=12,
        seed=41,
        outage_s=4.0,
    )
    assert report.clean, str(report)
    assert report.kills >= 12
    assert report.by_kind()["server kill"] == report.by_kind()["server stop"] == 3, str(report)
    assert report.looks > 20
    assert mysql_counts.left_over(mariadb) == []
    assert clickhouse_counts.fences(clickhouse.port) == 1
