"""Parquet files, folders by columns, and tables of the real world."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, DeltaSource, JobFailed, ParquetSink, ParquetSource


def read(source: Any, **options: Any) -> list[dict[str, Any]]:
    """All rows of a source, read by a whole job."""
    flow, out = Dataflow("field"), CollectSink()
    flow.source("in", source, **options).sink("out", out)
    flow.run_local(parallelism=1)
    return list(out.rows())


def read_columns(source: Any) -> pa.Table:
    """The same as Arrow has it, for values that Python has none for."""
    named = source.named("in")
    batches = []
    for split in named.splits(1):
        reader = named.reader(split)
        while not reader.finished:
            if (polled := reader.poll(1_000, 0)) is not None:
                batches.append(polled.rows)
    return pa.Table.from_batches(batches, named.schema)


def write_int96(path: Path, values: list[Any], unit: str = "us") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"at": pa.array(values, pa.timestamp(unit))})
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)


FAR = [datetime.datetime(*each) for each in ((1, 1, 1), (1000, 1, 1), (2024, 2, 29, 1, 2, 3, 456789), (9999, 12, 31))]


# Source: our own trial
def test_int96_times_of_any_year_are_read(tmp_path: Path) -> None:
    write_int96(tmp_path / "a.parquet", [*FAR, None])
    assert [row["at"] for row in read(ParquetSource(str(tmp_path)))] == [*FAR, None]


# Source: our own trial
def test_int96_nanoseconds_are_kept_or_refused(tmp_path: Path) -> None:
    write_int96(tmp_path / "a.parquet", [1, 1_001], "ns")
    with pytest.raises(JobFailed, match=r"a\.parquet: column 'at' has times with nanoseconds"):
        read(ParquetSource(str(tmp_path)))
    kept = read_columns(ParquetSource(str(tmp_path), schema={"at": pa.timestamp("ns")}))
    assert kept["at"].cast(pa.int64()).to_pylist() == [1, 1_001]


# Source: our own trial
def test_int96_times_of_a_delta_table_are_read(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Field, Schema
    from deltalake.schema import PrimitiveType
    from deltalake.transaction import AddAction

    schema = Schema([Field("at", PrimitiveType("timestamp"), nullable=True)])
    table = DeltaTable.create(str(tmp_path), schema)
    write_int96(tmp_path / "a.parquet", FAR)
    size = (tmp_path / "a.parquet").stat().st_size
    table.create_write_transaction([AddAction("a.parquet", size, {}, 0, True, "{}")], "append", schema)
    at = [row["at"].replace(tzinfo=None) for row in read(DeltaSource(str(tmp_path)))]
    assert at == FAR


def partitioned(folder: Path, values: list[Any], kind: pa.DataType) -> dict[int, Any]:
    """Value of column `k` by row number, as read back from folders by that column."""
    schema = pa.schema([("n", pa.int64()), ("k", kind)])
    rows = pa.table({"n": list(range(len(values))), "k": pa.array(values, kind)}, schema=schema)
    (folder / "_in").mkdir(parents=True)
    pq.write_table(rows, folder / "_in" / "a.parquet")
    flow = Dataflow("write")
    flow.read_parquet("in", str(folder / "_in")).sink("out", ParquetSink(str(folder / "out"), partition_by="k"))
    flow.run_local(parallelism=1)
    return {row["n"]: row["k"] for row in read(ParquetSource(str(folder / "out"), schema=schema))}


# Source: our own trial
def test_null_and_the_text_that_stands_for_it_have_two_folders(tmp_path: Path) -> None:
    values = [None, "__HIVE_DEFAULT_PARTITION__", "x", None, "__HIVE_DEFAULT_PARTITION__", ""]
    found = partitioned(tmp_path, values, pa.string())
    assert found == {n: value or None for n, value in enumerate(values)}


# Source: our own trial
def test_every_text_has_a_folder_of_its_own(tmp_path: Path) -> None:
    values = ["a", "A", "a.", "a ", " a", ".", "..", "a%20", "a%2E", "%", "a/b", "a=b", "a+b", "\n", "ü", "null", "é?#"]
    assert partitioned(tmp_path, values, pa.string()) == dict(enumerate(values))


# Source: our own trial
def test_dates_in_folders_are_days_of_a_calendar(tmp_path: Path) -> None:
    days = [datetime.date.min, datetime.date(2024, 2, 29), datetime.date.max, None]
    assert partitioned(tmp_path / "days", days, pa.date32()) == dict(enumerate(days))
    with pytest.raises(JobFailed, match="column 'k' has a date with a time of day, or beyond"):
        partitioned(tmp_path / "far", [1 << 30], pa.date32())
