"""Rows of a backlog: JSON records in Kafka, and files with the same rows.

A row has five columns and 110 bytes of JSON, with a text as key. A wide row has 200 columns: numbers, a text of 1,200
bytes and a list. Row i is the same in all inputs. Sums of `amount` are exact in any order.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks import events

CUSTOMERS = 10_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.int64()),
        ("text", pa.string()),
    ]
)
_NUMBERS = [f"n{number:03d}" for number in range(196)]
WIDE_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        *((name, pa.int64()) for name in _NUMBERS),
        ("text", pa.string()),
        ("list", pa.list_(pa.int64())),
    ]
)
_RECORD = b'{"id":%d,"customer":"customer-%06d","amount":%d.25,"at":%d,"text":"%s"}'
_TEXT = b"a text of 19 bytes."
_LONG_TEXT = "x" * 1_200
_FIRST_ID, _BEGIN_MS = 10**9, 1_700_000_000_000
_FILES = 2
_AT_ONCE = 100_000
_TIMEOUT_S = 600
_QUEUE = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1 << 20, "linger.ms": 20}


def records(begin: int, end: int) -> list[bytes]:
    """Rows `begin` … `end` - 1 as JSON."""
    ids, customers, amounts, at = (column.tolist() for column in _columns(begin, end))
    return [_RECORD % (*row, _TEXT) for row in zip(ids, customers, amounts, at, strict=True)]


def wide_records(begin: int, end: int) -> list[bytes]:
    """Wide rows `begin` … `end` - 1 as JSON."""
    ids, customers, amounts, _ = (column.tolist() for column in _columns(begin, end))
    numbers = ",".join(f'"{name}":%d' for name in _NUMBERS)
    record = f'{{"id":%d,"customer":"customer-%06d",{numbers},"text":"{_LONG_TEXT}","list":[%d,%d,%d,%d]}}'
    return [
        (record % (id, customer, *range(amount, amount + len(_NUMBERS)), id, customer, amount, amount)).encode()
        for id, customer, amount in zip(ids, customers, amounts, strict=True)
    ]


def table(begin: int, end: int) -> pa.Table:
    """Rows `begin` … `end` - 1 in Arrow."""
    ids, customers, amounts, at = _columns(begin, end)
    names = [f"customer-{number:06d}" for number in customers.tolist()]
    texts = [_TEXT.decode()] * (end - begin)
    return pa.table([pa.array(ids), pa.array(names), pa.array(amounts + 0.25), pa.array(at), texts], schema=SCHEMA)


def _columns(begin: int, end: int) -> list[events.Ints]:
    numbers = np.arange(begin, end)
    customers, values, _, _ = events.columns(numbers, numbers, CUSTOMERS)
    return [_FIRST_ID + numbers, customers, 100 + values % 900, _BEGIN_MS + numbers]


# ---------------------------------------------------------------- inputs


def fill(bootstrap: str, topic: str, partitions: int, rows: int, wide: bool) -> None:
    """Sends `rows` records to `topic`, in turn to each partition, and waits until the broker has all of them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **_QUEUE})
    for messages in _parts(rows, wide):
        for partition in range(partitions):
            producer.produce_batch(topic, messages[partition::partitions], partition=partition)
        producer.flush(_TIMEOUT_S)
    refused = len(producer)
    if refused:
        raise RuntimeError(f"topic {topic!r}: {refused:,} records were not written within {_TIMEOUT_S} s")


def _parts(rows: int, wide: bool) -> Iterator[list[dict[str, bytes]]]:
    at_once, make = (_AT_ONCE // 20, wide_records) if wide else (_AT_ONCE, records)
    for begin in range(0, rows, at_once):
        yield [{"value": value} for value in make(begin, min(begin + at_once, rows))]


def folder_of(kind: str, rows: int, parent: Path) -> Path:
    """Folder with `rows` rows in files of `kind`: "jsonl", "csv" or "parquet". Makes missing files."""
    folder = parent / f"backlog-{rows}-{kind}"
    folder.mkdir(parents=True, exist_ok=True)
    bounds = [rows * number // _FILES for number in range(_FILES + 1)]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        made = folder / f"part-{number}.{kind}"
        if not made.exists():
            part = folder / f".{made.name}"
            _write(kind, part, begin, end)
            part.replace(made)
    return folder.resolve()


def _write(kind: str, path: Path, begin: int, end: int) -> None:
    if kind == "jsonl":
        path.write_bytes(b"\n".join([*records(begin, end), b""]))
    elif kind == "csv":
        pa_csv.write_csv(table(begin, end), path)
    else:
        pq.write_table(table(begin, end), path, compression="snappy")


# ---------------------------------------------------------------- columns in SQL


def ddl(schema: pa.Schema) -> str:
    """Columns for a schema of Spark or Flink."""
    return ", ".join(f"`{field.name}` {_SQL[str(field.type)]}" for field in schema)


def duckdb_columns() -> dict[str, str]:
    """Type per column for DuckDB's readers."""
    return {field.name: _DUCKDB[str(field.type)] for field in SCHEMA}


_SQL = {"int64": "BIGINT", "string": "STRING", "double": "DOUBLE", "list<item: int64>": "ARRAY<BIGINT>"}
_DUCKDB = {"int64": "BIGINT", "string": "VARCHAR", "double": "DOUBLE"}
