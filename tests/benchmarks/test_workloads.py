"""Each workload in our language gives what its SQL gives, on the same bounded events."""

import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink
from benchmarks import events, nexmark
from benchmarks.paced_source import PacedSource
from benchmarks.workloads import WIDE_BYTES, Workload, names, wide_value, workload

KEYS, ROWS, PACE = 300, 30_000, 500  # a minute of event time: several windows


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    events.write_parquet(folder / "events/part.parquet", events.bounded(0, ROWS, KEYS, PACE))
    events.write_parquet(folder / "nexmark/part.parquet", nexmark.bounded(0, ROWS, PACE))
    return folder


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def ours(known: Workload, folder: Path) -> list[dict[str, Any]]:
    sink = CollectSink()
    flow, result = known.flow(lambda flow: flow.read_parquet("events", str(folder), event_time="at"))
    result.sink("out", sink)
    flow.run_local(parallelism=2)
    return sink.rows()


def compared(known: Workload, rows: list[dict[str, Any]], columns: list[str]) -> list[tuple[Any, ...]]:
    """The rows, in an order that is the same for both; of a running result the last row of each group."""
    if known.group:
        rows = list({tuple(row[name] for name in known.group): row for row in rows}.values())
    return sorted(tuple(row[name] for name in columns) for row in rows)


@pytest.mark.spark
@pytest.mark.parametrize("name", names())
def test_the_answer_is_that_of_spark_sql(name: str, inputs: Path, spark: Any) -> None:
    known = workload(name)
    folder = inputs / known.input
    spark.read.parquet(str(folder)).selectExpr("*", "timestamp_millis(at) AS ts").createOrReplaceTempView("events")
    result = spark.sql(known.sql)
    columns = list(known.answer) or [column for column in result.columns if not (known.group and column == "emitted")]
    expected = compared(known, [row.asDict() for row in result.collect()], columns)
    assert len(expected) > 3
    assert compared(known, ours(known, folder), columns) == expected


@pytest.mark.parametrize("name", names("events"))
def test_every_result_says_what_its_latency_counts_from(name: str) -> None:
    known = workload(name)
    flow, result = known.flow(lambda flow: flow.source("events", PacedSource(1_000, 10), event_time="at"))
    assert flow.name == f"bench-{name}"
    assert result.schema is not None
    assert "emitted" in result.schema.names


def test_wide_state_is_a_hundred_bytes_with_its_key_that_follow_from_it_and_do_not_compress() -> None:
    values = [wide_value(key, 3) for key in range(1_000)]
    assert {len(value) for value in values} == {WIDE_BYTES - 8}
    assert values == [wide_value(key, 3) for key in range(1_000)]
    noise = b"".join(value[8:] for value in values)
    assert len(zlib.compress(noise, 9)) >= len(noise)
    assert not set(values) & {wide_value(key, 4) for key in range(1_000)}


def test_an_unknown_workload_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="keyed-count, python-count"):
        workload("keyed")
