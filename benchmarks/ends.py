"""Throughput and visible latency of each target at short checkpoints; throughput of Kinesis as source.

    python -m benchmarks ends [END …] [--rows 1000000] [--rate 2000] [--seconds 15]

Targets are real servers on this machine. Two jobs run per target, on Spark with parallelism 2 and a checkpoint every
500 ms to a local folder. The first job writes rows (three columns) at full speed, timed from the moment all slots run
until all rows are visible. The second job writes at an even pace; visible latency is per row, from the intended
emission until the commit of the row's checkpoint is confirmed. `kinesis` is read, not written: existing records go to a
folder at full speed.
"""

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from barrier_runtime import (
    BatchCheckpoint,
    ClickHouseSink,
    Dataflow,
    DeltaSink,
    DeltaUpsertSink,
    IcebergSink,
    JsonlSink,
    KafkaSink,
    KinesisSource,
    MySQLSink,
    ParquetSink,
    PostgresSink,
    RedisUpsertSink,
    TwoPhaseCommitSink,
)
from barrier_runtime.coordinator.status.status import JobStatus
from benchmarks.machine import describe
from examples.servers import (
    clickhouse_server,
    iceberg_rest_server,
    kafka_server,
    mariadb_server,
    postgres_server,
    redis_server,
    s3_server,
)

FOLDER = Path("build/bench/ends")
INTERVAL_S = 0.5

_KINESIS_ROWS = 50_000  # moto's server takes this many in some seconds

Target: TypeAlias = TwoPhaseCommitSink | Callable[[Any, BatchCheckpoint], None]  # a function: for `for_each_batch`
NewTarget: TypeAlias = Callable[[], Target]


def folder(name: str) -> str:
    return str((FOLDER / "out" / name).resolve())


@contextlib.contextmanager
def kafka(guarantee: str) -> Iterator[NewTarget]:
    with kafka_server() as server:

        def new() -> TwoPhaseCommitSink:
            topic = f"rows-{time.monotonic_ns()}"
            server.create_topic(topic, 2)
            return KafkaSink(server.bootstrap, topic, key="key", guarantee=guarantee)  # type: ignore[arg-type]

        yield new


@contextlib.contextmanager
def postgres(**options: object) -> Iterator[NewTarget]:
    import psycopg

    with postgres_server() as server:

        def new() -> TwoPhaseCommitSink:
            table = f"rows_{time.monotonic_ns()}"
            unique = ", unique (key)" if "key" in options else ""
            with psycopg.connect(server.url) as connection:
                connection.execute(f"create table {table} (value bigint, key bigint, price double precision{unique})")
            return PostgresSink(server.url, table, **options)  # type: ignore[arg-type]

        yield new


@contextlib.contextmanager
def mariadb(**options: object) -> Iterator[NewTarget]:
    with mariadb_server() as server:

        def new() -> TwoPhaseCommitSink:
            table = f"rows_{time.monotonic_ns()}"
            key = "not null primary key" if "key" in options else ""
            with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute(f"create table {table} (value bigint, `key` bigint {key}, price double)")
            return MySQLSink(server.url, table, **options)  # type: ignore[arg-type]

        yield new


@contextlib.contextmanager
def redis(*, deterministic: bool = False, after_decision: bool = False) -> Iterator[NewTarget]:
    with redis_server() as server:
        yield lambda: RedisUpsertSink(server.url, key="key", deterministic=deterministic, after_decision=after_decision)


@contextlib.contextmanager
def clickhouse() -> Iterator[NewTarget]:
    from clickhouse_driver import Client

    with clickhouse_server() as server:

        def new() -> TwoPhaseCommitSink:
            table = f"rows_{time.monotonic_ns()}"
            with Client("127.0.0.1", port=server.port) as database:
                database.execute(
                    f"create table {table} (value Int64, key Int64, price Float64, _version UInt64) "
                    "engine = ReplacingMergeTree(_version) order by key"
                )
            return ClickHouseSink(server.url, table, key="key", deterministic=True)

        yield new


@contextlib.contextmanager
def iceberg_rest() -> Iterator[NewTarget]:
    with iceberg_rest_server() as server:
        yield lambda: IcebergSink(f"db.rows_{time.monotonic_ns()}", properties=server.properties)


@contextlib.contextmanager
def iceberg_sqlite() -> Iterator[NewTarget]:
    catalog = {"type": "sql", "uri": f"sqlite:///{FOLDER.resolve()}/catalog.db", "warehouse": f"file://{folder('ice')}"}
    yield lambda: IcebergSink(f"db.rows_{time.monotonic_ns()}", properties=catalog)


def sparks_parquet() -> Target:
    """Spark's own writer, which appends each batch and keeps no batch number."""
    url = folder(str(time.monotonic_ns()))

    def write(rows: Any, checkpoint: BatchCheckpoint) -> None:
        rows.write.mode("append").parquet(url)

    return write


