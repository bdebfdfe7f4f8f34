"""Longest hold of a slot's loop by a connector or lookup, per unit: `python -m benchmarks holds`.

A hold is the processor time of the loop's thread in a `poll` of a reader, or in a call of an operator. With a
waiting barrier, `position` or `snapshot` follows each call and counts too. The figure of a unit is the largest hold of
all runs. Restores are not measured, because operators are opened outside the loop (`runtime/opening`).
"""

import contextlib
import dataclasses
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.source.jsonl import JsonlSource
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.kafka.source.source import KafkaSource
from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource
from barrier_runtime.connectors.source import Preparable, Source, Waking
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.lookups.book import BookSettings
from barrier_runtime.operators.lookups.operator import LookupOperator, LookupSettings
from barrier_runtime.runtime.sources.driver import SourceDriver
from benchmarks.surroundings import Surroundings
from examples.servers.kafka import kafka_server
from examples.servers.postgres import postgres_server

_WAIT_S = 0.05
_BEHIND_S = 2.0  # pause before the first poll, in which a reader's thread may fill the buffer
_LARGE = 8_000_000  # bytes of a large row


@dataclass(frozen=True)
class Hold:
    """Longest hold; rows; processor time of the whole process while reading."""

    hold_s: float = 0.0
    rows: int = 0
    process_s: float = 0.0

    def or_longer(self, other: "Hold") -> "Hold":
        return Hold(max(self.hold_s, other.hold_s), other.rows, max(self.process_s, other.process_s))


Measure = Callable[[bool], Hold]  # `barrier`: a barrier waits at every call
Unit = Callable[[Path, int], contextlib.AbstractContextManager[Measure]]
Reads = Callable[[Path, int], contextlib.AbstractContextManager[Source]]


def held(source: Source, rows: int, barrier: bool) -> Hold:
    """Reads `rows` rows of all splits, as the loop of a slot does. `barrier`: a barrier waits at every poll."""
    hold_s, read, awake = 0.0, 0, threading.Event()
    before_s = time.process_time()
    for split in source.splits(1):
        reader = source.reader(split)
        if isinstance(reader, Waking):
            reader.wake_by(awake.set)
        if isinstance(reader, Preparable):
            reader.prepare()
        time.sleep(_BEHIND_S)
        while read < rows and not reader.finished:
            awake.clear()
            began_s = time.thread_time()
            polled = reader.poll(SourceSpec.max_rows_per_batch, time.time_ns())
            if barrier:
                reader.position()
            hold_s = max(hold_s, time.thread_time() - began_s)
            if polled is None:
                awake.wait(_WAIT_S)
            else:
                rows_now = polled.rows
                read += rows_now.count if isinstance(rows_now, FewRows) else rows_now.num_rows
        reader.close()
    return Hold(hold_s, read, time.process_time() - before_s)


def held_by_driver(source: Source, folder: Path, barrier: bool) -> Hold:
    """Reads all splits of `source` to their ends, as a subtask does."""
    driver, hold_s, read = SourceDriver(), 0.0, 0
    before_s = time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        driver.open(Surroundings(Path(own), 0, 1).context("rows"), SourceSpec("rows", source, tuple(source.splits(1))))
        for checkpoint in itertools.count(1):
            began_s = time.thread_time()
            batch = driver.poll(time.time_ns())
            if barrier:
                driver.snapshot(checkpoint)
            hold_s = max(hold_s, time.thread_time() - began_s)
            read += batch.count if batch is not None else 0
            if driver.finished:
                break
        driver.close()
    return Hold(hold_s, read, time.process_time() - before_s)


