"""Are our answers right? Each workload on bounded events in our language, and the same as a batch of Spark SQL."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from barrier_runtime import CollectSink
from benchmarks.inputs import file_rows, with_input
from benchmarks.spec import RunSpec
from benchmarks.workloads import Workload, workload

Rows = list[tuple[Any, ...]]


@contextlib.contextmanager
def spark_session() -> Iterator[Any]:
    """Local, of two cores, in UTC."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def answers(known: Workload, folder: Path, spark: Any, parallelism: int = 2) -> tuple[Rows, Rows]:
    """(Spark's, ours) of the events in the Parquet files of `folder`, in one order."""
    spark.read.parquet(str(folder)).selectExpr("*", "timestamp_millis(at) AS ts").createOrReplaceTempView("events")
    result = spark.sql(known.sql)
    columns = list(known.answer) or [column for column in result.columns if not (known.group and column == "emitted")]
    expected = comparable(known, [row.asDict() for row in result.collect()], columns)
    return expected, comparable(known, _ours(known, folder, parallelism), columns)


def comparable(known: Workload, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Rows:
    """The rows, in an order that is the same for both; of a running result the last row of each group."""
    if known.summed:
        sums: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            group = tuple(row[name] for name in known.group)
            sums[group] = sums.get(group, 0) + row[known.summed]
        rows = [dict(zip((*known.group, known.summed), (*group, sum), strict=True)) for group, sum in sums.items()]
    elif known.group:
        rows = list({tuple(row[name] for name in known.group): row for row in rows}.values())
    return sorted(tuple(row[name] for name in columns) for row in rows)


def _ours(known: Workload, folder: Path, parallelism: int) -> list[dict[str, Any]]:
    sink = CollectSink()
    flow, result = known.flow(lambda flow: flow.read_parquet("events", str(folder), event_time="at"))
    result.sink("out", sink)
    flow.run_local(parallelism=parallelism)
    return sink.rows()


def compare(names: Sequence[str], parent: Path, rows: int, parallelism: int) -> int:
    """Prints a line per workload. Returns how many answers differ."""
    wrong = 0
    with spark_session() as spark:
        for name in names:
            spec = RunSpec(
                workload=name, engine="ours", measure="throughput", source="parquet", sink="discard", rows=rows
            )
            spec = with_input(spec, parent, file_rows(spec))
            began = time.perf_counter()
            expected, ours = answers(workload(name), Path(spec.input), spark, parallelism)
            same = expected == ours
            wrong += not same
            taken_s = time.perf_counter() - began
            print(f"{name:14} {'same' if same else 'DIFFERS':8} {len(ours):>9,} rows, {taken_s:.1f} s", flush=True)
            if not same:
                _show_difference(expected, ours)
    return wrong


def _show_difference(expected: Rows, ours: Rows) -> None:
    of_spark, of_us = (set(map(repr, each)) for each in (expected, ours))
    print(f"  {len(expected)} rows of Spark; only Spark's: {sorted(of_spark - of_us)[:3]}")
    print(f"  {len(ours)} rows of ours; only ours: {sorted(of_us - of_spark)[:3]}", flush=True)