@contextlib.contextmanager
def s3(sink: Callable[[str], TwoPhaseCommitSink]) -> Iterator[NewTarget]:
    with s3_server() as server:
        yield lambda: sink(f"{server.url}/{time.monotonic_ns()}")


def local(sink: Callable[[str], TwoPhaseCommitSink]) -> contextlib.AbstractContextManager[NewTarget]:
    return contextlib.nullcontext(lambda: sink(folder(str(time.monotonic_ns()))))


TARGETS: dict[str, Callable[[], contextlib.AbstractContextManager[NewTarget]]] = {
    "parquet-folder": lambda: local(ParquetSink),
    "jsonl-folder": lambda: local(JsonlSink),
    "delta-folder": lambda: local(DeltaSink),
    "delta-folder-upsert": lambda: local(lambda url: DeltaUpsertSink(url, key=["key"])),
    "kafka": lambda: kafka("exactly_once"),
    "kafka-at-least-once": lambda: kafka("at_least_once"),
    "postgres": lambda: postgres(),
    "postgres-upsert": lambda: postgres(mode="upsert", key=["key"]),
    "mariadb": lambda: mariadb(),
    "mariadb-upsert": lambda: mariadb(mode="upsert", key=["key"]),
    "redis-upsert": lambda: redis(deterministic=True),
    "redis-after-decision": lambda: redis(after_decision=True),
    "s3-parquet": lambda: s3(ParquetSink),
    "s3-delta": lambda: s3(DeltaSink),
    "clickhouse-upsert": clickhouse,
    "iceberg-sqlite": iceberg_sqlite,
    "iceberg-rest": iceberg_rest,
    "for-each-batch": lambda: contextlib.nullcontext(sparks_parquet),
}


def flow_into(target: Target, rate: float, rows: int) -> Dataflow:
    flow = Dataflow(f"ends-{time.monotonic_ns()}")
    numbers = flow.rate("numbers", rate, rows, keys=10_000)
    columns = {"value": "value", "key": "key", "price": pc.multiply(pc.field("value"), 0.25)}
    if isinstance(target, TwoPhaseCommitSink):
        numbers.select(columns).sink("out", target)
    else:
        numbers.select(columns).for_each_batch(target, name="out")
    return flow


@contextlib.contextmanager
def flow_from_kinesis(rows: int) -> Iterator[Dataflow]:
    """Flow from a stream of two shards on moto's server, with `rows` records of 100 bytes."""
    with s3_server() as server:  # also serves Kinesis
        import boto3

        client, stream = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1"), "rows"
        client.create_stream(StreamName=stream, ShardCount=2)
        for begin in range(0, rows, 500):
            many = range(begin, min(begin + 500, rows))
            records = [{"Data": b"%0100d" % number, "PartitionKey": str(number)} for number in many]
            client.put_records(StreamName=stream, Records=records)
        flow = Dataflow(f"ends-{time.monotonic_ns()}")
        source = KinesisSource(stream, region="us-east-1", endpoint=server.endpoint, until="latest")
        flow.source("records", source).sink("out", JsonlSink(folder(str(time.monotonic_ns()))))
        yield flow


def measured(spark: SparkSession, flow: Dataflow) -> tuple[float, JobStatus]:
    """(Records per second until all are visible, the job's last status)."""
    checkpoints = str((FOLDER / "checkpoints" / flow.name).resolve())
    with flow.start(spark=spark, parallelism=2, checkpoints=checkpoints, checkpoint_interval=INTERVAL_S) as handle:
        while handle.status().phase not in ("running", "finished"):
            time.sleep(0.01)
        began = time.monotonic()
        status = handle.wait(timeout=600).status
        took = time.monotonic() - began
    return status.records / took, status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*TARGETS, "kinesis"]
    parser.add_argument("sinks", nargs="*", default=names, metavar="END", help=", ".join(names))
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the job that goes as fast as it can")
    parser.add_argument("--rate", type=float, default=2_000, help="rows per second of the paced job")
    parser.add_argument("--seconds", type=float, default=15, help="length of the paced job")


def measure_all(chosen: argparse.Namespace) -> None:
    """Prints a table, with a line per finished target."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print(describe())
    print("| target | rows/s | visible p50 ms | p99 ms |\n|---|---|---|---|", flush=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):  # of the S3 server; Spark's workers inherit them
        os.environ.setdefault(name, "test")
    spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        for name in chosen.sinks:
            if name == "kinesis":
                with flow_from_kinesis(min(chosen.rows, _KINESIS_ROWS)) as flow:
                    print(f"| {name} | {measured(spark, flow)[0]:,.0f} | | |", flush=True)
                continue
            with TARGETS[name]() as new:
                fast, _ = measured(spark, flow_into(new(), 1e9, chosen.rows))
                paced = flow_into(new(), chosen.rate, int(chosen.rate * chosen.seconds))
                _, status = measured(spark, paced)
            visible = status.latency["out:visible"]
            print(f"| {name} | {fast:,.0f} | {visible.p50:.0f} | {visible.p99:.0f} |", flush=True)
    finally:
        spark.stop()
