"""Counted numbers into a table of MariaDB, and the newest of each key into Redis and ClickHouse: the job of
test_databases_under_kills."""

from typing import Any

from barrier_runtime import ClickHouseSink, Dataflow, MySQLSink, RedisUpsertSink, count
from tests.integration.ends import clickhouse_counts, mysql_counts, redis_counts

KEYS = 50


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow("database-counts")
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=KEYS)
    counted = numbers.key_by("key").aggregate("count", n=count()).select(["value", "key", "n"])
    counted.sink("mysql", MySQLSink(settings["mysql"], mysql_counts.TABLE))
    prefix, table = redis_counts.PREFIX, clickhouse_counts.TABLE
    counted.sink("redis", RedisUpsertSink(settings["redis"], key="key", prefix=prefix, deterministic=True))
    counted.sink("clickhouse", ClickHouseSink(settings["clickhouse"], table, key="key", deterministic=True))
    return flow
