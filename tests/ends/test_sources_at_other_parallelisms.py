"""Each kind of source in a job that continues at another parallelism, from a savepoint and from a checkpoint (1.6):
every row appears once.
"""

import datetime
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

from barrier_runtime import Dataflow, DeltaSource, JsonlSource, ParquetSource, TextSource
from barrier_runtime.api.stream import Stream
from barrier_runtime.connectors.iceberg.source import IcebergSource
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.launch.local_handle import LocalJobHandle
from tests.barrier_runtime.connectors.kinesis.kinesis_world import KinesisWorld
from tests.barrier_runtime.running_job import Target
from tests.ends.kafka_world import Topic
from tests.waiting import until

SOON = datetime.timedelta(milliseconds=50)
NUMBERS = pa.schema([("n", pa.int64())])
STAGE = 60  # rows of each of the three runs
PARTS = 3  # files, partitions or shards

Write = Callable[[list[int]], None]  # rows that arrive at the source
Read = Callable[[Dataflow], Stream]  # a stream of them, in column n
Source = tuple[Write, Read]


def parts(numbers: list[int]) -> Iterator[list[int]]:
    return (numbers[at::PARTS] for at in range(PARTS))


def new_file(folder: Path, ending: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / f"{len(list(folder.iterdir())):03}.{ending}"


def lines(folder: Path, ending: str, line: Callable[[int], str]) -> Write:
    def write(numbers: list[int]) -> None:
        for part in parts(numbers):
            new_file(folder, ending).write_text("".join(f"{line(n)}\n" for n in part))

    return write


@contextmanager
def parquet(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    def write(numbers: list[int]) -> None:
        for part in parts(numbers):
            pq.write_table(pa.table({"n": part}, NUMBERS), new_file(folder, "parquet"), row_group_size=7)

    source = ParquetSource(str(folder), schema=NUMBERS, watch=SOON)
    yield write, lambda flow: flow.source("rows", source)


@contextmanager
def jsonl(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    source = JsonlSource(str(folder), schema=NUMBERS, watch=SOON)
    yield lines(folder, "jsonl", lambda n: json.dumps({"n": n})), lambda flow: flow.source("rows", source)


@contextmanager
def text(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    source = TextSource(str(folder), watch=SOON)
    yield lines(folder, "txt", str), lambda flow: flow.source("rows", source).select({"n": "cast(line as bigint)"})


@contextmanager
def polling(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    there: list[int] = []

    def fetch(cursor: int | None) -> tuple[list[dict[str, int]], int]:
        first = cursor or 0
        page = there[first : first + 11]
        return [{"n": n} for n in page], first + len(page)

    yield there.extend, lambda flow: flow.from_poll("rows", fetch, every=SOON, schema={"n": int})


@contextmanager
def kafka(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    topic = Topic(request.getfixturevalue("kafka"), PARTS)

    def write(numbers: list[int]) -> None:
        for partition, part in enumerate(parts(numbers)):
            topic.write([json.dumps({"n": n}) for n in part], partition)

    def read(flow: Dataflow) -> Stream:
        server = topic.kafka.bootstrap
        return flow.read_kafka("rows", server, topic.name, group="g", value="json", schema={"n": int}).select(["n"])

    try:
        yield write, read
    finally:
        topic.delete()


@contextmanager
def postgres_changes(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    tables = request.getfixturevalue("tables")
    table = tables.table("n int primary key")
    slot = f"slot_{table}"
    tables.execute(
        f"create publication {slot} for table {table}",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )

    def write(numbers: list[int]) -> None:
        for part in parts(numbers):
            tables.execute(f"insert into {table} values " + ", ".join(f"({n})" for n in part))

    def read(flow: Dataflow) -> Stream:
        rows = flow.read_postgres_changes("rows", tables.url, table, slot=slot, publication=slot, snapshot=False)
        return rows.map(lambda row: {"n": row["after"]["n"]}, schema={"n": int})

    try:
        yield write, read
    finally:
        free = f"select 1 from pg_replication_slots where slot_name = '{slot}' and not active"
        until(lambda: tables.connection.execute(free).fetchone(), "nobody reads the slot")
        tables.execute(f"select pg_drop_replication_slot('{slot}')", f"drop publication {slot}")


@contextmanager
def kinesis(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    world = KinesisWorld(request.getfixturevalue("s3").endpoint, PARTS)  # moto serves Kinesis and S3
    source = world.source(value="string", metadata=(), every=SOON, discover=SOON)
    yield (
        lambda numbers: world.put([str(n).encode() for n in numbers]),
        lambda flow: flow.source("rows", source).select({"n": "cast(value as bigint)"}),
    )


@contextmanager
def delta(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    def write(numbers: list[int]) -> None:
        for part in parts(numbers):
            write_deltalake(str(folder), pa.table({"n": part}, NUMBERS), mode="append")

    yield write, lambda flow: flow.source("rows", DeltaSource(str(folder), every=SOON))


@contextmanager
def iceberg(request: pytest.FixtureRequest, folder: Path) -> Iterator[Source]:
    folder.mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}"}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("db")
    catalog.create_table("db.numbers", NUMBERS)

    def write(numbers: list[int]) -> None:
        for part in parts(numbers):
            catalog.load_table("db.numbers").append(pa.table({"n": part}, NUMBERS))

    source = IcebergSource("db.numbers", properties=properties, every=SOON)
    yield write, lambda flow: flow.source("rows", source)


KINDS = [parquet, jsonl, text, polling, kafka, postgres_changes, kinesis, delta, iceberg]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_source_continues_at_other_parallelism_from_a_savepoint_or_a_checkpoint(
    kind: Callable[[pytest.FixtureRequest, Path], Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """2 -> 3 slots from a savepoint, -> 1 from the checkpoint after which the job was stopped at once; each in the
    middle of the rows.
    """
    target, folder, savepoint = Target(), str(tmp_path / "job"), str(tmp_path / "savepoint")

    def slow(row: dict[str, int]) -> dict[str, int]:
        time.sleep(0.003)
        return row

    def started(**options: Any) -> LocalJobHandle:
        flow = Dataflow("reads")
        read(flow).map(slow, schema={"n": int}).sink("out", target)
        return flow.start_local(checkpoints=folder, checkpoint_interval=0.05, **options)

    def come(job: LocalJobHandle, many: int) -> None:
        until(lambda: job.done or len(target.rows()) >= many, f"{many} rows came")
        assert not job.done, job.status().error

    with kind(request, tmp_path / "source") as (write, read):
        write(list(range(STAGE)))
        with started(parallelism=2) as job:
            come(job, STAGE // 3)
            request_of = SavepointRequest(uuid.uuid4().hex, savepoint, stops=True)
            job._ask(lambda runner: runner.stop("checkpoint", request_of))
            job.wait(120)
        before = len(target.rows())
        write(list(range(STAGE, 2 * STAGE)))
        with started(parallelism=3, restore=savepoint) as job:
            come(job, before + STAGE // 3)
        write(list(range(2 * STAGE, 3 * STAGE)))
        with started(parallelism=1) as job:
            come(job, 3 * STAGE)
            job.stop()
            job.wait(120)
    assert sorted(row["n"] for row in target.rows()) == list(range(3 * STAGE))
