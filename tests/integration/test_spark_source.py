"""A DataFrame as a source, on real Spark: the query runs once per job, and restarts read the very same rows."""

import datetime
import decimal
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import enough, is_enough, visible_files

from barrier_runtime import Dataflow, JsonlSink, ParquetSink, committed_files
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store
from tests.waiting import until

ROWS, PARTITIONS = 12_000, 100


@pytest.fixture(scope="module", autouse=True)
def credentials(s3_endpoint: str, spark: Any) -> None:
    """Spark's Python workers write to S3. They inherit the JVM's environment, which may be older than the server."""
    names = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"
    spark.sparkContext.environment.update({name: os.environ[name] for name in names})


def random_rows(spark: Any) -> Any:
    """A query that returns different rows on each run."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "uuid() as token")


def flow_of(dataframe: Any, out: Path, staging: str | None = None) -> Dataflow:
    def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not is_enough(out):
            time.sleep(0.5)  # the job is broken off between two partitions: there are many
        return batch

    flow = Dataflow("from-spark")
    flow.from_spark("rows", dataframe, staging=staging).map_batches(slowly).sink("out", JsonlSink(str(out)))
    return flow


def visible(out: Path) -> list[tuple[int, str]]:
    rows = (json.loads(line) for path in visible_files(out) for line in path.read_text().splitlines())
    return sorted((row["id"], row["token"]) for row in rows)


def staged_rows(url: str) -> list[tuple[int, str]]:
    store = open_store(url)
    keys = sorted(found.key for found in store.list("from-spark/sources/rows/") if found.key.endswith(".parquet"))
    tables = [pq.read_table(pa.BufferReader(store.get(key))) for key in keys]
    return sorted(zip(*pa.concat_tables(tables).to_pydict().values(), strict=True))


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_interrupted_and_restarted_program_reads_the_rows_of_the_first_query(
    spark: Any, tmp_path: Path, s3_url: Callable[[str], str], where: str
) -> None:
    """T1: the query returns different rows on each run; every row of the single run is visible once."""
    checkpoints = s3_url("job") if where == "s3" else str(tmp_path / "checkpoints")
    out = tmp_path / "out"
    options: dict[str, Any] = {
        "checkpoints": checkpoints,
        "parallelism": 2,
        "checkpoint_interval": 0.2,
        "spark": spark,
    }
    with flow_of(random_rows(spark), out).start(**options) as handle:
        until(lambda: visible_files(out), "rows are visible")
        handle.stop("now")
        handle.wait()
    wanted = staged_rows(checkpoints)
    assert len(wanted) == ROWS
    before = visible(out)
    assert 0 < len(before) < ROWS, "it was broken off in mid-stream"
    enough(out)
    flow_of(random_rows(spark), out).run(**{**options, "parallelism": 3})
    assert visible(out) == wanted
    left = [found.key for found in open_store(checkpoints).list("from-spark/sources/")]
    assert left == ["from-spark/sources/rows/current.json"]


def test_fresh_start_reruns_the_query_and_other_starts_refuse_other_columns(spark: Any, tmp_path: Path) -> None:
    staging = str(tmp_path / "staging")
    options: dict[str, Any] = {"checkpoints": str(tmp_path / "checkpoints"), "parallelism": 1}

    def few() -> Any:
        return spark.range(0, 10, 1, 2).selectExpr("id", "uuid() as token")  # a different plan has a different seed

    flow_of(few(), tmp_path / "out-1", staging).run_local(**options)
    other = spark.range(0, 10, 1, 2).selectExpr("id", "cast(id as string) as name")
    with pytest.raises(InvalidJob, match="the DataFrame has other columns than the rows that job 'from-spark' staged"):
        flow_of(other, tmp_path / "out-2", staging).run_local(**options)
    flow_of(few(), tmp_path / "out-3", staging).run_local(**options, restore="none", allow_replay=True)
    first, second = visible(tmp_path / "out-1"), visible(tmp_path / "out-3")
    assert [id for id, _ in first] == [id for id, _ in second] == list(range(10))
    assert not {token for _, token in first} & {token for _, token in second}


def test_values_of_all_kinds_arrive_as_arrow_holds_them_and_timestamps_in_utc(spark: Any, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/Sao_Paulo")
    try:
        dataframe = spark.sql(
            "select 1 as i, cast(2 as bigint) as l, 1.5D as x, cast('12.34' as decimal(10, 2)) as d, true as b, "
            "'é' as s, X'00ff' as raw, date'2020-02-29' as day, timestamp'2020-01-01 00:00:00' as at, "
            "timestamp_ntz'2020-01-01 00:00:00' as wall, array(1, null) as a, named_struct('p', 1, 'q', 'x') as st, "
            "map('k', 1) as m, cast(null as string) as nothing"
        )
        sink = CollectSink()
        flow = Dataflow("kinds")
        flow.from_spark("rows", dataframe).sink("out", sink)
        flow.run_local(checkpoints=str(tmp_path))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    [row] = sink.rows()
    utc = datetime.timezone.utc
    assert row == {
        "i": 1,
        "l": 2,
        "x": 1.5,
        "d": decimal.Decimal("12.34"),
        "b": True,
        "s": "é",
        "raw": b"\x00\xff",
        "day": datetime.date(2020, 2, 29),
        "at": datetime.datetime(2020, 1, 1, 3, tzinfo=utc),
        "wall": datetime.datetime(2020, 1, 1),
        "a": [1, None],
        "st": {"p": 1, "q": "x"},
        "m": [("k", 1)],
        "nothing": None,
    }


def test_a_dataframe_without_rows_is_read_to_its_end(spark: Any, tmp_path: Path) -> None:
    result = flow_of(spark.range(0, 0), tmp_path / "out").run_local(checkpoints=str(tmp_path / "c"))
    assert result.records == 0


def test_explain_runs_no_query(spark: Any, tmp_path: Path) -> None:
    failing = spark.range(3).selectExpr("raise_error('it was run') as x")
    assert "a Spark DataFrame, staged when the job starts" in flow_of(failing, tmp_path / "out").explain()


def test_a_query_that_fails_is_given_up_although_the_session_would_try_for_ever(spark: Any, tmp_path: Path) -> None:
    failing = spark.range(3).selectExpr("raise_error('no such shop') as x")
    with pytest.raises(InvalidJob, match=r"source 'rows': the query of its DataFrame failed.*no such shop") as told:
        flow_of(failing, tmp_path / "out").run_local(checkpoints=str(tmp_path / "c"))
    assert "\tat org.apache" not in str(told.value)


def test_what_cannot_be_staged_is_refused_before_anything_runs(spark: Any, tmp_path: Path) -> None:
    flow = Dataflow("refused")
    twice = spark.range(3).selectExpr("id", "id as id")
    with pytest.raises(InvalidJob, match="column 'id' is in the DataFrame twice"):
        flow.from_spark("rows", twice)
    with pytest.raises(InvalidJob, match="Table is not a Spark DataFrame"):
        flow.from_spark("rows", pa.table({"a": [1]}))
    with pytest.raises(InvalidJob, match="is a stream and has no end: pass one made with read"):
        flow.from_spark("rows", spark.readStream.format("rate").load())
    with pytest.raises(InvalidJob, match="the memory of one process: pass staging="):
        flow_of(spark.range(3), tmp_path / "out").run_local(checkpoints="memory://x")


def test_spark_reads_committed_files_of_a_folder_with_a_space_in_its_name(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "my dir"
    flow = Dataflow("spaces")
    flow.from_iterator("n", lambda i, of: iter([{"n": i}]), schema={"n": pa.int64()}, splits=2).sink(
        "out", ParquetSink(str(out))
    )
    flow.run_local()
    assert sorted(row.n for row in spark.read.parquet(*committed_files(str(out))).collect()) == [0, 1]
