"""Exactly-once files (Parquet, JSON lines, CSV) on any object store: a local folder or S3.

Pre-commit stages whole, durable, hidden objects; nothing about them can expire. Commit publishes each under its final
name (atomic, idempotent, checked by hash). One file per subtask and checkpoint, more when a transaction outgrows
memory. When all subtasks have published, the global committer names the files in the sink's commit log, in one atomic
step: a reader of that log (`committed_files`) sees whole checkpoints, one that lists the folder sees whole files.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from barrier_runtime.connectors.files.sink.commit_log import CommitLog, CommittedFile, read_commit_log
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.file_committable import (
    StagedFile,
    check_names,
    decode_committable,
    encode_committable,
    origin_of,
    origin_of_name,
)
from barrier_runtime.connectors.sink_bases.row_buffer import RowBuffer
from barrier_runtime.connectors.sink_bases.staging import StagingKind, check_staging, make_staging, names_of
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.urls import shown, without_credentials


class FileSink(TwoPhaseCommitSink):
    """Base of the file sinks. `url`: a local folder, `file://…` or `s3://bucket/prefix`; several jobs may share it.

    `max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask before a part of it is staged early, as a
    file of its own. The default is smaller for text, which is larger than its rows.

    `staging`: where rows wait for the decision, see `staging`. `"object"` works everywhere; `"multipart"` (S3 only)
    saves a copy per file and is refused in a bucket that aborts old uploads.
    """

    global_committer = True
    suffix: ClassVar[str]
    default_bytes_in_memory: ClassVar[int] = 32 << 20

    def __init__(self, url: str, *, max_bytes_in_memory: int | None = None, staging: StagingKind = "object") -> None:
        self.url = without_credentials(str(url), f"the location of {type(self).__name__}")
        self.max_bytes_in_memory = max_bytes_in_memory or self.default_bytes_in_memory
        self.staging = check_staging(staging, self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    def settings(self) -> dict[str, Any]:
        """With the whole path of a folder: who makes an equal sink may be somewhere else."""
        url = self.url if "://" in self.url else str(Path(self.url).expanduser().absolute())
        return {"url": url, "max_bytes_in_memory": self.max_bytes_in_memory, "staging": self.staging}

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = f"job {context.job!r}, sink {context.sink!r}, subtask {context.subtask}"
        self._names = names_of(context, self.suffix)
        self._schema_checked = False
        self._last_checkpoint = 0  # the highest that closed a transaction, as far as this incarnation knows
        self._store = self._checked_store(context)
        self._staging = make_staging(self.staging, self._store, self._names, self._where)
        self._commit_log = CommitLog(self._store, context.job, context.sink)

    def _checked_store(self, context: SinkContext) -> ObjectStore:
        try:
            store = context.make_store(self.url)
            store.put(self._names.probe(), b"")
            store.delete([self._names.probe()])
        except InvalidJob as error:
            raise InvalidJob(
                f"{self._where}: cannot write to {shown(self.url)}: {error}. Give {type(self).__name__} a folder or "
                "bucket that exists or can be made and is writable from every slot"
            ) from error
        return store

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `InvalidJob` for columns that the format cannot hold. Called with the first rows."""

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """The bytes of one file, rows in order. Runs off the loop."""
        raise NotImplementedError

    # ------------------------------------------------------------ what was committed, for who compares

    def committed_rows(self, job: str, sink: str, after: int, until: int) -> Iterator[str]:
        """A text for each row of the checkpoints behind `after`, up to `until`, that readers see. A file that was
        removed since raises `ObjectNotFound`."""
        store = open_existing_store(self.url)
        for record in read_commit_log(store, job, sink):
            for file in record.files:
                named = origin_of_name(file.name)
                if named is not None and after < named[1][1] <= until:
                    yield from self.texts(store.get(file.name))

    def texts(self, data: bytes) -> Iterator[str]:
        """A text for each row of a file of this sink. Equal rows have equal texts."""
        yield from data.decode().splitlines()

    def texts_of(self, batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
        """The same for rows, as they would be read back."""
        yield from self.texts(self.encode(batches))

    # ------------------------------------------------------------ staging

    def begin_transaction(self) -> RowBuffer[StagedFile]:
        return RowBuffer()

    def write(self, transaction: RowBuffer[StagedFile], rows: pa.RecordBatch) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write(rows)

    def write_few(self, transaction: RowBuffer[StagedFile], rows: FewRows) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write_few(rows)

    def stage_early(self, transaction: RowBuffer[StagedFile]) -> Callable[[], None] | None:
        if transaction.bytes_in_current < self.max_bytes_in_memory:
            return None
        transaction.fill_up()

        def early() -> None:
            self._stage(transaction, self._last_checkpoint + 1)

        return early

    def pre_commit(self, transaction: RowBuffer[StagedFile], checkpoint: int) -> bytes | None:
        self._last_checkpoint = max(self._last_checkpoint, checkpoint)
        transaction.fill_up()
        files = self._staging.closed(self._stage(transaction, checkpoint), checkpoint)
        return encode_committable(files) if files else None

    def _stage(self, transaction: RowBuffer[StagedFile], earliest: int) -> list[StagedFile]:
        def stage(batches: Sequence[pa.RecordBatch]) -> StagedFile:
            return self._staging.stage(self.encode(batches), sum(each.num_rows for each in batches), earliest)

        return transaction.stage(stage)

    # ------------------------------------------------------------ deciding

    def commit(self, committable: bytes) -> None:
        for file in self._files_of(committable):
            try:
                self._staging.show(file)
            except Corrupt:
                if not self._was_visible(file):
                    raise

    def _was_visible(self, file: StagedFile) -> bool:
        """Who removes or rewrites a file that readers have seen (rotation, compaction) takes nothing from the job."""
        token, checkpoint = origin_of(file)
        return CommitLog(self._store, self._context.job, self._context.sink).names(file.final, token, checkpoint)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        files = [file for each in committables for file in self._files_of(each)]
        origins = {file.final: origin_of(file) for file in files}
        self._commit_log.append(
            checkpoint,
            self._context.token,
            [CommittedFile(file.final, file.sha256, file.rows) for file in files],
            lambda file: origins[file.name],
        )

    def abort(self, committable: bytes) -> None:
        self._staging.drop(self._files_of(committable))

    def _files_of(self, committable: bytes) -> tuple[StagedFile, ...]:
        decoded = decode_committable(committable, self._where)
        return check_names(decoded, self._context.job, self._context.sink, self._where).files

    def recover(self, decided: Sequence[bytes]) -> None:
        files: list[StagedFile] = []
        for committable in decided:
            self.commit(committable)
            files += self._files_of(committable)
        self._last_checkpoint = max([self._last_checkpoint, *(origin_of(file)[1] for file in files)])
        self._staging.sweep(self._context.parallelism, files)


class ParquetSink(FileSink):
    """One Parquet file per checkpoint and subtask."""

    kind = "parquet"
    suffix = "parquet"
    default_bytes_in_memory = 128 << 20

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.parquet(batches)

    def texts(self, data: bytes) -> Iterator[str]:
        import pyarrow.parquet as pq

        for row in pq.read_table(pa.BufferReader(data)).to_pylist():
            yield str(row)


class JsonlSink(FileSink):
    """JSON lines: times as ISO 8601, binary as base64, NaN as null."""

    kind = "jsonl"
    suffix = "jsonl"

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.jsonl(batches)


class CsvSink(FileSink):
    """CSV with a header line in each file."""

    kind = "csv"
    suffix = "csv"

    def check_schema(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise InvalidJob(
                    f"{self._where}: column {field.name!r} is {field.type}, which CSV cannot hold: select() plain "
                    "columns, or use ParquetSink or JsonlSink"
                )

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.csv(batches)

    def texts(self, data: bytes) -> Iterator[str]:
        lines = csv.reader(io.StringIO(data.decode()))
        next(lines, None)  # the header
        yield from map(repr, lines)
