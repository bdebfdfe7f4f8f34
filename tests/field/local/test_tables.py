"""Parquet files, folders by columns, and tables of the real world."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, DeltaSource, JobFailed, ParquetSource


def read(source: Any, **options: Any) -> list[dict[str, Any]]:
    """All rows of a source, read by a whole job."""
    flow, out = Dataflow("field"), CollectSink()
    flow.source("in", source, **options).sink("out", out)
    flow.run_local(parallelism=1)
    return list(out.rows())


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
    write_int96(tmp_path / "a.parquet", [1, 1_000_000_000_000_000_001], "ns")
    with pytest.raises(JobFailed, match=r"a\.parquet: column 'at' has times with nanoseconds"):
        read(ParquetSource(str(tmp_path)))
    kept = read(ParquetSource(str(tmp_path), schema={"at": pa.timestamp("ns")}))
    assert pa.array([row["at"] for row in kept], pa.timestamp("ns")).cast(pa.int64()).to_pylist() == [1000, 1001000]


# Source: our own trial
def test_int96_times_of_a_delta_table_are_read(tmp_path: Path) -> None:
    from deltalake import DeltaTable, Field, PrimitiveType, Schema
    from deltalake.transaction import AddAction

    schema = Schema([Field("at", PrimitiveType("timestamp"), nullable=True)])
    table = DeltaTable.create(str(tmp_path), schema)
    write_int96(tmp_path / "a.parquet", FAR)
    size = (tmp_path / "a.parquet").stat().st_size
    table.create_write_transaction([AddAction("a.parquet", size, {}, 0, True, "{}")], "append", schema)
    at = [row["at"].replace(tzinfo=None) for row in read(DeltaSource(str(tmp_path)))]
    assert at == FAR
