"""Bound of a poll, per source, for a unit of several parts, and barriers between two parts of the unit."""

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from operator_harness import World
from source_harness import opened, snapshot_of

from barrier_runtime import (
    CsvSource,
    DeltaSource,
    IcebergSource,
    IteratorSource,
    JsonlSource,
    ParquetSource,
    PollSource,
    RateSource,
    TextSource,
)
from barrier_runtime.connectors.registry import CONNECTORS, PublicClass
from barrier_runtime.connectors.source import Source
from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.runtime.error_reports import runs_users_code
from barrier_runtime.runtime.sources.driver import SourceDriver
from tests.waiting import until

AT_MOST = SourceSpec.max_rows_per_batch  # rows that the loop asks for
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TEXT_BYTES = 1 << 20  # that a thread decodes at once
LINE_BYTES = 128


@dataclass(frozen=True)
class Unit:
    """`most`: rows that a poll returns at most, of the unit's `rows`."""

    make: Callable[[Path, int], Source]
    rows: int
    most: int


def table(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "text": ["x" * (n % 7) for n in range(rows)]}, schema=SCHEMA)


def row_group(folder: Path, rows: int) -> Source:
    pq.write_table(table(rows), folder / "a.parquet", row_group_size=rows)
    return ParquetSource(str(folder)).named("src")


def large_rows(folder: Path, rows: int) -> Source:
    texts = pa.table({"id": range(rows), "text": [f"{n:0100000}" for n in range(rows)]}, schema=SCHEMA)
    pq.write_table(texts, folder / "a.parquet", row_group_size=rows)
    return ParquetSource(str(folder)).named("src")


def lines(folder: Path, name: str, head: str, line: Callable[[int, str], str], rows: int) -> str:
    made = (line(n, "x" * (LINE_BYTES - 1 - len(line(n, "")))) for n in range(rows))
    data = "".join([head, *(f"{each}\n" for each in made)]).encode()
    (folder / name).write_bytes(gzip.compress(data, 1) if name.endswith(".gz") else data)
    return str(folder)


def csv(folder: Path, rows: int) -> Source:
    url = lines(folder, "a.csv", "id,text\n", lambda n, text: f"{n},{text}", rows)
    return CsvSource(url, schema=SCHEMA).named("src")


def jsonl(folder: Path, rows: int) -> Source:
    url = lines(folder, "a.jsonl", "", lambda n, text: f'{{"id": {n}, "text": "{text}"}}', rows)
    return JsonlSource(url, schema=SCHEMA).named("src")


def jsonl_gz(folder: Path, rows: int) -> Source:
    url = lines(folder, "a.jsonl.gz", "", lambda n, text: f'{{"id": {n}, "text": "{text}"}}', rows)
    return JsonlSource(url, schema=SCHEMA).named("src")


def text(folder: Path, rows: int) -> Source:
    return TextSource(lines(folder, "a.txt", "", lambda n, text: f"{n}{text}", rows)).named("src")


def delta_commit(folder: Path, rows: int) -> Source:
    from deltalake import write_deltalake

    write_deltalake(str(folder / "t"), table(rows))
    return DeltaSource(str(folder / "t"), every=None).named("src")


def iceberg_commit(folder: Path, rows: int) -> Source:
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA).append(table(rows))
    return IcebergSource("db.t", properties=properties, every=None).named("src")


def iterated(folder: Path, rows: int) -> Source:
    return IteratorSource(lambda i, of: ({"id": n, "text": ""} for n in range(rows)), schema=SCHEMA).named("src")


def page(folder: Path, rows: int) -> Source:
    def fetch(cursor: Any) -> Any:
        return None if cursor else ([{"id": n, "text": ""} for n in range(rows)], 1)

    return PollSource(fetch, schema=SCHEMA, every=0.001).named("src")


def generated(folder: Path, rows: int) -> Source:
    return RateSource(1e9, rows, splits=1).named("src")


