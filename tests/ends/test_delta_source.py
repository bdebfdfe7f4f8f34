"""Delta tables as a source: a version, then what is appended, from any position on."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from barrier_runtime import CollectSink, Dataflow, DeltaSource
from barrier_runtime.connectors.source_bases.table_reader import TableRows
from barrier_runtime.state.errors import InvalidJob
from examples.servers import S3Server
from tests.ends.changes_world import wait_until
from tests.ends.test_iceberg_source import reading, taken

SOON = datetime.timedelta(milliseconds=50)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "a table")


def append(url: str, *numbers: int, **options: Any) -> None:
    write_deltalake(url, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append", **options)


def source(url: str, **options: Any) -> TableRows:
    return DeltaSource(url, **{"every": SOON, **options}).named("numbers")


def test_the_newest_version_comes_first_then_what_is_appended_from_any_row_on(folder: str) -> None:
    append(folder, 1, 2, 3)
    append(folder, 4, 5)
    rows = source(folder)
    with reading(rows) as reader:
        whole = taken(reader, 5)
        assert sorted(whole) == [1, 2, 3, 4, 5]
        append(folder, 6, 7)
        append(folder, 8)
        added = taken(reader, 3)
    assert added == [6, 7, 8]
    cut: list[int] = []
    position = json.dumps({"snapshot": 1}).encode()
    for _ in range(8):
        with reading(rows, position) as reader:
            cut += taken(reader, 1)
            position = reader.position()
    assert cut == whole + added


def test_partition_columns_with_strange_names_come_too(folder: str) -> None:
    def write(*rows: dict[str, Any]) -> None:
        write_deltalake(folder, pa.Table.from_pylist(list(rows)), mode="append", partition_by=["p a"])

    write({"n": 1, "p a": "x y"}, {"n": 2, "p a": "%/b"})
    with reading(source(folder)) as reader:
        assert sorted(taken(reader, 2)) == [1, 2]
        write({"n": 3, "p a": "x y"}, {"n": 4, "p a": None})
        assert sorted(taken(reader, 2)) == [3, 4]


def test_compactions_are_passed_over_and_changed_rows_end_the_job(folder: str) -> None:
    append(folder, 1)
    append(folder, 2)
    with reading(source(folder)) as reader:
        taken(reader, 2)
        DeltaTable(folder).optimize.compact()
        append(folder, 3)
        assert taken(reader, 1) == [3]
        DeltaTable(folder).delete("n = 1")
        with pytest.raises(InvalidJob, match=r"only appended rows can be followed.*restore='none'"):
            taken(reader, 1)


def test_a_log_that_was_removed_unread_ends_the_job(folder: str) -> None:
    append(folder, 1)
    rows = source(folder)
    with reading(rows) as reader:
        taken(reader, 1)
        wait_until(lambda: reader.poll(1, 0) is None, "the end of the version")
        position = reader.position()
    append(folder, 2)
    append(folder, 3)
    DeltaTable(folder).create_checkpoint()
    Path(folder, "_delta_log", f"{1:020d}.json").unlink()
    with reading(rows, position) as reader, pytest.raises(InvalidJob, match="has no version 1 any more"):
        taken(reader, 1)


def test_what_is_no_table_is_refused(folder: str) -> None:
    Path(folder).mkdir()
    with pytest.raises(InvalidJob, match="there is no Delta table"):
        source(folder)
    with pytest.raises(InvalidJob, match="use a folder, file:// or s3://"):
        source("gs://bucket/table")


def test_a_job_reads_a_table_on_s3_to_its_end(s3: S3Server, tmp_path: Path) -> None:
    url = f"{s3.url}/tables/numbers"
    options = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}
    append(url, *range(2_000), storage_options=options)
    flow, out = Dataflow("from-delta"), CollectSink()
    flow.source("numbers", DeltaSource(url)).sink("out", out)
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.05)
    assert sorted(row["n"] for row in out.rows()) == list(range(2_000))
