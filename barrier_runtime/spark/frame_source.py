"""A Spark DataFrame as a bounded source: the query runs once, into a Parquet file per partition.

A repeated query may produce other rows or another order. Therefore Spark writes the rows to the job's storage before
the job starts; `current.json`, put if absent, lists the valid files. Only a fresh start (`restore="none"`) runs the
query again.

    driver dies before `current.json`       the files are unknown; the next run stages again
    driver dies after `current.json`        the next run finds the object and does not run the query
    two drivers at once                     both stage; the second to finish uses the rows of the first
    a task of the query runs twice          each attempt writes under another name; Spark accepts a single attempt

Split names contain the id of the staging, so a run that stages again, but never leads the job, changes nothing. The
driver deletes all staged files when the job has finished.
"""

import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.parquet import ParquetReader, plain_schema
from barrier_runtime.connectors.source import Split, SplitReader
from barrier_runtime.data.values.casts import kept_cast
from barrier_runtime.spark.session import check_release, forwarded_environment
from barrier_runtime.state.errors import InvalidJob, Unavailable, missing_extra
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.open import open_store, within
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown, without_credentials
from barrier_runtime.state.texts import counted
from barrier_runtime.state.versioned import Format, VersionedDecoder

STAGING_VERSION = 1
log = logging.getLogger("barrier_runtime.job")


class StagedFrames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int
    rows: int


class FrameStaging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`current.json`: a run of the query. Files are ordered as partitions; empty partitions have no file."""

    id: str
    columns: list[tuple[str, str]]  # name, Arrow type
    files: list[StagedFrames]
    version: int = STAGING_VERSION


_FORMAT = Format(
    "{}",
    STAGING_VERSION,
    damaged="bring back an intact copy, or start without state (restore='none'), which runs the query again",
)
_STAGING = VersionedDecoder(_FORMAT, msgspec.json.Decoder(FrameStaging))


class StagedFrame:
    """Source of the staged rows. `staging`: URL of the storage for rows; default: the job's checkpoints."""

    exactly_once = True
    endless = False
    positions_in = "a Spark DataFrame"

    def __init__(self, name: str, dataframe: Any, staging: str | None) -> None:

        self._name = name
        self._where = f"source {name!r}"
        if staging is not None:
            without_credentials(staging, f"staging of {self._where}")
        self._url = staging
        self._dataframe = dataframe
        self.schema = plain_schema(arrow_schema(dataframe, self._where))
        self._staged: FrameStaging | None = None
        self._files: list[FoundFile] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataframe": None}

    def __repr__(self) -> str:
        if self._staged is None:
            return "a Spark DataFrame, staged when the job starts"
        return f"a Spark DataFrame, {counted(sum(file.rows for file in self._staged.files), 'row')} staged"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [file.split() for file in self._files] or [FoundFile("not-staged", "", 0).split()]

    def reader(self, split: Split) -> SplitReader:
        return ParquetReader(self._where, FoundFile.of(split), self.schema, None)

    def stage(self, job: str, storage: str, *, fresh: bool) -> None:
        url, store = self._opened(storage)
        paths = Paths(job)
        found = None if fresh else self._found(store, paths)
        if found is not None:
            log.warning(
                "job %s: %s reads the rows that an earlier run staged; restore='none' runs its query again",
                *(job, self._where),
            )
        else:
            found = self._run_query(url, store, paths, fresh)
        if found.columns != self._columns():
            raise InvalidJob(
                f"{self._where}: the DataFrame has other columns than the rows that job {job!r} staged before: start "
                "without state (restore='none'), which runs the query again, or give the job another name"
            )
        self._staged = found
        self._files = [
            FoundFile(
                f"{found.id}/{file.name}",
                within(url, paths.staged_source_file(self._name, found.id, file.name)),
                file.size,
            )
            for file in found.files
        ]

    def unstage(self, job: str, storage: str) -> None:
        _, store = self._opened(storage)
        paths = Paths(job)
        current = paths.staged_source_current(self._name)
        listed = (found.key for found in store.list(paths.staged_source_prefix(self._name)))
        store.delete([key for key in listed if key != current])

    def _opened(self, storage: str) -> tuple[str, ObjectStore]:
        url = self._url or storage
        if url.startswith("memory://"):
            raise InvalidJob(
                f"{self._where}: the rows of a DataFrame cannot be staged in {shown(url)!r}, the memory of one "
                "process: pass staging=, a folder or s3://"
            )
        store = open_store(url)
        return (store.url if store.url.startswith("file://") else url), store  # other URLs keep their endpoint

    def _columns(self) -> list[tuple[str, str]]:
        return [(field.name, str(field.type)) for field in self.schema]

    def _found(self, store: ObjectStore, paths: Paths) -> FrameStaging | None:
        key = paths.staged_source_current(self._name)
        data = get_or_none(store, key)
        return None if data is None else _STAGING.decode(data, f"{self._where}: {key} in {store.url}")

    def _run_query(self, url: str, store: ObjectStore, paths: Paths, fresh: bool) -> FrameStaging:

        id = uuid.uuid4().hex
        prefix = paths.staged_source_file(self._name, id, "x").removesuffix("x")
        written = write_partitions(self._dataframe, self.schema, url, prefix, self._where)
        files = [StagedFrames(file.name, file.size, file.rows) for file in written]
        staging = FrameStaging(id, self._columns(), files)
        data, key = msgspec.json.encode(staging), paths.staged_source_current(self._name)
        if fresh:
            store.put(key, data)
            return staging
        outcome = store.put_if_absent(key, data)
        if outcome is PutOutcome.CREATED:
            return staging
        found = self._found(store, paths)
        if found is None:
            raise Unavailable(f"{self._where}: {key} could not be written to {store.url}: start the program again")
        if found.id != id:
            store.delete([paths.staged_source_file(self._name, id, file.name) for file in files])
        return found