UNITS = {
    "ParquetSource": Unit(row_group, 100_000, 32_768),
    "ParquetSource, rows of 100 kB": Unit(large_rows, 300, (8 << 20) // 100_000),
    "CsvSource": Unit(csv, 20_000, TEXT_BYTES // LINE_BYTES),
    "JsonlSource": Unit(jsonl, 20_000, TEXT_BYTES // LINE_BYTES),
    "JsonlSource, gzip": Unit(jsonl_gz, 20_000, TEXT_BYTES // LINE_BYTES),
    "TextSource": Unit(text, 20_000, TEXT_BYTES // LINE_BYTES),
    "DeltaSource": Unit(delta_commit, 150_000, AT_MOST),
    "IcebergSource": Unit(iceberg_commit, 150_000, AT_MOST),
    "IteratorSource": Unit(iterated, 20_000, 4_096),
    "PollSource": Unit(page, 150_000, AT_MOST),
    "RateSource": Unit(generated, 150_000, AT_MOST),
}
ELSEWHERE = {
    "BinarySource": "files/test_binary_files.py::test_a_large_file_is_read_in_steps_and_a_restored_reader_goes_on",
    "KafkaSource": "kafka/test_partition_queue.py::test_never_more_than_is_asked_for_and_every_row_once",
    "KinesisSource": "kinesis/test_kinesis_source.py::test_a_poll_returns_an_answer_at_most_and_few_answers_are_held",
    "PostgresChangesSource": "postgres/test_log_session.py::"
    "test_a_large_transaction_becomes_bounded_items_with_positions_between_them",
    "RabbitMQSource": "rabbitmq/test_rabbitmq_reader.py::test_a_poll_decodes_a_bounded_number_of_messages_and_bytes",
}


def test_every_source_has_a_test_of_its_bound() -> None:
    sources = {each.name for row in CONNECTORS for sources in row.sources for each in sources.classes}
    assert {name.partition(",")[0] for name in UNITS} | ELSEWHERE.keys() == sources
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text(), f"{place} is not there"


def test_only_the_sink_that_calls_a_function_may_run_users_code_on_the_loop() -> None:
    sinks = [each for row in CONNECTORS for sinks in row.sinks for each in sinks.classes]
    found = {each.name for each in sinks if runs_users_code(object.__new__(_class_of(each)))}
    assert found == {"CallableSink"}


def _class_of(public: PublicClass) -> type[Any]:
    made = getattr(import_module(public.module), public.name)
    assert isinstance(made, type)
    return made


def part(driver: SourceDriver) -> list[int]:
    """Numbers of the rows of the next poll with rows; none at the end."""
    found: list[Batch] = []

    def polled() -> bool:
        batch = driver.poll(time.time_ns())
        if batch is not None:
            found.append(batch)
        return bool(found) or driver.finished

    until(polled)
    return [_number(value) for batch in found for value in batch.rows.column(0).to_pylist()]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else int(value.rstrip("x"))


def parts(driver: SourceDriver) -> list[list[int]]:
    found = []
    while not driver.finished:
        found.append(part(driver))
        driver.snapshot(len(found))
    driver.close()
    return [each for each in found if each]


@pytest.mark.slow
@pytest.mark.parametrize("name", UNITS)
def test_a_poll_returns_a_bounded_part_and_a_barrier_may_follow_each_part(name: str, tmp_path: Path) -> None:
    unit, world = UNITS[name], World()
    source = unit.make(tmp_path, unit.rows)
    spec = SourceSpec("src", source, tuple(source.splits(1)))
    read = parts(opened(spec, world))
    assert [number for each in read for number in each] == list(range(unit.rows))
    assert max(map(len, read)) <= unit.most
    assert len(read) >= 3, "several parts"
    assert runs_users_code(source) == (name in ("IteratorSource", "PollSource"))
    driver = opened(spec, world)
    before = [number for _ in range(len(read) // 2) for number in part(driver)]
    snapshot = snapshot_of(driver, world)
    driver.close()
    after = [number for each in parts(opened(spec, world, (snapshot,))) for number in each]
    assert before + after == list(range(unit.rows))
