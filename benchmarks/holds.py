"""Longest hold of a slot's loop by a reader, per connector and unit: `python -m benchmarks holds`.

A hold is the processor time of the loop's thread in one `poll` of a reader. With a waiting barrier, `position` follows
each poll and counts too. The figure of a unit is the largest hold of all runs.
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.source.jsonl import JsonlSource
from barrier_runtime.connectors.files.source.parquet import ParquetSource
from barrier_runtime.connectors.postgres.changes.source import PostgresChangesSource
from barrier_runtime.connectors.source import Preparable, Source, Waking
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.graph.job_graph import SourceSpec
from examples.servers.postgres import postgres_server

_WAIT_S = 0.05
_BEHIND_S = 2.0  # before the first poll, in which a thread of the reader may fill its buffer
_LARGE = 8_000_000  # bytes of a large row


@dataclass(frozen=True)
class Hold:
    """Longest hold; rows; processor time of the whole process while reading."""

    hold_s: float = 0.0
    rows: int = 0
    process_s: float = 0.0

    def or_longer(self, other: "Hold") -> "Hold":
        return Hold(max(self.hold_s, other.hold_s), other.rows, max(self.process_s, other.process_s))


Unit = Callable[[Path, int], contextlib.AbstractContextManager[Source]]


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


# ---------------------------------------------------------------- units


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
    "PostgreSQL: a transaction of 1 M rows": (transaction, 1_000_000),
    "Parquet: a row group of 1 M rows": (row_group, 1_000_000),
    "JSON lines: rows of 8 MB": (large_row, 4),
}


def measure(runs: int, chosen: Sequence[str]) -> None:
    """Prints a table: the longest hold alone and while a barrier waits, and rows per second of processor time."""
    print("| unit | longest hold (ms of CPU) | while a barrier waits | rows per second of CPU, all threads |")
    print("| --- | --- | --- | --- |")
    for name, (unit, rows) in UNITS.items():
        if not all(word in name for word in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder, unit(Path(folder), rows) as source:
            alone = waiting = Hold()
            for _ in range(runs):
                alone = alone.or_longer(held(source, rows, False))
                waiting = waiting.or_longer(held(source, rows, True))
        rate = alone.rows / alone.process_s
        print(f"| {name} | {1000 * alone.hold_s:.1f} | {1000 * waiting.hold_s:.1f} | {rate:,.0f} |", flush=True)