_FAILED_ATTEMPTS = 4  # per task, Spark's default; sessions for slots allow any number
_LOOK_S = 0.5
_TASKS = 10_000  # searched for failures
_WRITTEN = "part int, name string, size long, rows long"


@dataclass(frozen=True)
class WrittenFrames:
    name: str
    size: int
    rows: int


def arrow_schema(dataframe: Any, where: str) -> pa.Schema:
    """Arrow schema with timestamps in UTC.
    Raises `InvalidJob` for other objects than DataFrames, and for columns that Arrow cannot hold.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema
    except ImportError as error:
        raise missing_extra("Spark", "spark", error) from None
    timezone = {"timezone": "UTC"} if check_release(where) >= (4, 2) else {}  # older releases always use UTC
    if not hasattr(dataframe, "mapInArrow"):
        raise InvalidJob(f"{where}: {type(dataframe).__name__} is not a Spark DataFrame: pass one")
    if dataframe.isStreaming:
        raise InvalidJob(f"{where}: the DataFrame is a stream and has no end: pass one made with read, not readStream")
    names = dataframe.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"{where}: column {twice[0]!r} is in the DataFrame twice: rename one")
    try:
        return to_arrow_schema(dataframe.schema, **timezone)
    except PySparkException as error:
        raise InvalidJob(f"{where}: a column's type has no counterpart in Arrow ({error}): cast it") from error


def write_partitions(dataframe: Any, schema: pa.Schema, url: str, prefix: str, where: str) -> list[WrittenFrames]:
    """Writes a Parquet object `<prefix><name>` per partition with rows, in order; without rows just one.
    Raises `InvalidJob` if the query fails.
    """
    writer = _PartitionWriter(schema, url, prefix, forwarded_environment())
    rows = _collected(dataframe.mapInArrow(writer, _WRITTEN), where)
    if not rows:
        return [writer.write("empty", iter(()))]
    return [WrittenFrames(row["name"], row["size"], row["rows"]) for row in sorted(rows, key=lambda row: row["part"])]


class _PartitionWriter:
    """Runs in Spark's workers. Each attempt of a task writes under a new name."""

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
    """Converts Spark's timestamps in the session's time zone, and large strings."""
    columns = [kept_cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _collected(dataframe: Any, where: str) -> list[Any]:
    """Cancels a query whose tasks fail repeatedly: slots' sessions would retry for ever."""
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
    except Exception as error:
        said = _without_java(given_up[0] if given_up else str(error))
        raise InvalidJob(f"{where}: the query of its DataFrame failed, correct it: {said}") from error
    finally:
        context.removeJobTag(tag)
        ended.set()
        watching.join()


def _hopeless(context: Any, tag: str) -> str:
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
    lines = [line for line in said.splitlines() if not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(lines)[:4_000]
