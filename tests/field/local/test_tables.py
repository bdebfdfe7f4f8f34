"""Parquet files, folders by columns, and tables of the real world."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import (
    CollectSink,
    Dataflow,
    DeltaSink,
    DeltaSource,
    IcebergSink,
    IcebergSource,
    InvalidJob,
    JobFailed,
    ParquetSink,
    ParquetSource,
)


def read(source: Any, **options: Any) -> list[dict[str, Any]]:
    flow, out = Dataflow("field"), CollectSink()
    flow.source("in", source, **options).sink("out", out)
    flow.run_local(parallelism=1)
    return list(out.rows())


def read_columns(source: Any) -> pa.Table:
    """The columns in Arrow, for values without a Python equivalent."""
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
@pytest.mark.slow
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
@pytest.mark.slow
def test_null_and_the_text_that_stands_for_it_have_two_folders(tmp_path: Path) -> None:
    values = [None, "__HIVE_DEFAULT_PARTITION__", "x", None, "__HIVE_DEFAULT_PARTITION__", ""]
    found = partitioned(tmp_path, values, pa.string())
    assert found == {n: value or None for n, value in enumerate(values)}


# Source: our own trial
@pytest.mark.slow
def test_every_text_has_a_folder_of_its_own(tmp_path: Path) -> None:
    values = ["a", "A", "a.", "a ", " a", ".", "..", "a%20", "a%2E", "%", "a/b", "a=b", "a+b", "\n", "ü", "null", "é?#"]
    assert partitioned(tmp_path, values, pa.string()) == dict(enumerate(values))


# Source: our own trial
@pytest.mark.slow
def test_dates_in_folders_are_days_of_a_calendar(tmp_path: Path) -> None:
    days = [datetime.date.min, datetime.date(2024, 2, 29), datetime.date.max, None]
    assert partitioned(tmp_path / "days", days, pa.date32()) == dict(enumerate(days))
    with pytest.raises(JobFailed, match="column 'k' has a date with a time of day, or beyond"):
        partitioned(tmp_path / "far", [1 << 30], pa.date32())


# Source: our own trial
@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink])
def test_a_value_too_long_for_a_folder_is_refused_before_it_is_decided(tmp_path: Path, sink: Any) -> None:
    flow, rows = Dataflow("long"), [{"n": 1, "city": "ok"}, {"n": 2, "city": "ü" * 150}]
    flow.from_iterator("in", lambda index, count: iter(rows), schema={"n": int, "city": str}, splits=1).sink(
        "out", sink(str(tmp_path / "out"), partition_by=["city"])
    )
    with pytest.raises(JobFailed, match=r"'city' with the value 'ü+'… has a name of 305 bytes, and 255 are allowed"):
        flow.run_local(parallelism=1, checkpoints=str(tmp_path / "checkpoints"))


DELTA_VALUES = {
    "string": (pa.string(), ["a", "a/b=c%20d", "é", "a.", None, "", "x y", "__HIVE_DEFAULT_PARTITION__"]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [datetime.date.min, datetime.date.max, None]),
}


# Source: our own trial
@pytest.mark.slow
@pytest.mark.parametrize("kind", DELTA_VALUES)
def test_a_partitioned_delta_table_has_folders_that_every_reader_reads(tmp_path: Path, kind: str) -> None:
    import polars
    from deltalake import DeltaTable

    column, values = pa.array(DELTA_VALUES[kind][1], DELTA_VALUES[kind][0]), DELTA_VALUES[kind][1]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": range(len(values)), "k": column}), tmp_path / "in" / "a.parquet")
    flow, url = Dataflow("delta"), str(tmp_path / "table")
    flow.read_parquet("in", str(tmp_path / "in")).sink("out", DeltaSink(url, partition_by="k"))
    flow.run_local(parallelism=1)
    want = {n: value or (None if kind == "string" else value) for n, value in enumerate(values)}
    assert all(path.parent.name.startswith("k=") for path in (tmp_path / "table").rglob("part-*"))
    assert {row["n"]: row["k"] for row in read(DeltaSource(url))} == want
    assert {row["n"]: row["k"] for row in DeltaTable(url).to_pyarrow_table().to_pylist()} == want
    seen = dict(polars.scan_delta(url).select("n", "k").collect().iter_rows())
    want = {n: None if value == "__HIVE_DEFAULT_PARTITION__" else value for n, value in want.items()}  # by folder
    assert seen == want


# Source: our own trial
@pytest.mark.slow
def test_an_empty_partition_text_of_a_change_feed_is_null(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    rows = pa.table({"id": [1, 2, 3], "k": ["a", "", None], "v": [0, 0, 0]})
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path), rows, partition_by=["k"], configuration=feed)
    seen: dict[int, tuple[str | None, int]] = {}

    def keep(row: dict[str, Any]) -> bool:
        seen[row["id"]] = row["k"], row["v"]
        if row["v"] == 0 and len(seen) == 3:
            DeltaTable(str(tmp_path)).update({"v": "1"})
        return True

    flow = Dataflow("feed")
    changes = flow.source("in", DeltaSource(str(tmp_path), key=["id"], every=datetime.timedelta(milliseconds=50)))
    changes.filter(keep).take(6)
    assert seen == {1: ("a", 1), 2: (None, 1), 3: (None, 1)}


# Source: our own trial
def test_a_sink_in_the_folder_that_its_source_watches_is_refused(tmp_path: Path) -> None:
    folder, link = tmp_path / "my data", tmp_path / "link"
    write_int96(folder / "a.parquet", FAR)
    link.symlink_to(folder)
    every, pattern = datetime.timedelta(seconds=1), f"{link}/**/*.parquet"
    for path, out in ((folder, folder), (link, folder / "out"), (folder, link), (pattern, folder / "out")):
        flow = Dataflow("circle")
        flow.source("in", ParquetSource(str(path), watch=every)).sink("out", ParquetSink(str(out)))
        with pytest.raises(InvalidJob, match="come in again for ever: write to another place"):
            flow.explain()


# Source: our own trial
def test_a_sink_beside_the_files_of_its_source_is_no_circle(tmp_path: Path) -> None:
    write_int96(tmp_path / "in" / "a.parquet", FAR)
    every = datetime.timedelta(seconds=1)
    for path, out in (("in", "out"), ("in/*.parquet", "in/out"), ("in/a*.parquet", "in")):
        flow = Dataflow("line")
        flow.read_parquet("in", str(tmp_path / path), watch=every).sink("out", ParquetSink(str(tmp_path / out)))
        flow.explain()
    flow = Dataflow("twice")
    flow.read_parquet("in", str(tmp_path / "in")).sink("out", ParquetSink(str(tmp_path / "in")))
    with pytest.warns(UserWarning, match="a new start of the flow reads its rows too"):
        flow.explain()


# Source: our own trial
@pytest.mark.slow
def test_percent_signs_of_a_file_url_are_decoded(tmp_path: Path) -> None:
    write_int96(tmp_path / "my data" / "a.parquet", FAR)
    assert len(read(ParquetSource(f"file://{tmp_path}/my%20data"))) == len(FAR)
    assert len(read(ParquetSource(f"file://{tmp_path}/my%20data/*.parquet"))) == len(FAR)


# Source: our own trial
def test_a_delta_column_of_another_type_ends_the_job_that_follows_it(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    def write(values: list[Any], **options: Any) -> None:
        write_deltalake(str(tmp_path), pa.table({"id": list(range(len(values))), "v": values}), **options)

    write(["1", "2"])
    seen: list[Any] = []

    def keep(row: dict[str, Any]) -> bool:
        seen.append(row["v"])
        if len(seen) == 2:
            write([7, 8], mode="overwrite", schema_mode="overwrite")
        return True

    flow = Dataflow("types")
    changes = flow.source("in", DeltaSource(str(tmp_path), key=["id"], every=datetime.timedelta(milliseconds=50)))
    with pytest.raises(JobFailed, match=r"column 'v' of the table .* was string when the program started and is int64"):
        changes.filter(keep).take(4)
    assert seen == ["1", "2"]


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    """Properties of an Iceberg catalog with the namespace `db`."""
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    load_catalog("default", **properties).create_namespace("db")
    return properties


def iceberg_table(catalog: dict[str, str], schema: pa.Schema) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **catalog).create_table("db.t", schema)


def append(catalog: dict[str, str], rows: pa.Table, folder: Path) -> None:
    """A whole job that appends the rows to `db.t`."""
    folder.mkdir()
    pq.write_table(rows, folder / "a.parquet")
    flow = Dataflow("iceberg")
    flow.read_parquet("in", str(folder)).sink("out", IcebergSink("db.t", properties=catalog))
    flow.run_local(parallelism=1)


# Source: our own trial
@pytest.mark.parametrize(
    ("of_time", "of_text"),
    [
        ("day", "bucket[4]"),
        pytest.param("year", "truncate[3]", marks=pytest.mark.slow),
        pytest.param("month", "identity", marks=pytest.mark.slow),
        pytest.param("hour", "void", marks=pytest.mark.slow),
    ],
)
def test_an_iceberg_table_takes_rows_by_every_partition(
    tmp_path: Path, catalog: dict[str, str], of_time: str, of_text: str
) -> None:
    from pyiceberg.transforms import parse_transform

    rows = pa.table(
        {
            "at": pa.array([datetime.datetime(1960, 1, 1), FAR[2], FAR[3], None], pa.timestamp("us")),
            "text": ["abcdef", "äöüäöü", "", None],
        }
    )
    table = iceberg_table(catalog, rows.schema)
    with table.update_spec() as spec:
        spec.add_field("at", parse_transform(of_time), "time_part")
        spec.add_field("text", parse_transform(of_text), "text_part")
    append(catalog, rows, tmp_path / "in")
    found = read(IcebergSource("db.t", properties=catalog))
    assert sorted(found, key=str) == sorted(rows.to_pylist(), key=str)


# Source: our own trial
def test_an_iceberg_table_by_days_is_refused_at_the_start_without_the_library(
    catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = pa.table({"at": pa.array(FAR, pa.timestamp("us"))})
    with iceberg_table(catalog, rows.schema).update_spec() as spec:
        spec.add_field("at", "day", "day")
    monkeypatch.setattr("barrier_runtime.connectors.iceberg.library.find_spec", lambda name: None)
    with pytest.raises(JobFailed, match=r"is partitioned by day, .* pip install 'barrier-runtime\[iceberg\]'"):
        append(catalog, rows, tmp_path / "in")


# Source: our own trial
@pytest.mark.slow
def test_uuids_of_an_iceberg_table_are_appended_and_read(tmp_path: Path, catalog: dict[str, str]) -> None:
    import uuid

    ids = [uuid.UUID(int=number) for number in (0, 1, 2**128 - 1)]
    rows = pa.table({"id": pa.array([each.bytes for each in ids], pa.uuid())})
    iceberg_table(catalog, rows.schema)
    append(catalog, rows, tmp_path / "uuids")
    append(catalog, pa.table({"id": rows["id"].cast(pa.binary(16))}), tmp_path / "bytes")
    assert sorted(row["id"] for row in read(IcebergSource("db.t", properties=catalog))) == sorted(ids * 2)


# Source: our own trial
@pytest.mark.slow
def test_an_iceberg_column_that_was_renamed_away_ends_the_job_that_follows_it(catalog: dict[str, str]) -> None:
    rows = pa.table({"n": [1, 2], "v": ["a", "b"]})
    table = iceberg_table(catalog, rows.schema)
    table.append(rows)
    seen: list[Any] = []

    def keep(row: dict[str, Any]) -> bool:
        seen.append(row["v"])
        if len(seen) == 2:
            with table.update_schema() as change:
                change.rename_column("v", "w")
            with table.update_schema() as change:
                change.add_column("v", StringType())
            table.append(pa.table({"n": [3], "w": ["c"], "v": ["other"]}))
        return True

    from pyiceberg.types import StringType

    flow = Dataflow("renamed")
    every = datetime.timedelta(milliseconds=50)
    changes = flow.source("in", IcebergSource("db.t", properties=catalog, every=every))
    with pytest.raises(JobFailed, match=r"column 'v' of the table db\.t is another one than when the program started"):
        changes.filter(keep).take(3)
    assert seen == ["a", "b"]


# Source: our own trial
def test_a_parquet_file_with_another_nested_field_is_refused_with_its_column(tmp_path: Path) -> None:
    for name, kind in (("a", pa.struct([("x", pa.int64())])), ("b", pa.struct([("y", pa.int64())]))):
        pq.write_table(pa.table({"s": pa.array([None], kind)}), tmp_path / f"{name}.parquet")
    flow = Dataflow("nested")
    flow.read_parquet("in", str(tmp_path)).sink("out", CollectSink())
    with pytest.raises(InvalidJob, match=r"b\.parquet: column 's' is struct<y: int64>, wanted is struct<x: int64>"):
        flow.explain()


# Source: our own trial
@pytest.mark.parametrize(
    ("text", "kind"),
    [("1e300", "float32"), ("1.505", "decimal128(5, 2)"), ("2024-01-01 00%3A00%3A00.1234567", "timestamp[us]")],
)
def test_a_folder_whose_value_a_type_would_change_is_refused(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / f"k={text}").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / f"k={text}" / "a.parquet")
    with pytest.raises(JobFailed, match=r"a\.parquet: its folder says k=.*: give that column another type in schema="):
        read(ParquetSource(str(tmp_path), schema={"n": int, "k": kind}))


# Source: our own trial
def test_folder_types_are_guessed_only_where_they_write_the_name_back(tmp_path: Path) -> None:
    whole, text, day = pa.int64(), pa.string(), pa.date32()
    guessed = (
        (whole, ["1", "-20", "0"]),
        (whole, ["01", "12"]),
        (day, ["2024-02-29"]),
        *(
            (text, names)
            for names in (["1", "01"], ["007"], ["+1"], ["-0"], ["1" * 20], ["2023-02-29"], ["1.0"], ["true"])
        ),
    )
    for number, (kind, names) in enumerate(guessed):
        for name in names:
            (tmp_path / str(number) / f"k={name}").mkdir(parents=True)
            pq.write_table(pa.table({"n": [1]}), tmp_path / str(number) / f"k={name}" / f"{name}.parquet")
        assert ParquetSource(str(tmp_path / str(number))).named("in").schema.field("k").type == kind, names