class _Line:
    """Executor whose work runs outside the loop's time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._waiting.append((work, done))

    def run(self) -> None:
        while self._waiting:
            work, done = self._waiting.pop()
            done(work(), None)


def held_by_lookup(rows: int, folder: Path, barrier: bool) -> Hold:
    """A lookup of `rows` keys whose replies come in a single request."""
    book = BookSettings(capacity=rows, most_keys=rows, most_requests=1, linger_s=0.0, timeout_s=3600.0)
    settings = LookupSettings(("id",), pa.schema([("name", pa.string())]), book)
    operator, line = LookupOperator("names", lambda keys: [{"name": "x"} for _ in keys], settings), _Line()
    numbers = pa.array(range(rows), pa.int64())
    batches: list[Batch] = []
    emit, before_s = Emit(batches.append), time.process_time()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        context = Surroundings(Path(own), 0, 1).context("names")
        operator.open(dataclasses.replace(context, new_executor=lambda: line, wake_from_thread=lambda: None))
        operator.process(Batch(pa.record_batch({"id": numbers}), 0), emit)  # rows come in many batches
        line.run()
        hold_s = 0.0
        for checkpoint in itertools.count(1):
            began_s = time.thread_time()
            operator.on_wall_clock(emit)
            if barrier:
                operator.snapshot(checkpoint)
            hold_s = max(hold_s, time.thread_time() - began_s)
            if not operator.unfinished:
                break
    return Hold(hold_s, sum(batch.count for batch in batches), time.process_time() - before_s)


# ---------------------------------------------------------------- units


def of_reader(reads: Reads) -> Unit:
    @contextlib.contextmanager
    def unit(folder: Path, rows: int) -> Iterator[Measure]:
        with reads(folder, rows) as source:
            yield lambda barrier: held(source, rows, barrier)

    return unit


@contextlib.contextmanager
def many_files(folder: Path, rows: int) -> Iterator[Measure]:
    """A folder of `rows` files with a row of JSON each."""
    data = folder / "data"
    data.mkdir()
    for at in range(rows):
        (data / f"{at:06}.jsonl").write_text(f'{{"id": {at}}}\n')
    source = JsonlSource(str(data), schema=pa.schema([("id", pa.int64())])).named("rows")
    yield lambda barrier: held_by_driver(source, folder, barrier)


@contextlib.contextmanager
def reply(folder: Path, rows: int) -> Iterator[Measure]:
    """A reply of a lookup to `rows` keys."""
    yield lambda barrier: held_by_lookup(rows, folder, barrier)


@contextlib.contextmanager
def large_message(folder: Path, rows: int) -> Iterator[Source]:
    """Messages of 8 MB of JSON in a topic of Kafka."""
    from confluent_kafka import Producer

    with kafka_server(message_max_bytes=2 * _LARGE) as server:
        server.create_topic("large", 1)
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.max.bytes": 2 * _LARGE})
        for at in range(rows):
            producer.produce("large", f'{{"id": {at}, "text": "{"x" * _LARGE}"}}'.encode())
        producer.flush(60)
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        yield KafkaSource(server.bootstrap, "large", group="holds", value="json", schema=schema).named("rows")


@contextlib.contextmanager
def transaction(folder: Path, rows: int) -> Iterator[Source]:
    """A transaction of PostgreSQL with `rows` inserts of five columns."""
    import psycopg

    with postgres_server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "create table orders (id bigint primary key, customer text, amount numeric(12,2), at timestamptz, n int)"
        )
        source = PostgresChangesSource(server.url, "orders").named("orders")
        source.stage("holds", str(folder), fresh=True)
        connection.execute(
            "insert into orders select i, 'customer ' || i % 1000, i * 0.01, "
            f"'2026-01-01'::timestamptz + i * interval '1 ms', i % 100 from generate_series(1, {rows}) i"
        )
        yield source


@contextlib.contextmanager
def row_group(folder: Path, rows: int) -> Iterator[Source]:
    """A Parquet row group of `rows` rows with a number and a text."""
    numbers = pa.array(range(rows), pa.int64())
    table = pa.table({"id": numbers, "text": numbers.cast(pa.string())})
    pq.write_table(table, folder / "rows.parquet", row_group_size=rows)
    yield ParquetSource(str(folder)).named("rows")


@contextlib.contextmanager
def large_row(folder: Path, rows: int) -> Iterator[Source]:
    """Rows of 8 MB of JSON."""
    with (folder / "large.jsonl").open("w") as file:
        for at in range(rows):
            file.write(f'{{"id": {at}, "text": "{"x" * _LARGE}"}}\n')
    yield JsonlSource(str(folder), schema=pa.schema([("id", pa.int64()), ("text", pa.string())])).named("rows")


UNITS: dict[str, tuple[Unit, int]] = {
    "PostgreSQL: a transaction of 1 M rows": (of_reader(transaction), 1_000_000),
    "Parquet: a row group of 1 M rows": (of_reader(row_group), 1_000_000),
    "JSON lines: rows of 8 MB": (of_reader(large_row), 4),
    "Kafka: messages of 8 MB": (of_reader(large_message), 4),
    "JSON lines: a folder of 100,000 files": (many_files, 100_000),
    "lookup: a reply of 1 M rows": (reply, 1_000_000),
}


def measure(runs: int, chosen: Sequence[str]) -> None:
    """Prints a table: the longest hold alone and while a barrier waits, and rows per second of processor time."""
    print("| unit | longest hold (ms of CPU) | while a barrier waits | rows per second of CPU, all threads |")
    print("| --- | --- | --- | --- |")
    for name, (unit, rows) in UNITS.items():
        if not all(word in name for word in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder, unit(Path(folder), rows) as measured:
            alone = waiting = Hold()
            for _ in range(runs):
                alone = alone.or_longer(measured(False))
                waiting = waiting.or_longer(measured(True))
        rate = alone.rows / alone.process_s
        print(f"| {name} | {1000 * alone.hold_s:.1f} | {1000 * waiting.hold_s:.1f} | {rate:,.0f} |", flush=True)
