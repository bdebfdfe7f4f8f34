"""String-view columns of Parquet files, which Polars writes, are text in every step."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import CollectSink, Dataflow, Sliding, last

MS = datetime.timedelta(milliseconds=1)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_views_go_through_filters_and_windows(tmp_path: Path, parallelism: int) -> None:
    numbers = list(range(300))
    keys, text = pa.array([f"k{n % 20}" for n in numbers]), pa.array([str(n) for n in numbers], pa.string_view())
    pq.write_table(pa.table({"k": keys.cast(pa.string_view()), "t": numbers, "v": text}), tmp_path / "a.parquet")
    flow, out, filtered = Dataflow("views"), CollectSink(), CollectSink()
    rows = flow.read_parquet("rows", tmp_path, event_time="t")
    assert rows.schema == pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.string())])
    windows = rows.key_by("k").window("w", Sliding(300 * MS, 150 * MS), event_time="t")
    windows.aggregate(last=last("v")).sink("out", out)
    rows.filter("t < 20 AND v <> '3'").sink("filtered", filtered)
    flow.run_local(parallelism=parallelism, restart="none")
    assert max(int(row["last"]) for row in out.rows()) == 299
    assert sorted(row["t"] for row in filtered.rows()) == [0, 1, 2, *range(4, 20)]


@pytest.mark.parametrize("declared", [pa.string(), pa.large_string()], ids=str)
def test_a_file_with_views_may_be_read_as_text_of_another_width(tmp_path: Path, declared: pa.DataType) -> None:
    pq.write_table(pa.table({"v": pa.array(["a", None], pa.string_view())}), tmp_path / "a.parquet")
    flow, out = Dataflow("views"), CollectSink()
    flow.read_parquet("rows", tmp_path, schema={"v": declared}).sink("out", out)
    flow.run_local(parallelism=1, restart="none")
    assert out.rows() == [{"v": "a"}, {"v": None}]


def test_rows_of_a_filter_that_are_declared_as_views_are_text() -> None:
    flow, out = Dataflow("views"), CollectSink()
    given = [{"n": n, "v": "x" * n} for n in range(100)]
    schema = pa.schema([("n", pa.int64()), ("v", pa.string_view())])
    rows = flow.from_iterator("rows", lambda part, of: given, schema=schema, splits=1)
    rows.filter("length(v) > 97").sink("out", out)
    by_function, long = CollectSink(), CollectSink()
    rows.filter(lambda row: row["n"] > 97).sink("by-function", by_function)
    rows.split("size", lambda row: "long" if row["n"] > 97 else "short", into=["long", "short"])[0].sink("long", long)
    flow.run_local(parallelism=2, restart="none")
    assert out.rows() == by_function.rows() == long.rows() == given[98:]


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["n < 30000 OR n % 2 = 0", lambda row: row["n"] < 30_000 or row["n"] % 2 == 0])
def test_rows_of_a_filter_have_one_schema_whether_it_keeps_all_of_a_batch_or_some(condition: Any) -> None:
    flow, out = Dataflow("dictionaries"), CollectSink()
    rows = flow.from_iterator("rows", lambda part, of: ({"n": n} for n in range(60_000)), schema={"n": int}, splits=1)
    coded = rows.map_batches(
        lambda batch: batch.append_column("v", batch.column("n").cast("string").dictionary_encode())
    )
    coded.filter(condition).map_batches(lambda batch: batch).sink("out", out)
    flow.run_local(parallelism=1, restart="none")
    assert len(out.rows()) == 45_000
