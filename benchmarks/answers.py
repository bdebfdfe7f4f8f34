"""Compares answers: each workload on bounded events, ours and Flink's, with a batch of Spark SQL."""

import contextlib
import operator
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from barrier_runtime import CollectSink
from benchmarks.flink_answers import AnswerFailed, flink_rows
from benchmarks.inputs import file_rows, with_input
from benchmarks.spec import Answer, RunSpec
from benchmarks.workloads import Workload, workload

Rows = list[tuple[Any, ...]]


@contextlib.contextmanager
def spark_session() -> Iterator[Any]:
    """A local Spark session: two cores, UTC."""
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
    """(Spark's answer, ours) for the events in the Parquet files of `folder`, in the same order."""
    expected, columns = expected_rows(known, folder, spark)
    return comparable(known, expected, columns), comparable(known, our_rows(known, folder, parallelism), columns)


def expected_rows(known: Workload, folder: Path, spark: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Spark's rows, and the columns to compare."""
    spark.read.parquet(str(folder)).selectExpr("*", "timestamp_millis(at) AS ts").createOrReplaceTempView("events")
    result = spark.sql(known.sql)
    columns = list(known.answer) or [column for column in result.columns if not (known.group and column == "emitted")]
    return [row.asDict() for row in result.collect()], columns


def comparable(known: Workload, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Rows:
    """The rows in a fixed order; of a running result only the last row of each group."""
    if known.summed:
        sums: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            group = tuple(row[name] for name in known.group)
            sums[group] = sums.get(group, 0) + row[known.summed]
        rows = [dict(zip((*known.group, known.summed), (*group, sum), strict=True)) for group, sum in sums.items()]
    elif known.group:
        rows = list({tuple(row[name] for name in known.group): row for row in rows}.values())
    return sorted(tuple(row[name] for name in columns) for row in rows)


def at_most(rows: Rows, answer: Rows) -> bool:
    """Whether each group (all columns but the last) is in the answer, with at most the answer's sum (last column)."""
    sums = {tuple(group): total for *group, total in answer}
    return bool(rows) and all(total <= sums.get(tuple(group), -1) for *group, total in rows)


def our_rows(known: Workload, folder: Path, parallelism: int) -> list[dict[str, Any]]:
    sink = CollectSink()
    flow, result = known.flow(lambda flow: flow.read_parquet("events", str(folder), event_time="at"))
    result.sink("out", sink)
    flow.run_local(parallelism=parallelism)
    return sink.rows()


def compare(names: Sequence[str], parent: Path, rows: int, parallelism: int, engines: Sequence[str] = ("ours",)) -> int:
    """Prints a line per workload and engine ("ours", "flink"); returns how many answers differ."""
    wrong = 0
    with spark_session() as spark:
        for name in names:
            for answer in compared(name, spark, parent, rows, parallelism, engines):
                wrong += not answer.same
    return wrong


def compared(
    name: str, spark: Any, parent: Path, rows: int, parallelism: int, engines: Sequence[str]
) -> Iterator[Answer]:
    """Compares each engine's answer with Spark's, over the first `rows` events, and prints each result."""
    spec = RunSpec(workload=name, engine="ours", measure="throughput", source="parquet", sink="discard", rows=rows)
    spec = with_input(spec, parent, file_rows(spec))
    known = workload(name)
    expected, columns = expected_rows(known, Path(spec.input), spark)
    for engine in engines:
        began = time.perf_counter()
        chosen = list(known.flink_answer) if engine == "flink" and known.flink_answer else columns
        found, error = _rows_of(engine, known, spec, parent, parallelism)
        of_spark, of_engine = comparable(known, expected, chosen), comparable(known, found, chosen)
        equal = at_most if engine == "flink" and not known.flink_ends else operator.eq
        same = error is None and equal(of_engine, of_spark)
        taken_s = time.perf_counter() - began
        word = "same" if same else "DIFFERS"
        print(f"{name:14} {engine:6} {word:8} {len(of_engine):>9,} rows, {taken_s:.1f} s", flush=True)
        if error is not None:
            print(f"  {error}", flush=True)
        elif not same:
            _show_difference(of_spark, of_engine)
        yield Answer(workload=name, engine=engine, events=spec.rows, rows=len(of_engine), same=same, columns=chosen)


def _rows_of(
    engine: str, known: Workload, spec: RunSpec, parent: Path, parallelism: int
) -> tuple[list[dict[str, Any]], str | None]:
    if engine == "ours":
        return our_rows(known, Path(spec.input), parallelism), None
    try:
        folder = str(parent / f"answer-{engine}")
        placed = replace(spec, engine=engine, sink="answer", folder=folder, parallelism=parallelism)
        return flink_rows(known, with_input(placed, parent, file_rows(placed))), None
    except AnswerFailed as failed:
        return [], str(failed)


def _show_difference(expected: Rows, ours: Rows) -> None:
    of_spark, of_us = (set(map(repr, each)) for each in (expected, ours))
    print(f"  {len(expected)} rows of Spark; only Spark's: {sorted(of_spark - of_us)[:3]}")
    print(f"  {len(ours)} rows; only there: {sorted(of_us - of_spark)[:3]}", flush=True)
