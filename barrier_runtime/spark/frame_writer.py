"""DataFrames: their schema as Arrow's, and their partitions written as Parquet files by Spark's tasks.

The files go through the same object store as checkpoints do, so nothing but what the job needs anyway must be set up
(Spark's own writer would need Hadoop's S3 classes and credentials).
"""

import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.data.values.casts import kept_cast
from barrier_runtime.spark.session import forwarded_environment
from barrier_runtime.state.errors import InvalidJob, missing_extra
from barrier_runtime.state.store.open import open_store

_FAILED_ATTEMPTS = 4  # of one task, as is Spark's own default; a session for slots allows any number
_LOOK_S = 0.5
_TASKS = 10_000  # how many are looked at
_WRITTEN = "part int, name string, size long, rows long"


@dataclass(frozen=True)
class WrittenFrames:
    name: str
    size: int  # bytes
    rows: int


def arrow_schema(dataframe: Any, where: str) -> pa.Schema:
    """Timestamps are UTC. Raises `InvalidJob` for what is not a DataFrame, or has columns that Arrow cannot hold."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema
    except ImportError as error:
        raise missing_extra("Spark", "spark", error) from None
    if not hasattr(dataframe, "mapInArrow"):
        raise InvalidJob(f"{where}: {type(dataframe).__name__} is not a Spark DataFrame: pass one")
    if dataframe.isStreaming:
        raise InvalidJob(f"{where}: the DataFrame is a stream and has no end: pass one made with read, not readStream")
    names = dataframe.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"{where}: column {twice[0]!r} is in the DataFrame twice: rename one")
    try:
        return to_arrow_schema(dataframe.schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidJob(f"{where}: a column's type has no counterpart in Arrow ({error}): cast it") from error


def write_partitions(dataframe: Any, schema: pa.Schema, url: str, prefix: str, where: str) -> list[WrittenFrames]:
    """Run the query; one Parquet object `<prefix><name>` per partition that has rows, in the order of partitions.
    Without any rows there is one object without rows. Raises `InvalidJob` when the query fails."""
    writer = _PartitionWriter(schema, url, prefix, forwarded_environment())
    rows = _collected(dataframe.mapInArrow(writer, _WRITTEN), where)
    if not rows:
        return [writer.write("empty", iter(()))]
    return [WrittenFrames(row["name"], row["size"], row["rows"]) for row in sorted(rows, key=lambda row: row["part"])]


class _PartitionWriter:
    """Travels to Spark's workers. Every attempt of a task writes under a name of its own."""

    def __init__(self, schema: pa.Schema, url: str, prefix: str, environment: dict[str, str]) -> None:
        self._schema = schema
        self._url = url
        self._prefix = prefix
        self._environment = environment

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        name = f"part-{part:05}-{uuid.uuid4().hex[:12]}.parquet"
        written = self.write(name, _chained(first, batches))
        yield pa.RecordBatch.from_pydict(
            {"part": [part], "name": [written.name], "size": [written.size], "rows": [written.rows]},
            schema=pa.schema([("part", pa.int32()), ("name", pa.string()), ("size", pa.int64()), ("rows", pa.int64())]),
        )

    def write(self, name: str, batches: Iterator[pa.RecordBatch]) -> WrittenFrames:
        os.environ.update({key: value for key, value in self._environment.items() if key not in os.environ})
        rows = 0
        with tempfile.TemporaryDirectory(prefix="barrier-runtime-stage-") as folder:
            path = Path(folder) / name
            with pq.ParquetWriter(path, self._schema) as file:
                for batch in batches:
                    file.write_batch(_fitted(batch, self._schema))
                    rows += batch.num_rows
            size = path.stat().st_size
            open_store(self._url).put_file(self._prefix + name, path)
        return WrittenFrames(name, size, rows)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark gives timestamps in the session's time zone, and strings as large ones if it is told to."""
    columns = [kept_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _collected(dataframe: Any, where: str) -> list[Any]:
    """All rows. A query that fails again and again is given up; Spark would try it for ever in a session for slots."""
    context = dataframe.sparkSession.sparkContext
    tag = f"barrier-runtime-stage-{uuid.uuid4().hex}"
    ended = threading.Event()
    given_up: list[str] = []

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            said = _hopeless(context, tag)
            if said:
                given_up.append(said)
                context.cancelJobsWithTag(tag)
                return

    watching = threading.Thread(target=watch, name="barrier-stage-watch", daemon=True)
    context.addJobTag(tag)
    try:
        watching.start()
        rows: list[Any] = dataframe.collect()
        return rows
    except Exception as error:  # Spark's, of many kinds
        said = _without_java(given_up[0] if given_up else str(error))
        raise InvalidJob(f"{where}: the query of its DataFrame failed, correct it: {said}") from error
    finally:
        context.removeJobTag(tag)
        ended.set()
        watching.join()


def _hopeless(context: Any, tag: str) -> str:
    """What Spark says of a task that failed too often; "" when there is none."""
    spark = context._jsc.sc()
    for job in spark.statusTracker().getJobIdsForTag(tag):
        info = context.statusTracker().getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            about = context.statusTracker().getStageInfo(stage)
            if about is None or about.numFailedTasks < _FAILED_ATTEMPTS:
                continue
            tasks = spark.statusStore().taskList(stage, about.currentAttemptId, _TASKS)
            attempts: dict[int, list[str]] = {}
            for at in range(tasks.size()):
                task = tasks.apply(at)
                if task.errorMessage().isDefined():
                    attempts.setdefault(task.index(), []).append(str(task.errorMessage().get()))
            for said in attempts.values():
                if len(said) >= _FAILED_ATTEMPTS:
                    return said[-1]
    return ""


def _without_java(said: str) -> str:
    """Without the lines of the JVM's stack."""
    lines = [line for line in said.splitlines() if not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(lines)[:4_000]
