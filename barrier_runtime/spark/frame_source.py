"""A Spark DataFrame as a bounded source: its query runs once, and its partitions become Parquet files that are read.

Slots are Spark tasks that live as long as the job, so they cannot be the tasks of a query; and a query that runs again
after a failure may give other rows, or the same ones in another order, so that no position in it would mean anything.
Therefore the driver lets Spark write the rows to the job's storage before the job starts, and an object beside them
says which files count, with their sizes. It is created once per job (put-if-absent: of two drivers one wins), so a
restart, also one of the whole program, reads the very same bytes. Only a fresh start (`restore="none"`) runs the query
again.

    the driver dies before `current.json`   nobody knows the files; the next run stages anew
    … after it                              the next run finds it, and does not run the query
    two drivers at once                     both stage; the second one to finish takes the first one's rows
    a task of the query runs twice          each attempt writes under its own name; the one that Spark took counts

Splits carry the id of their staging in their names, and a checkpoint all that is needed to go on with them. So a run
that stages anew, but is refused or dies before it becomes the job's, changes nothing for the job. The files of all
stagings are deleted by the driver when the job has finished; those of a job that never does are deleted with its
folder, `<job>/sources`.
"""

import logging
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.parquet import ParquetReader, plain_schema
from barrier_runtime.connectors.source import Split, SplitReader
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome, get_or_none
from barrier_runtime.state.store.open import open_store, within
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.store.urls import shown, without_credentials
from barrier_runtime.state.versioned import Format, VersionedDecoder

STAGING_VERSION = 1
log = logging.getLogger("barrier_runtime.job")


class StagedFrames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int  # bytes
    rows: int


class FrameStaging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`current.json`: one run of the query. Files in the order of the partitions; partitions without rows have none."""

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
    """`staging`: URL of the storage for the rows; default: where the job's checkpoints are."""

    exactly_once = True
    positions_in = "a Spark DataFrame"

    def __init__(self, name: str, dataframe: Any, staging: str | None) -> None:
        from barrier_runtime.spark.frame_writer import arrow_schema

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
        """What travels to the slots."""
        return {**self.__dict__, "_dataframe": None}

    def __repr__(self) -> str:
        if self._staged is None:
            return "a Spark DataFrame, staged when the job starts"
        return f"a Spark DataFrame, {sum(file.rows for file in self._staged.files)} rows staged"

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [file.split() for file in self._files] or [FoundFile("not-staged", "", 0).split()]

    def reader(self, split: Split) -> SplitReader:
        return ParquetReader(self._where, FoundFile.of(split), self.schema, None)

    # ------------------------------------------------------------ in the driver

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
        return (store.url if store.url.startswith("file://") else url), store  # with the endpoint that it may name

    def _columns(self) -> list[tuple[str, str]]:
        return [(field.name, str(field.type)) for field in self.schema]

    def _found(self, store: ObjectStore, paths: Paths) -> FrameStaging | None:
        key = paths.staged_source_current(self._name)
        data = get_or_none(store, key)
        return None if data is None else _STAGING.decode(data, f"{self._where}: {key} in {store.url}")

    def _run_query(self, url: str, store: ObjectStore, paths: Paths, fresh: bool) -> FrameStaging:
        from barrier_runtime.spark.frame_writer import write_partitions

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
