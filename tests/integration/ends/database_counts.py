"""Counted numbers into a table of MariaDB, the newest per key into Redis and ClickHouse, and on S3 into a Delta table
and into Parquet files: the job of test_databases_and_s3_under_kills."""

from typing import Any

from barrier_runtime import ClickHouseSink, Dataflow, DeltaSink, MySQLSink, ParquetSink, RedisUpsertSink, count
from tests.integration.ends import clickhouse_counts, mysql_counts, redis_counts

NAME, FILES, KEYS = "database-counts", "files", 50


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=KEYS)
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(FILES, ParquetSink(settings["files"]))
    rows = counted.select(["value", "key", "n"])  # the targets below have no nanoseconds, which `intended_at` has
    rows.sink("table", DeltaSink(settings["table"]))
    rows.sink("mysql", MySQLSink(settings["mysql"], mysql_counts.TABLE))
    prefix, table = redis_counts.PREFIX, clickhouse_counts.TABLE
    rows.sink("redis", RedisUpsertSink(settings["redis"], key="key", prefix=prefix, deterministic=True))
    rows.sink("clickhouse", ClickHouseSink(settings["clickhouse"], table, key="key", deterministic=True))
    return flow
