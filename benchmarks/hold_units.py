"""Units whose longest hold `benchmarks holds` measures: large parts of inputs, outputs and state."""

import contextlib
import datetime
import gzip
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime import CollectSink, CsvSink, Dataflow, KafkaSink, KinesisSource, SqliteSink, count
from barrier_runtime.bootstrap import write_savepoint
from barrier_runtime.connectors.delta.source import DeltaSource
from barrier_runtime.connectors.files.sink.sink import JsonlSink, ParquetSink
from barrier_runtime.connectors.files.source.binary import BinarySource
from barrier_runtime.connectors.files.source.csv import CsvSource
from barrier_runtime.connectors.files.source.jsonl import JsonlSource
from barrier_runtime.connectors.files.source.lines import TextSource
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.iceberg.source import IcebergSource
from barrier_runtime.connectors.kafka.source.source import KafkaSource
from barrier_runtime.connectors.memory.iterator import IteratorSource
from barrier_runtime.connectors.memory.poll import PollSource
from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource
from barrier_runtime.connectors.rabbitmq.source import RabbitMQSource
from barrier_runtime.connectors.sink import TwoPhaseCommitSink
from barrier_runtime.connectors.source import Source
from benchmarks import ends
from benchmarks.holding import Hold, held, held_by_driver, held_by_lookup, held_by_sink, longest_callback
from examples.servers.kafka import kafka_server
from examples.servers.postgres import postgres_server
from examples.servers.rabbitmq import rabbitmq_server
from examples.servers.s3 import s3_server

LARGE = 8_000_000  # bytes of a large row
_BATCH = 65_536  # rows of a batch of a source that is behind

Measure = Callable[[bool], Hold]  # `barrier`: a barrier waits at every call
Unit = Callable[[Path, int], contextlib.AbstractContextManager[Measure]]
Reads = Callable[[Path, int], contextlib.AbstractContextManager[Source]]

_LARGE_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def of_reader(reads: Reads) -> Unit:
    @contextlib.contextmanager
    def unit(folder: Path, rows: int) -> Iterator[Measure]:
        with reads(folder, rows) as source:
            yield lambda barrier: held(source, rows, barrier)

    return unit


def _table(rows: int) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    return pa.table({"id": numbers, "text": numbers.cast(pa.string())})


# ---------------------------------------------------------------- files and tables


@contextlib.contextmanager
def many_files(folder: Path, rows: int) -> Iterator[Measure]:
    """A folder of `rows` files with a row of JSON each."""
    data = folder / "data"
    data.mkdir()
    for at in range(rows):
        (data / f"{at:06}.jsonl").write_text(f'{{"id": {at}}}\n')
    source = JsonlSource(str(data), schema=pa.schema([("id", pa.int64())])).named("rows")
    yield lambda barrier: held_by_driver(source, folder, barrier)


def large_lines(name: str, head: str, line: str, source: Callable[[str], Source]) -> Reads:
    """A file of `rows` lines of 8 MB: `line` with `ID` and `TEXT` replaced. `.gz`: compressed."""

    @contextlib.contextmanager
    def reads(folder: Path, rows: int) -> Iterator[Source]:
        texts = [line.replace("ID", str(at)).replace("TEXT", "x" * LARGE) for at in range(rows)]
        data = "".join([head, *texts]).encode()
        (folder / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
        yield source(str(folder))

    return reads


@contextlib.contextmanager
def row_group(folder: Path, rows: int) -> Iterator[Source]:
    """A Parquet row group of `rows` rows with a number and a text."""
    pq.write_table(_table(rows), folder / "rows.parquet", row_group_size=rows)
    yield ParquetSource(str(folder)).named("rows")


@contextlib.contextmanager
def large_in_parquet(folder: Path, rows: int) -> Iterator[Source]:
    """Rows with a text of 8 MB in a Parquet file."""
    table = pa.table({"id": range(rows), "text": [str(at) + "x" * LARGE for at in range(rows)]})
    pq.write_table(table, folder / "rows.parquet")
    yield ParquetSource(str(folder)).named("rows")


@contextlib.contextmanager
def large_files(folder: Path, rows: int) -> Iterator[Source]:
    """`rows` files of 8 MB, a row each; the reader of the first is measured."""
    (folder / "0.bin").write_bytes(b"x" * LARGE)
    yield BinarySource(str(folder)).named("rows")


@contextlib.contextmanager
def delta_commit(folder: Path, rows: int) -> Iterator[Source]:
    """A version of a Delta table that appends `rows` rows with a number and a text."""
    from deltalake import write_deltalake

    write_deltalake(str(folder / "rows"), _table(rows))
    yield DeltaSource(str(folder / "rows")).named("rows")


@contextlib.contextmanager
def iceberg_commit(folder: Path, rows: int) -> Iterator[Source]:
    """A snapshot of an Iceberg table that appends `rows` rows with a number and a text."""
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    catalog, table = load_catalog("holds", **properties), _table(rows)
    catalog.create_namespace("shop")
    catalog.create_table("shop.rows", table.schema).append(table)
    yield IcebergSource("shop.rows", catalog="holds", properties=properties).named("rows")


# ---------------------------------------------------------------- servers


@contextlib.contextmanager
def large_message(folder: Path, rows: int) -> Iterator[Source]:
    """Messages of 8 MB of JSON in a topic of Kafka."""
    with _topic([f'{{"id": {at}, "text": "{"x" * LARGE}"}}'.encode() for at in range(rows)]) as source:
        yield source


@contextlib.contextmanager
def kafka_backlog(folder: Path, rows: int) -> Iterator[Source]:
    """`rows` small messages of JSON that wait in a topic of Kafka."""
    with _topic([f'{{"id": {at}, "text": "customer {at % 1000}"}}'.encode() for at in range(rows)]) as source:
        yield source


@contextlib.contextmanager
def _topic(messages: list[bytes]) -> Iterator[Source]:
    from confluent_kafka import Producer

    with kafka_server(message_max_bytes=2 * LARGE) as server:
        server.create_topic("rows", 1)
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.max.bytes": 2 * LARGE})
        for message in messages:
            while True:
                try:
                    producer.produce("rows", message)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(60)
        yield KafkaSource(server.bootstrap, "rows", group="holds", value="json", schema=_LARGE_SCHEMA).named("rows")


@contextlib.contextmanager
def rabbitmq_backlog(folder: Path, rows: int) -> Iterator[Source]:
    """`rows` messages of JSON that wait in a queue of RabbitMQ, as many unacknowledged as the broker allows."""
    import pika

    with rabbitmq_server() as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        channel = connection.channel()
        channel.queue_declare("rows", durable=True)
        for at in range(rows):
            body = f'{{"id": {at}, "text": "customer {at % 1000}"}}'.encode()
            channel.basic_publish("", "rows", body, pika.BasicProperties(message_id=str(at), timestamp=at))
        connection.close()
        yield RabbitMQSource(
            server.url, "rows", deduplicate="forever", value="json", schema=_LARGE_SCHEMA, prefetch=rows
        ).named("rows")


@contextlib.contextmanager
def kinesis_backlog(folder: Path, rows: int) -> Iterator[Source]:
    """`rows` records of JSON that wait in a shard, on moto's server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "test")
    with s3_server() as server:  # also serves Kinesis
        import boto3

        client = boto3.client("kinesis", endpoint_url=server.endpoint, region_name="us-east-1")
        client.create_stream(StreamName="rows", ShardCount=1)
        for first in range(0, rows, 500):
            many = range(first, min(first + 500, rows))
            records = [
                {"Data": f'{{"id": {at}, "text": "customer {at % 1000}"}}'.encode(), "PartitionKey": str(at)}
                for at in many
            ]
            client.put_records(StreamName="rows", Records=records)
        settings: dict[str, Any] = {"region": "us-east-1", "endpoint": server.endpoint, "until": "latest"}
        yield KinesisSource("rows", value="json", schema=_LARGE_SCHEMA, **settings).named("rows")


@contextlib.contextmanager
def many_lines(folder: Path, rows: int) -> Iterator[Source]:
    """A file of `rows` lines of JSON."""
    with (folder / "a.jsonl").open("w") as file:
        file.writelines(f'{{"id": {at}, "text": "customer {at % 1000}"}}\n' for at in range(rows))
    yield JsonlSource(str(folder), schema=_LARGE_SCHEMA).named("rows")


@contextlib.contextmanager
def many_csv_lines(folder: Path, rows: int) -> Iterator[Source]:
    """A file of `rows` lines of CSV."""
    with (folder / "a.csv").open("w") as file:
        file.write("id,text\n")
        file.writelines(f"{at},customer {at % 1000}\n" for at in range(rows))
    yield CsvSource(str(folder), schema=_LARGE_SCHEMA).named("rows")


ORDERS = "create table orders (id bigint primary key, customer text, amount numeric(12,2), at timestamptz, n int)"
INSERT = (
    "insert into orders select i, 'customer ' || i % 1000, i * 0.01, "
    "'2026-01-01'::timestamptz + i * interval '1 ms', i % 100 from generate_series({first}, {last}) i"
)
_INSERT_LARGE = "insert into orders (id, customer) select i, repeat('x', {large}) from generate_series(1, {rows}) i"


def changes(insert: str, *, existing: bool) -> Reads:
    """Rows of a PostgreSQL table: `existing` before the start (the snapshot), or a transaction in the log."""

    @contextlib.contextmanager
    def reads(folder: Path, rows: int) -> Iterator[Source]:
        import psycopg

        statement = insert.format(first=1, last=rows, rows=rows, large=LARGE)
        with postgres_server() as server, psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(ORDERS)
            if existing:
                connection.execute(statement)
            source = PostgresChangesSource(server.url, "orders").named("orders")
            source.stage("holds", str(folder), fresh=True)
            if not existing:
                connection.execute(statement)
            yield source

    return reads


# ---------------------------------------------------------------- rows of functions


@contextlib.contextmanager
def page(folder: Path, rows: int) -> Iterator[Source]:
    """A page of `rows` rows, the answer of a function that queries an interface or a database."""

    def fetch(cursor: Any) -> Any:
        return None if cursor else (({"id": at, "text": str(at)} for at in range(rows)), 1)

    yield PollSource(fetch, schema=_LARGE_SCHEMA, every=datetime.timedelta(seconds=1)).named("rows")


@contextlib.contextmanager
def iterated(folder: Path, rows: int) -> Iterator[Source]:
    """`rows` rows of an iterator, such as a cursor of a database."""

    def make(index: int, of: int) -> Iterator[dict[str, Any]]:
        return ({"id": at, "text": str(at)} for at in range(rows))

    yield IteratorSource(make, schema=_LARGE_SCHEMA).named("rows")


@contextlib.contextmanager
def reply(folder: Path, rows: int) -> Iterator[Measure]:
    """A reply of a lookup to `rows` keys."""
    yield lambda barrier: held_by_lookup(rows, folder, barrier)


# ---------------------------------------------------------------- targets and state


def into(target: str) -> Unit:
    """A transaction of `rows` rows into a target of `benchmarks ends`."""

    @contextlib.contextmanager
    def unit(folder: Path, rows: int) -> Iterator[Measure]:
        numbers = pa.array(range(rows), pa.int64())
        table = pa.table({"value": numbers, "key": numbers, "price": numbers.cast(pa.float64())})
        batches = table.combine_chunks().to_batches(_BATCH)
        ends.FOLDER.mkdir(parents=True, exist_ok=True)
        with ends.TARGETS[target]() as new:
            yield lambda barrier: held_by_sink(_sink(new()), batches, folder, barrier)

    return unit


def _sink(target: ends.Target) -> TwoPhaseCommitSink:
    assert isinstance(target, TwoPhaseCommitSink)
    return target


def into_folder(make: Callable[[str], TwoPhaseCommitSink]) -> Unit:
    """A transaction of `rows` rows. `make` gets a new path."""

    @contextlib.contextmanager
    def unit(folder: Path, rows: int) -> Iterator[Measure]:
        batches, numbers = _table(rows).combine_chunks().to_batches(_BATCH), itertools.count()
        yield lambda barrier: held_by_sink(make(str(folder / f"{next(numbers)}")), batches, folder, barrier)

    return unit


def _sqlite(path: str) -> TwoPhaseCommitSink:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("create table rows (id integer, text text)")
        database.commit()
    return SqliteSink(path, "rows")


def large_into(make: Callable[[str], TwoPhaseCommitSink]) -> Unit:
    """Rows of 8 MB, a batch each. `make` gets a new folder."""

    @contextlib.contextmanager
    def unit(folder: Path, rows: int) -> Iterator[Measure]:
        batch = pa.record_batch({"id": [1], "text": ["x" * LARGE]})
        numbers = itertools.count()
        yield lambda barrier: held_by_sink(make(str(folder / f"{next(numbers)}")), [batch] * rows, folder, barrier)

    return unit


@contextlib.contextmanager
def large_into_kafka(folder: Path, rows: int) -> Iterator[Measure]:
    """Rows of 8 MB into a topic of Kafka, exactly once."""
    with kafka_server(message_max_bytes=4 * LARGE) as server:

        def make(folder: str) -> TwoPhaseCommitSink:
            topic = f"rows-{time.monotonic_ns()}"
            server.create_topic(topic, 1)
            return KafkaSink(server.bootstrap, topic, config={"message.max.bytes": 4 * LARGE})

        with large_into(make)(folder, rows) as measured:
            yield measured


@contextlib.contextmanager
def restored(folder: Path, rows: int) -> Iterator[Measure]:
    """A savepoint of `rows` running counts, restored by a job of two subtasks that share a loop."""
    url, numbers = str(folder / "savepoint"), itertools.count()

    def flow() -> Dataflow:
        made = Dataflow("restored")
        counts = made.rate("numbers", 1_000_000, 1_000, keys=100).key_by("key").aggregate("counts", n=count())
        counts.sink("out", JsonlSink(str(folder / "out")))
        return made

    known = pa.table({"key": pa.array(range(rows), pa.int64()), "rows": pa.repeat(pa.scalar(1, pa.int64()), rows)})
    write_savepoint(url, flow=flow(), states={("counts", "running"): known}, parallelism=2)

    def measure(barrier: bool) -> Hold:
        before_s = time.process_time()
        with longest_callback() as longest:
            flow().run_local(
                checkpoints=str(folder / f"jobs-{next(numbers)}"),
                restore=url,
                parallelism=2,
                checkpoint_interval=0.1 if barrier else 3600,
            )
        return Hold(longest[0], rows, time.process_time() - before_s)

    yield measure


_JSON_LINE = '{"id": ID, "text": "TEXT"}\n'

UNITS: dict[str, tuple[Unit, int]] = {
    "PostgreSQL: a transaction of 1 M rows": (of_reader(changes(INSERT, existing=False)), 1_000_000),
    "PostgreSQL: a snapshot of 1 M rows": (of_reader(changes(INSERT, existing=True)), 1_000_000),
    "PostgreSQL: a transaction of rows of 8 MB": (of_reader(changes(_INSERT_LARGE, existing=False)), 4),
    "PostgreSQL: a snapshot of rows of 8 MB": (of_reader(changes(_INSERT_LARGE, existing=True)), 4),
    "Parquet: a row group of 1 M rows": (of_reader(row_group), 1_000_000),
    "Parquet: rows of 8 MB": (of_reader(large_in_parquet), 4),
    "Delta: a commit of 1 M rows": (of_reader(delta_commit), 1_000_000),
    "Iceberg: a commit of 1 M rows": (of_reader(iceberg_commit), 1_000_000),
    "JSON lines: rows of 8 MB": (
        of_reader(
            large_lines("a.jsonl", "", _JSON_LINE, lambda url: JsonlSource(url, schema=_LARGE_SCHEMA).named("rows"))
        ),
        4,
    ),
    "JSON lines, gzip: rows of 8 MB": (
        of_reader(
            large_lines("a.jsonl.gz", "", _JSON_LINE, lambda url: JsonlSource(url, schema=_LARGE_SCHEMA).named("rows"))
        ),
        4,
    ),
    "CSV: rows of 8 MB": (
        of_reader(
            large_lines(
                "a.csv", "id,text\n", "ID,TEXT\n", lambda url: CsvSource(url, schema=_LARGE_SCHEMA).named("rows")
            )
        ),
        4,
    ),
    "text: lines of 8 MB": (
        of_reader(large_lines("a.txt", "", "TEXT\n", lambda url: TextSource(url).named("rows"))),
        4,
    ),
    "whole files of 8 MB": (of_reader(large_files), 1),
    "JSON lines: a folder of 100,000 files": (many_files, 100_000),
    "Kafka: messages of 8 MB": (of_reader(large_message), 4),
    "Kafka: 1 M waiting messages": (of_reader(kafka_backlog), 1_000_000),
    "RabbitMQ: 60,000 waiting messages": (of_reader(rabbitmq_backlog), 60_000),
    "function: a page of 1 M rows": (of_reader(page), 1_000_000),
    "iterator: 1 M rows": (of_reader(iterated), 1_000_000),
    "JSON lines: 1 M rows": (of_reader(many_lines), 1_000_000),
    "CSV: 1 M rows": (of_reader(many_csv_lines), 1_000_000),
    "Kinesis: 50,000 waiting records": (of_reader(kinesis_backlog), 50_000),
    "lookup: a reply of 1 M rows": (reply, 1_000_000),
    "into Parquet: rows of 8 MB": (large_into(ParquetSink), 4),
    "into JSON lines: rows of 8 MB": (large_into(JsonlSink), 4),
    "into CSV: rows of 8 MB": (large_into(CsvSink), 4),
    "into CSV: 1 M rows": (into_folder(CsvSink), 1_000_000),
    "into SQLite: 1 M rows": (into_folder(_sqlite), 1_000_000),
    "into a list: 1 M rows": (into_folder(lambda path: CollectSink()), 1_000_000),
    "into Kafka: rows of 8 MB": (large_into_kafka, 4),
    **{
        f"into {target}: 1 M rows": (into(target), 1_000_000)
        for target in ends.TARGETS
        if not target.startswith("s3") and target not in ("for-each-batch", "iceberg-rest")
    },
    "restore: a savepoint of 10 M entries": (restored, 10_000_000),
}
